"""Boxes of COCO, VOC or YOLO: which splits are used, and what is left out."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from keras_attn.cli.finetuning.kinds import Kind
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.data import DetectionData, read_coco, read_voc, read_yolo
from keras_attn.data.images.coco import MAX_COCO_BYTES, MAX_COCO_ENTRIES, get_entries
from keras_attn.data.images.detection import DetectionExample
from keras_attn.data.images.image_files import read_names
from keras_attn.data.images.split_names import get_split
from keras_attn.data.images.unused_files import unused_files
from keras_attn.data.images.voc import begins_at_zero, voc_folders
from keras_attn.data.images.yolo_layout import find_yolo
from keras_attn.data.pipelines.bad_files import first_reasons
from keras_attn.extras import requires_extra
from keras_attn.files.reading import read_json

MASKS = "instance_segmentation"
Split = str | Sequence[str] | None
Splits = tuple[Split, Split]


def learns_masks(settings: Settings, kind: Kind, source: Source) -> bool:
    """Whether masks are learned: `--task`, or else if MODEL and DATA have them.

    Args:
        settings: The command line.
        kind: The kind of DATA.
        source: MODEL.

    Raises:
        ValueError: If `--task` asks for masks that the data do not have.
    """
    if settings.task is not None:
        wanted = settings.task == MASKS
        if wanted and kind.annotations is None:
            raise ValueError(
                f"--task {MASKS} needs COCO's JSON with a `segmentation` of each "
                f"object. Received: {str(settings.data)!r}, {kind.why}"
            )
        return wanted
    if kind.annotations is None or not source.has_masks:
        return False
    content = read_json(kind.annotations, MAX_COCO_BYTES, MAX_COCO_ENTRIES)
    entries = get_entries(content, "annotations", kind.annotations)
    return any(entry.get("segmentation") for entry in entries)


def read_objects(
    path: Path, kind: Kind, split: Split, names: Sequence[str] | None
) -> DetectionData:
    """A data set with the classes of the training images.

    Args:
        path: DATA, or the data to validate on.
        kind: Their kind.
        split: One of `find_splits`.
        names: The classes; None = the data set's.

    Raises:
        ImportError: If there are polygons, and what fills them is not installed.
        ValueError: If the data are bad.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # It becomes a note.
        data = _read(path, kind, split, names)
    notes = list(data.notes)
    if data.skipped:
        reasons = first_reasons(data.skipped.values())
        notes.append(f"left out: {len(data.skipped):,} objects: {reasons}")
    repeated = sum(map(_count_repeated, data.examples))
    if repeated:
        notes.append(f"{repeated:,} boxes are repeated: same image, place and class")
    crowds = sum(int(each.is_crowd.sum()) for each in data.examples)
    if crowds:
        notes.append(f"{crowds:,} boxes of crowds: nothing is learned or counted there")
    return replace(data, notes=notes)


def _count_repeated(example: DetectionExample) -> int:
    """The boxes of an image that are another one of the same class."""
    rows = np.column_stack([example.boxes, example.classes])[~example.is_crowd]
    return len(rows) - len(np.unique(rows, axis=0))


def _read(
    path: Path, kind: Kind, split: Split, names: Sequence[str] | None
) -> DetectionData:
    if kind.layout == "yolo":
        return read_yolo(path, None if split is None else str(split), names)
    if kind.annotations is None:
        if not begins_at_zero(_voc_folders(path)[0]):
            return read_voc(path, split, names)
        data = read_voc(path, split, names, one_based=False)
        note = (
            "boxes are counted from pixel 0, at which one begins, not from 1 as VOC's"
        )
        return replace(data, notes=[*data.notes, note])
    has_masks = kind.task == MASKS
    try:
        data = read_coco(kind.annotations, kind.images, names, masks=has_masks)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}. --images and --validation-images name other folders"
        ) from error
    except ValueError as error:
        if has_masks:
            hint = "`--task detection` learns only from boxes."
            raise ValueError(f"{error}. {hint}") from error
        raise
    shapes = [each for x in data.examples for each in x.segmentations or ()]
    if any(isinstance(each, list) for each in shapes):
        with requires_extra("vision", "Filling polygons"):
            import pycocotools.mask  # noqa: F401
    return data


