"""Finds images and classes of a YOLO data set: `data.yaml` or folders.

Of YAML what such files consist of is read: keys with text, lists and mappings of text.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_attn.data.images.image_files import from_windows
from keras_attn.data.images.split_names import SPLITS
from keras_attn.files.reading import MIB, read_text, shown

YAML_SUFFIXES = (".yaml", ".yml")
_IMAGES, _LABELS = "images", "labels"
_NAME_FILES = ("classes.txt", "obj.names", "labels/classes.txt")
_MAX_BYTES = 4 * MIB
_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s:#'"\[{-][^:#]*?)\s*:(?:\s+(.*))?$""")
# A `#` in quotation marks begins no comment.
_COMMENT = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*')|(?:^|\s)#.*""")
_ITEM = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,\[\]{}]*?)\s*(,|$)""")


@dataclass(frozen=True)
class YoloLayout:
    """A YOLO data set before its labels are read.

    Attributes:
        path: `data.yaml`, or the folder if there is none.
        class_names: Name of each class; none if nothing says them.
        splits: For "train", "val" and "test" folders of images, or text files that
            name images; only of those that there are. Without splits, "" is all.
        has_keypoints: Whether keypoints follow the box in a line.
    """

    path: Path
    class_names: list[str]
    splits: dict[str, list[Path]]
    has_keypoints: bool = False


def find_yolo(path: Path) -> YoloLayout | None:
    """The layout of a folder or a `data.yaml`; None if it is not YOLO's.

    Raises:
        ValueError: If it is YOLO's, but cannot be read. The message says why.
    """
    if path.is_file():
        return _of_yaml(path) if path.suffix.lower() in YAML_SUFFIXES else None
    files = [x for x in sorted(path.iterdir()) if x.suffix.lower() in YAML_SUFFIXES]
    files = [each for each in files if _is_data(each)]
    if len(files) > 1:
        raise ValueError(
            "A YOLO folder must have one file like data.yaml: pass its path. Received: "
            f"{str(path)!r} with {', '.join(each.name for each in files)}"
        )
    return _of_yaml(files[0]) if files else _of_folders(path)


def get_label_file(image: Path) -> Path:
    """The file with the boxes of an image: `labels/` for the last `images/`, or beside.

    Args:
        image: The image.
    """
    parts = list(image.parent.parts)
    name = f"{image.stem}.txt"
    if _IMAGES in parts:
        place = len(parts) - 1 - parts[::-1].index(_IMAGES)
        parts[place] = _LABELS
        folder = Path(*parts)
        if folder.is_dir():
            return folder / name
    return image.parent / name


def yolo_folders(path: Path) -> list[Path]:
    """The folders of images and labels of a `data.yaml`, and its lists of images.

    Args:
        path: The file.
    """
    layout = find_yolo(path)
    splits = {} if layout is None else layout.splits
    places = [place for places in splits.values() for place in places]
    labels = [get_label_file(x / "any.jpg").parent for x in places if x.is_dir()]
    return list(dict.fromkeys([*places, *labels]))


def _is_data(path: Path) -> bool:
    """Whether a YAML file names images and classes."""
    found = {match[1] for match in map(_KEY.match, _lines(path)) if match}
    return bool(found & {"train", "val"}) and bool(found & {"names", "nc"})


def _lines(path: Path) -> list[str]:
    return [_uncommented(line) for line in _plain_lines(path)]


def _plain_lines(path: Path) -> list[str]:
    return read_text(path, _MAX_BYTES).removeprefix("\ufeff").splitlines()


def _uncommented(line: str) -> str:
    return _COMMENT.sub(lambda match: match[1] or "", line).rstrip()


def _of_yaml(path: Path) -> YoloLayout:
    content = _read_yaml(path)
    base = path.parent
    bases = [base]
    if isinstance(content.get("path"), str) and content["path"]:
        bases.insert(0, base / content["path"])
    splits = {}
    for split, keys in SPLITS.items():
        given = next((content[key] for key in keys if content.get(key)), None)
        if given is not None:
            places = given if isinstance(given, list) else [given]
            splits[split] = [_place(str(each), bases, path, split) for each in places]
    if "train" not in splits:
        raise ValueError(
            f"{path.name} must say where the training images are, `train: …`. "
            f"Received: {str(path)!r} with {shown(sorted(content))}"
        )
    return YoloLayout(path, _names(content, path), splits, "kpt_shape" in content)


def _place(given: str, bases: Sequence[Path], path: Path, split: str) -> Path:
    """A folder or a list of images.

    Roboflow writes one `../` too many.
    """
    slashed = from_windows(given)
    ways = [given, given.removeprefix("../"), slashed, slashed.removeprefix("../")]
    places = [base / each for each in dict.fromkeys(ways) for base in bases]
    for place in places:
        if place.exists():
            return place
    tried = ", ".join(dict.fromkeys(map(str, places)))
    raise ValueError(
        f"`{split}` in {path.name} must be a folder of images, or a file that lists "
        f"them. Received: {str(path)!r}, {split}={given!r}; there is none of {tried}"
    )


def _names(content: dict[str, Any], path: Path) -> list[str]:
    found, count = content.get("names"), content.get("nc")
    if isinstance(found, dict):
        numbers = sorted(int(key) if key.isdigit() else -1 for key in found)
        if numbers != list(range(len(numbers))):
            raise ValueError(
                f"`names` in {path.name} must have the numbers from 0 on. Received: "
                f"{str(path)!r}, names={shown(found)}"
            )
        found = [found[key] for key in sorted(found, key=int)]
    if found is None and isinstance(count, str) and count.isdigit():
        found = [f"class_{number}" for number in range(int(count))]
    if not isinstance(found, list) or not found or not all(found):
        raise ValueError(
            f"{path.name} must name the classes, `names: [cat, dog]`. Received: "
            f"{str(path)!r}, names={shown(found)}"
        )
    if count is not None and count != str(len(found)):
        raise ValueError(
            f"{path.name} must have `nc` names. Received: {str(path)!r}, nc={count}, "
            f"{len(found)} names"
        )
    return found


def _of_folders(path: Path) -> YoloLayout | None:
    """A folder without a YAML file, by the text files in `labels`."""
    splits: dict[str, list[Path]] = {}
    for split, names in SPLITS.items():
        for name in names:
            for images, labels in (
                (path / name / _IMAGES, path / name / _LABELS),
                (path / _IMAGES / name, path / _LABELS / name),
            ):
                if images.is_dir() and _has_labels(labels):
                    splits.setdefault(split, []).append(images)
    if not splits and (path / _IMAGES).is_dir() and _has_labels(path / _LABELS):
        splits[""] = [path / _IMAGES]
    if not splits:
        return None
    return YoloLayout(path, _names_beside(path), splits)


def _names_beside(path: Path) -> list[str]:
    """The classes of a folder without a YAML file, or of the one that it is in."""
    for root in (path, path.parent):
        for name in _NAME_FILES:
            if (root / name).is_file():
                lines = (line.strip() for line in _plain_lines(root / name))
                return [line for line in lines if line]
    files = [x for x in path.parent.iterdir() if x.suffix.lower() in YAML_SUFFIXES]
    files = [each for each in files if each.is_file() and _is_data(each)]
    return _names(_read_yaml(files[0]), files[0]) if len(files) == 1 else []


def _has_labels(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    return any(each.name != "classes.txt" for each in folder.glob("*.txt"))


def _read_yaml(path: Path) -> dict[str, Any]:
    """The keys of a file, with text, a list of texts or a mapping of texts.

    Keys with anything else are left out.
    """
    found: dict[str, Any] = {}
    for key, value, inner in _entries(_lines(path)):
        text = " ".join([value, *(line.strip() for line in inner)]).strip()
        if value[:1] in ("[", "{"):
            found[key] = _flow(text, key, path)
        elif value[:1] in ("|", ">"):
            continue
        elif not inner:
            found[key] = _text(value)
        elif not value and all(line.lstrip().startswith("- ") for line in inner):
            found[key] = [_text(line.lstrip()[2:]) for line in inner]
        else:
            pairs = [_KEY.match(line.strip()) for line in inner]
            found[key] = {_text(x[1]): _text(x[2] or "") for x in pairs if x}
    return found


def _entries(lines: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Each key at the beginning of a line, its value, and the lines under it."""
    key, value = "", ""
    inner: list[str] = []
    for line in lines:
        match = None if line[:1] in (" ", "\t", "-") else _KEY.match(line)
        if match is None:
            inner += [line] if line.strip() and line.strip() != "---" else []
            continue
        if key:
            yield key, value, inner
        key, value, inner = _text(match[1]), (match[2] or "").strip(), []
    if key:
        yield key, value, inner


def _flow(text: str, key: str, path: Path) -> Any:
    """`[a, b]` or `{0: a, 1: b}`."""
    closing = {"[": "]", "{": "}"}[text[0]]
    error = ValueError(
        f"`{key}` in {path.name} must be a list, such as [a, b]. Received: "
        f"{str(path)!r}, {key}: {shown(text)}"
    )
    if not text.endswith(closing):
        raise error
    inside, items, place = text[1:-1].strip(), [], 0
    while place < len(inside):
        match = _ITEM.match(inside, place)
        if match is None:
            raise error
        items.append(match[1])
        place = match.end()
    if closing == "]":
        return [_text(item) for item in items if item]
    pairs = [_KEY.match(item) for item in items if item]
    return {_text(x[1]): _text(x[2] or "") for x in pairs if x}


def _text(value: str) -> str:
    """A text without quotation marks."""
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(value))
        except ValueError:
            return value[1:-1]
    return "" if value in ("~", "null") else value
