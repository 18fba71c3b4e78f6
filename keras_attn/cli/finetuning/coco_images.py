"""Finds the folder of the images of a COCO file, which has the same name."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from keras_attn.data.images.image_files import from_windows
from keras_attn.data.images.split_names import SPLITS, get_split
from keras_attn.files.reading import is_file

_CHUNK = 2**20
_MOST_NAMES = 10_000
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")')
# Words of a file's name that say what is in it, not which images.
_KINDS = {"instances", "annotations", "annotation", "coco", "captions", "labels"}
_KINDS |= {"person", "keypoints", "panoptic", "stuff", "bbox", "boxes", "json"}
_COMMON = ("images", "image", "imgs", "JPEGImages")
_OF_ANNOTATIONS = ("annotations", "annotation", "labels")


def find_image_folder(annotations: Path, other: Path | None = None) -> Path:
    """The folder of the images of a COCO file.

    `val.json` has them in `val/`, `annotations/instances_val2017.json` in `val2017/`.
    `images/`, `train/` for a file whose name says no other split, the folder of the
    file and `other` follow. The first one that has a file of a name in `annotations` is
    taken.

    Args:
        annotations: The file.
        other: A folder to look into at last.

    Returns:
        The folder; the likeliest one if none has the images.
    """
    beside = annotations.parent
    is_inner = beside.name.lower() in _OF_ANNOTATIONS
    root = beside.parent if is_inner else beside
    named = list(_named(annotations.stem, root))
    shared = [root / name for name in _COMMON]
    if not _says_other_split(annotations.stem):
        shared += [root / name for name in SPLITS["train"]]
    places = [*named, *shared, root, beside, *([other] if other is not None else [])]
    places = [place for place in dict.fromkeys(places) if place.is_dir()]
    names = _file_names(annotations)
    for place in places:
        if any(is_file(place / x) for name in names for x in _ways(name)):
            return place
    return places[0]


def _named(stem: str, root: Path) -> Iterator[Path]:
    """The folders that are called as the file, or as the split in its name."""
    there = {}
    for place in (root, root / "images"):
        if place.is_dir():
            there[place] = {x.name.lower(): x for x in place.iterdir() if x.is_dir()}
    for wanted in _numbered_names(stem):
        for folders in there.values():
            if wanted in folders:
                inner = folders[wanted] / "images"
                yield from (inner, folders[wanted])


def _numbered_names(stem: str) -> Iterator[str]:
    stem = stem.lower()
    yield stem
    words = [word for word in re.split(r"[\W_]+", stem) if word]
    words = [word for word in words if word not in _KINDS]
    yield from words
    for word in words:
        yield from SPLITS.get(get_split(word) or "", ())


def _says_other_split(stem: str) -> bool:
    found = {get_split(word) for word in re.split(r"[\W_]+", stem)} - {None}
    return bool(found) and "train" not in found


def _file_names(path: Path) -> list[str]:
    """The first names of images in a file, which may be too large to parse twice."""
    found: list[str] = []
    with path.open("rb") as file:
        rest = b""
        while len(found) < _MOST_NAMES and (chunk := file.read(_CHUNK)):
            content = rest + chunk
            end = 0
            for match in _FILE_NAME.finditer(content):
                end = match.end()
                try:
                    found.append(json.loads(match[1]))
                except ValueError:
                    continue  # The reader says what is wrong with it.
            # A name may be cut in two.
            rest = content[max(end, len(content) - 4096) :]
    return found


def _ways(name: str) -> set[str]:
    return {name, from_windows(name)}