def find_splits(settings: Settings, kind: Kind) -> Splits:
    """The splits of VOC's and YOLO's folders to train and to validate on.

    Args:
        settings: The command line.
        kind: The kind of DATA.

    Returns:
        For DATA, and for `--validation` or else DATA: the name of a split, a list of
        names, or None for everything. Two of None without `--validation`: a part is
        held out.
    """
    if kind.layout == "yolo":
        return _yolo_splits(settings)
    if kind.layout == "voc":
        return _voc_splits(settings)
    return None, None


def _yolo_splits(settings: Settings) -> Splits:
    validation = settings.validation or settings.data
    ours, other = find_yolo(settings.data), find_yolo(validation)
    train = "train" if ours is not None and "train" in ours.splits else None
    return train, "val" if other is not None and "val" in other.splits else None


def is_one_folder(settings: Settings, kind: Kind) -> bool:
    """Whether YOLO's file names the training images as those to validate on, too.

    Ultralytics' small examples do.

    Args:
        settings: The command line.
        kind: The kind of DATA.
    """
    layout = find_yolo(settings.data) if kind.layout == "yolo" else None
    if layout is None or settings.validation is not None:
        return False
    return "val" in layout.splits and layout.splits["val"] == layout.splits["train"]


def _voc_splits(settings: Settings) -> Splits:
    ours = _lists(settings.data)
    theirs = ours if settings.validation is None else _lists(settings.validation)
    validation = "val" if "val" in theirs else None
    if "train" in ours:
        return "train", validation
    if "trainval" in ours:
        return "trainval", None if settings.validation is None else validation
    if not ours:
        return None, validation
    others = {name for path in ours.values() for name in read_names(path)}
    return sorted(_annotated(settings.data) - others), validation


def _lists(folder: Path) -> dict[str, Path]:
    """The files of `ImageSets` or `ImageSets/Main` that say what a split has."""
    if not folder.is_dir():
        return {}
    names = ("train", "val", "trainval", "test")
    sets = folder / "ImageSets"
    places = [place / f"{x}.txt" for x in names for place in (sets, sets / "Main")]
    return {each.stem: each for each in reversed(places) if each.is_file()}


def _annotated(folder: Path) -> set[str]:
    return {path.stem for path in _voc_folders(folder)[0].glob("*.xml")}


def _voc_folders(folder: Path) -> tuple[Path, Path]:
    return voc_folders(folder) or (folder / "Annotations", folder / "JPEGImages")


def unused(
    settings: Settings, kind: Kind, parts: Sequence[DetectionData], splits: Splits
) -> list[str]:
    """Counts the files in the folders of images that no split has.

    Args:
        settings: The command line.
        kind: The kind of DATA.
        parts: The images to train and to validate on.
        splits: From `find_splits`.
    """
    used = [each.image_path for part in parts for each in part.examples]
    notes = []
    if kind.layout == "yolo":
        layout = find_yolo(settings.data)
        splits_of = {} if layout is None else layout.splits
        notes += [f"not used: the split {name}" for name in splits_of if name == "test"]
        named = {each.resolve() for places in splits_of.values() for each in places}
        beside = {each for place in named for each in place.parent.iterdir()}
        notes += [
            f"not used: {each}, which {settings.data.name} does not name"
            for each in sorted(beside - named)
            if each.is_dir() and get_split(each.name)
        ]
    if kind.layout == "voc":
        annotated = _annotated(settings.data)
        rest = annotated - {path.stem for path in used}
        if rest:
            lists = " and ".join(f"{x}.txt" for x in splits if isinstance(x, str))
            notes.append(
                f"not used: {len(rest):,} images with annotations that are not in "
                f"{lists or 'a split'}"
            )
        labels, folder = _voc_folders(settings.data)
        used += labels.glob("*.xml")
        used += [x for x in folder.iterdir() if x.stem in annotated]
        return [*notes, *unused_files(folder, used)]
    if kind.annotations is not None:
        folders = [get_common_folder(part) for part in parts]
        tops = [x for x in folders if not any(y in x.parents for y in folders)]
        used.append(kind.annotations)
        used += [settings.validation] if settings.validation is not None else []
        for folder in dict.fromkeys(tops):
            notes += unused_files(folder, used)
    return notes


def get_common_folder(data: DetectionData) -> Path:
    """The folder that all images of a data set are in.

    Args:
        data: The data set.
    """
    return Path(os.path.commonpath([each.image_path.parent for each in data.examples]))
