"""Reads data sets in the layout of YOLO: a text file of boxes per image."""

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from keras_attn.checks.arguments import check_choice
from keras_attn.data.images.detection import (
    DetectionData,
    DetectionExample,
    check_boxes,
    is_line,
    make_example,
)
from keras_attn.data.images.image_files import find_pictures, from_windows
from keras_attn.data.images.split_names import SPLITS
from keras_attn.data.images.unused_files import unused_files
from keras_attn.data.images.yolo_layout import find_yolo, get_label_file
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.data.pipelines.class_names import check_class_names
from keras_attn.files.reading import MIB, read_text, shown

_MAX_BYTES = 16 * MIB
_ORIENTATION = 274  # The number of the EXIF field.
_SIDEWAYS = (5, 6, 7, 8)
# Numbers that were rounded may exceed [0, 1] slightly.
_MARGIN = 0.01


def read_yolo(
    source: str | os.PathLike,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    *,
    on_error: str = "raise",
) -> DetectionData:
    """Reads the boxes of a data set like Ultralytics' YOLO's.

    An image `images/…/a.jpg` has its objects in `labels/…/a.txt`, one a line: the
    number of the class, and the center, width and height of the box in fractions of the
    upright image; or the points of a polygon, around which a box is drawn. Images are
    read later, by `detection_dataset`.

    Args:
        source: `data.yaml`, or the folder that has it; or a folder without one, with
            `images/` and `labels/`, perhaps with a folder per split in them or around
            them, and the names of the classes in `classes.txt`.
        split: "train", "val" or "test". None takes "train", or, of a folder without
            splits, all images.
        class_names: The classes, in the order of their numbers. None = the data set's.
        on_error: "raise" refuses a bad file or object. "skip" leaves it out: the object
            if its line is bad, otherwise the image. A warning counts them,
            `data.skipped` lists them.

    Returns:
        The data set. It includes images without objects, and those without a text file,
        which `data.notes` counts, as it does files that are not used. Boxes are clipped
        to their image. Those that are repeated, which Ultralytics leaves out too, and
        those without width or height are left out and counted.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If `source` is not such a data set, lacks the split or the names of
            its classes, if anything is bad and `on_error="raise"` (the message names
            file and line), or if no image is left.

    Example:
        Needs a folder in the layout of YOLO:

        ```python
        from keras_attn import data

        train = data.read_yolo("cells/data.yaml")
        val = data.read_yolo("cells/data.yaml", "val")
        ```
    """
    skipped = Skipped(on_error)
    path = Path(source)
    if split is not None:
        check_choice("split", split, SPLITS)
    layout = find_yolo(path) if path.exists() else None
    if layout is None:
        raise ValueError(
            "`source` must be YOLO's data.yaml, or a folder with it or with images/ "
            f"and labels/*.txt. Received: source={str(source)!r}"
        )
    wanted = split or ("train" if "train" in layout.splits else "")
    if wanted not in layout.splits:
        there = ", ".join(layout.splits) if "" not in layout.splits else "no splits"
        raise ValueError(
            f"`split` must be one that {layout.path.name} has. Received: "
            f"split={split!r}, {str(source)!r} has {there}"
        )
    names = list(layout.class_names if class_names is None else class_names)
    if layout.class_names and names != layout.class_names:
        raise ValueError(
            "`class_names` must be the data set's, in its order. Received: "
            f"class_names={shown(names)}, {layout.path.name} has "
            f"{shown(layout.class_names)}"
        )
    if not names:
        raise ValueError(
            f"{layout.path.name} must name its classes: write them into classes.txt, "
            "one a line in the order of their numbers, or pass `class_names`. "
            f"Received: {str(source)!r} without"
        )
    check_class_names(names, f"The classes of {layout.path.name}")
    examples: list[DetectionExample] = []
    used: set[Path] = set()
    unlabeled = repeated = 0
    places = layout.splits[wanted]
    for image in _find_images(places):
        file = get_label_file(image)
        unlabeled += not file.is_file()
        try:
            if file in used:
                raise ValueError(
                    "`source` must have one image of each name. Received: another one "
                    f"than {image.name} for {str(file)!r}"
                )
            used.add(file)
            size = _read_size(image)
            lines = _read_lines(file) if file.is_file() else []
        except (ValueError, OSError) as error:
            skipped.add(str(image), error)
            continue
        objects = []
        known: set[tuple] = set()
        for number, fields in lines:
            label = f"{file.name}, line {number}"
            with skipped.collecting(label):
                kind, box = _object(fields, len(names), layout.has_keypoints, label)
                if is_line(box):
                    skipped.leave_out(label, f"{label} has no width or no height")
                    continue
                found = (kind, *box)
                if found in known:
                    repeated += 1
                    continue
                known.add(found)
                corners = check_boxes(box * (size[::-1] * 2), size, label)[0]
                objects.append((corners, kind, False, None))
        found_image = image.name, image, size
        examples.append(make_example(len(examples), found_image, objects))
    if unlabeled == len(examples):
        raise ValueError(
            "`source` must have images with labels, `labels/a.txt` for `images/a.jpg`. "
            f"Received: {str(source)!r}, {len(examples):,} images and no label file"
        )
    skipped.report(f"YOLO in {str(source)!r}")
    notes = list(_notes(unlabeled, used if all(x.is_dir() for x in places) else set()))
    if repeated:
        notes.append(f"left out: {repeated:,} boxes that are repeated in their file")
    files = [each.image_path for each in examples]
    notes += [
        x for place in places if place.is_dir() for x in unused_files(place, files)
    ]
    return DetectionData(examples, names, skipped, notes=notes)


