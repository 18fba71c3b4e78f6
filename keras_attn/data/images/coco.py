"""Reads COCO's JSON of boxes, polygons and run lengths."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_attn.data.images.detection import (
    DetectionData,
    check_boxes,
    is_line,
    make_example,
)
from keras_attn.data.images.image_files import check_folder, check_names, from_windows
from keras_attn.data.images.instance_masks import check_segmentation
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.data.pipelines.class_names import check_class_names
from keras_attn.files.reading import MIB, is_file, read_json, shown

# `instances_train2017.json` has 449 MB and about 60 million numbers.
MAX_COCO_BYTES = 1024 * MIB
MAX_COCO_ENTRIES = 200_000_000


def read_coco(
    annotations: str | os.PathLike,
    image_folder: str | os.PathLike,
    class_names: Sequence[str] | None = None,
    *,
    masks: bool = True,
    on_error: str = "raise",
) -> DetectionData:
    """Reads an annotation file of COCO's format.

    Category numbers may have gaps; classes are numbered from 0 in the same order, and
    `data.category_ids` maps back, with -1 for a class of `class_names` that the file
    does not have. Images are read later, by `detection_dataset`.

    Args:
        annotations: The JSON file, such as `instances_val2017.json`.
        image_folder: The folder with the images that the file names.
        class_names: The classes, in the order of their numbers: categories are found by
            their names. None takes the file's.
        masks: Whether to keep the segmentations, for `detection_dataset(masks=True)`.
            Objects whose segmentation is empty, `[]` or `[[]]`, are then left out, as
            are boxes without width or height in any case; a warning counts them,
            `data.skipped` lists them.
        on_error: "raise" refuses a bad file or object. "skip" leaves it out: the
            object if it has an unknown category or image, a damaged mask or no area in
            the image, otherwise the image. A warning counts them, `data.skipped` lists
            them.

    Returns:
        The data set. It includes images without objects. Boxes are clipped to their
        image.

    Raises:
        FileNotFoundError: If `annotations` does not exist.
        ValueError: If it is not such a file, if anything in it is bad and
            `on_error="raise"`, or if no image is left.

    Reference:
        Lin et al. 2014, "Microsoft COCO: Common Objects in Context" (arXiv:1405.0312).
    """
    skipped = Skipped(on_error)
    path = Path(annotations)
    folder = check_folder("image_folder", image_folder)
    content = read_json(path, MAX_COCO_BYTES, MAX_COCO_ENTRIES)
    categories = dict(_categories(content, path))
    if class_names is None:
        names = [categories[number] for number in sorted(categories)]
        class_of = {number: index for index, number in enumerate(sorted(categories))}
    else:
        names = list(class_names)
        class_of = {
            number: names.index(name)
            for number, name in categories.items()
            if name in names
        }
    images = {}
    files: dict[str, int] = {}
    for index, image in enumerate(get_entries(content, "images", path)):
        label = f"{path.name}, image {index}"
        try:
            number, checked = check_image(image, folder, label)
            if number in images:
                raise ValueError(
                    f"{label} must have a unique `id`. Received: id={number}"
                )
            if files.setdefault(checked[0], index) != index:
                raise ValueError(
                    f"{label} must have another `file_name` than image "
                    f"{files[checked[0]]}. Received: file_name={shown(checked[0])}"
                )
        except (ValueError, OSError) as error:
            if isinstance(error, FileNotFoundError) and on_error == "raise":
                error = FileNotFoundError(f"{error}, {_missing(content, folder, path)}")
            skipped.add(label, error)
        else:
            images[number] = checked
    objects: dict[int, list] = {number: [] for number in images}
    numbers = [_whole(x.get("id")) for x in get_entries(content, "images", path)]
    known = {number for number in numbers if type(number) is int}
    for index, entry in enumerate(get_entries(content, "annotations", path)):
        label = f"{path.name}, annotation {index}"
        number: Any = _whole(entry.get("image_id"))
        is_number = type(number) is int
        if is_number and number in known and number not in images:
            continue  # The image itself was left out.
        with skipped.collecting(label):
            if not is_number or number not in images:
                raise ValueError(
                    f"{label} must name an image. Received: image_id={shown(number)}"
                )
            *_, size = images[number]
            found = _check_object(entry, class_of, size, masks, label)
            if found is None:
                reason = f"{label} has no width or no height: bbox={entry['bbox']}"
                skipped.leave_out(label, reason)
            elif masks and _is_empty(found[3]):
                reason = f"{label} has a box and no mask: segmentation={found[3]}"
                skipped.leave_out(label, reason)
            else:
                objects[number].append(found)
    if not images:
        raise ValueError(
            "`annotations` must name images that are in `image_folder`. Received: "
            f"annotations={str(annotations)!r}, image_folder={str(image_folder)!r}"
        )
    skipped.report(f"COCO in {str(annotations)!r}")
    examples = [
        make_example(number, images[number], found, masks)
        for number, found in objects.items()
    ]
    used = sorted({number for each in examples for number in each.classes.tolist()})
    check_class_names(
        [names[number] for number in used], f"`categories` of {path.name}"
    )
    ids = {index: number for number, index in class_of.items()}
    category_ids = [ids.get(index, -1) for index in range(len(names))]
    return DetectionData(examples, names, skipped, category_ids)


def _missing(content: dict, folder: Path, path: Path) -> str:
    """Counts the named images that are missing, for a message."""
    names = [image.get("file_name") for image in get_entries(content, "images", path)]
    missing = sum(not is_file(folder / str(name)) for name in names)
    return f"which lacks {missing:,} of {len(names):,} images"


def get_entries(content: dict, name: str, path: Path) -> list[dict[str, Any]]:
    """A list of objects in the file."""
    found = content.get(name)
    if not isinstance(found, list) or not all(isinstance(x, dict) for x in found):
        raise ValueError(
            f"{path.name} must have `{name}`, a list of objects. "
            f"Received: {str(path)!r}, {name}={shown(found)}"
        )
    return found


def _whole(value: Any) -> Any:
    """A number such as 3.0, as tables of pandas have it, as an integer."""
    return int(value) if type(value) is float and value.is_integer() else value


def _categories(content: dict, path: Path) -> Iterator[tuple[int, str]]:
    found = set()
    for category in get_entries(content, "categories", path):
        number, name = _whole(category.get("id")), category.get("name")
        if type(number) is not int or not isinstance(name, str) or number in found:
            raise ValueError(
                f"{path.name} must have `categories`, each with a unique integer `id` "
                f"and a `name`. Received: {str(path)!r}, {shown(category)}"
            )
        found.add(number)
        yield number, name
    if not found:
        raise ValueError(
            f"{path.name} must have `categories`. Received: {str(path)!r}, none"
        )


def check_image(image: dict, folder: Path, label: str):
    """Number, and name, file and size, of an image."""
    number, name = _whole(image.get("id")), image.get("file_name")
    sides = _whole(image.get("height")), _whole(image.get("width"))
    if type(number) is not int or not isinstance(name, str):
        raise ValueError(
            f"{label} must have an integer `id` and a `file_name`. Received: "
            f"{shown(image)}"
        )
    if not all(type(side) is int and 0 < side < 2**31 for side in sides):
        raise ValueError(
            f"{label} must have a height and width in pixels. Received: {shown(image)}"
        )
    if not is_file(folder / name):
        name = from_windows(name)
    check_names([name], label)
    if not is_file(folder / name):
        raise FileNotFoundError(
            f"{label}: `image_folder` has no file {shown(name)}. "
            f"Received: image_folder={str(folder)!r}"
        )
    return number, (name, folder / name, sides)


def _check_object(entry: dict, class_of: dict, size, masks: bool, label: str):
    """Box, class, whether it is a crowd, and segmentation, of an annotation.

    None if its box has no width or no height.
    """
    category = _whole(entry.get("category_id"))
    box: Any = entry.get("bbox")
    if type(category) is not int or category not in class_of:
        raise ValueError(
            f"{label} must have a `category_id` from `categories`, of one of the "
            f"classes. Received: category_id={shown(category)}"
        )
    is_list = isinstance(box, list) and len(box) == 4
    if not is_list or not all(type(side) in (int, float) for side in box):
        raise ValueError(
            f"{label} must have a `bbox` of left, top, width and height. "
            f"Received: bbox={shown(box)}"
        )
    left, top, width, height = box
    try:
        sides = np.array([left, top, left + width, top + height], np.float64)
        if is_line(sides):
            return None
        box = check_boxes(sides, size)[0]
        if masks and entry.get("segmentation") is None:
            raise ValueError(
                "`segmentation` must be given: pass `masks=False` to read boxes only. "
                "Received: segmentation=None"
            )
        if masks and not _is_empty(entry["segmentation"]):
            check_segmentation(entry["segmentation"], *size)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{label}: {error}") from error
    is_crowd = _is_crowd(entry.get("iscrowd"), label)
    return box, class_of[category], is_crowd, entry.get("segmentation")


def _is_empty(segmentation: Any) -> bool:
    """Whether all polygons are missing or without points."""
    return isinstance(segmentation, list) and not any(x != [] for x in segmentation)


def _is_crowd(value: Any, label: str) -> bool:
    """The flag of an annotation, which some tools write as a string."""
    if isinstance(value, str):
        value = {"0": 0, "1": 1}.get(value.strip(), value)
    if value is None or (isinstance(value, int | float) and value in (0, 1)):
        return bool(value)
    raise ValueError(
        f"{label} must have an `iscrowd` of 0 or 1. Received: iscrowd={shown(value)}"
    )