def _notes(unlabeled: int, used: set[Path]) -> Iterator[str]:
    """Notes on images without labels and labels without images.

    Args:
        unlabeled: Number of images without a label file.
        used: The label files; none if their folders have labels of other images too.
    """
    if unlabeled:
        yield f"{unlabeled:,} images without a label file, taken as without objects"
    folders = {each.parent for each in used}
    there = {each for folder in folders for each in folder.glob("*.txt")}
    rest = [each for each in there - used if each.name != "classes.txt"]
    if rest:
        first = min(rest).name
        yield f"not used: {len(rest):,} label files without an image, such as {first}"


def _find_images(places: Sequence[Path]) -> list[Path]:
    """The images of folders, and of text files that list them."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            pictures, _ = find_pictures("source", place)
            found += [each for each in pictures if isinstance(each, Path)]
            continue
        for line in read_text(place).removeprefix("\ufeff").splitlines():
            if name := line.strip():
                # "./images/a.jpg" is beside the list; other names may be, too.
                path = place.parent / name
                slashed = place.parent / from_windows(name)
                found.append(path if path.is_file() else slashed)
    double = len(found) - len({each.resolve() for each in found})
    if double:
        raise ValueError(
            f"Each image must be named once. Received: {double} twice in "
            f"{', '.join(map(str, places))}"
        )
    return found


def _read_size(path: Path) -> tuple[int, int]:
    """Height and width of the upright image, by the header of its file."""
    if not path.is_file():
        raise FileNotFoundError(
            f"The image {path.name} does not exist. Received: {str(path)!r}"
        )
    try:
        with Image.open(path) as image:
            height, width = image.height, image.width
            is_turned = image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS
    except Exception as error:  # Pillow's decoders raise errors of many types.
        raise ValueError(
            f"{path.name} must be an image. Received: {str(path)!r}: {error}"
        ) from error
    return (width, height) if is_turned else (height, width)


def _read_lines(path: Path) -> list[tuple[int, list[str]]]:
    lines = enumerate(read_text(path, _MAX_BYTES).removeprefix("\ufeff").split("\n"), 1)
    return [(number, line.split()) for number, line in lines if line.strip()]


def _object(
    fields: Sequence[str], num_classes: int, has_keypoints: bool, label: str
) -> tuple[int, np.ndarray]:
    """The class and the corners of a box, in fractions of the upright image."""
    try:
        kind, *numbers = map(float, fields)
    except ValueError:
        raise ValueError(
            f"{label} must consist of numbers. Received: {shown(' '.join(fields))}"
        ) from None
    if has_keypoints and len(numbers) > 4:
        numbers = numbers[:4]
    is_polygon = len(numbers) >= 6 and len(numbers) % 2 == 0
    if len(numbers) != 4 and not is_polygon:
        raise ValueError(
            f"{label} must be a class and x, y, width and height of a box, or at least "
            f"three points x y of a polygon. Received: {shown(' '.join(fields))}"
        )
    if not 0 <= kind < num_classes or not kind.is_integer():
        raise ValueError(
            f"{label} must begin with a class from 0 to {num_classes - 1}. Received: "
            f"{fields[0]}"
        )
    if not all(math.isfinite(x) and -_MARGIN <= x <= 1 + _MARGIN for x in numbers):
        raise ValueError(
            f"{label} must have fractions of the image's width and height, from 0 to "
            f"1. Received: {shown(' '.join(fields))}"
        )
    points = np.array(numbers, np.float64).reshape(-1, 2)
    if is_polygon:
        return int(kind), np.concatenate([points.min(0), points.max(0)])
    center, sides = points
    return int(kind), np.concatenate([center - sides / 2, center + sides / 2])
