"""Reads data sets in the layout of Pascal VOC: one XML file of boxes per image."""

import codecs
import os
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np

from keras_attn.data.images.detection import (
    DetectionData,
    check_boxes,
    is_line,
    make_example,
)
from keras_attn.data.images.image_files import (
    check_folder,
    check_names,
    is_picture,
    read_names,
)
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.data.pipelines.class_names import check_class_names
from keras_attn.files.reading import MIB, read_bytes, shown

_MAX_XML_BYTES = 4 * MIB
_MAX_XML_DEPTH = 16
_DECLARATION = re.compile(rb"""\s*<\?xml[^>]*?encoding\s*=\s*["']([\w.:-]+)["']""")
# What tools write under the name of an older standard, as browsers read it.
_SUPERSETS = {"gb2312": "gb18030", "gbk": "gb18030", "shift-jis": "cp932"}
_SUPERSETS |= {"windows-31j": "cp932", "x-sjis": "cp932"}
_ZERO = re.compile(rb"<[xy]min>\s*0+(\.0*)?\s*</[xy]min>")
_SIDES = ("xmin", "ymin", "xmax", "ymax")


def read_voc(
    folder: str | os.PathLike,
    split: str | Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    *,
    one_based: bool = True,
    difficult: bool = True,
    on_error: str = "raise",
) -> DetectionData:
    """Reads the annotations of a folder like VOC's.

    It has `Annotations/<name>.xml`, `JPEGImages/<name>.jpg` (or another format) and
    optionally `ImageSets/<split>.txt` or `ImageSets/Main/<split>.txt`; or
    `annotations/` and `images/`, as Kaggle's; or both kinds of files themselves, as
    Roboflow's. Images are read later, by `detection_dataset`.

    Args:
        folder: The folder.
        split: "train", for example; a list of names without suffix; or None for all
            images that have annotations.
        class_names: The classes, in the order of their numbers. None takes those that
            occur in the split, sorted: pass them if a split may lack one.
        one_based: Whether pixels are counted from 1 and a box includes its last one,
            as VOC defines it: (1, 1, 1, 1) is one pixel. False takes the numbers as
            they are, as tools such as labelImg write them; see `begins_at_zero`.
        difficult: Whether objects marked as difficult are targets too.
        on_error: "raise" refuses a bad file or object. "skip" leaves it out: the
            object if it has an unknown class or no area in the image, otherwise the
            image. A warning counts them, `data.skipped` lists them.

    Returns:
        The data set. Boxes are clipped to their image; those without width or height
        are left out, a warning counts them, `data.skipped` lists them.

    Raises:
        FileNotFoundError: If the split has no file.
        ValueError: If anything is bad and `on_error="raise"` (the message names the
            file and the number of the object), or if no image is left.

    Example:
        Needs the folder of Pascal VOC:

        ```python
        from keras_attn import data

        train = data.read_voc("VOC2012", "train", on_error="skip")
        val = data.read_voc("VOC2012", "val", train.class_names, on_error="skip")
        ```

    Reference:
        Everingham et al. 2010, "The Pascal Visual Object Classes (VOC) Challenge".
    """
    skipped = Skipped(on_error)
    root = check_folder("folder", folder)
    folders = voc_folders(root) or (root / "Annotations", root / "JPEGImages")
    annotations, images = (check_folder("folder", each) for each in folders)
    parsed = {}
    for name in _names(root, annotations, split):
        with skipped.collecting(name):
            parsed[name] = _read_xml(annotations / f"{name}.xml")
    if class_names is None:
        objects = (each for tree in parsed.values() for each in tree.findall("object"))
        found = {_text(each, "name") for each in objects}
        class_names = sorted(name for name in found if name is not None)
        check_class_names(class_names, f"The objects in {str(root)!r}")
    numbers = {name: number for number, name in enumerate(class_names)}
    pictures = _list_images(images)
    examples = []
    for name, tree in parsed.items():
        try:
            image = _find_image(pictures, name, images)
            size = _size(tree, annotations / f"{name}.xml")
        except (ValueError, OSError) as error:
            skipped.add(name, error)
            continue
        objects = []
        for index, element in enumerate(tree.findall("object")):
            label = f"{name}.xml, object {index}"
            with skipped.collecting(label):
                if not difficult and _is_difficult(element, label):
                    continue
                number = _get_class(element, numbers, label)
                box = _box(element, size, one_based, label)
                if box is None:
                    skipped.leave_out(label, f"{label} has no width or no height")
                else:
                    objects.append((box, number, False, None))
        examples.append(make_example(len(examples), (name, image, size), objects))
    if not examples:
        raise ValueError(
            "`folder` must have images with annotations. Received: "
            f"folder={str(folder)!r}, split={shown(split)}"
        )
    skipped.report(f"VOC in {str(folder)!r}")
    return DetectionData(examples, list(class_names), skipped)


def voc_folders(root: Path) -> tuple[Path, Path] | None:
    """The folders of the annotations and of the images; None if it is not like VOC's.

    Args:
        root: The data set.
    """
    folders = {each.name: each for each in root.iterdir() if each.is_dir()}
    if {"Annotations", "JPEGImages"} <= set(folders):
        return folders["Annotations"], folders["JPEGImages"]
    for name in ("annotations", "Annotations"):
        for other in ("images", "Images", "JPEGImages"):
            if name in folders and other in folders and _has_xml(folders[name]):
                return folders[name], folders[other]
    if _has_xml(root) and any(is_picture(each.name) for each in root.iterdir()):
        return root, root
    return None


def _has_xml(folder: Path) -> bool:
    return next(folder.glob("*.xml"), None) is not None


def begins_at_zero(folder: Path) -> bool:
    """Whether a box begins at pixel 0, which VOC, counting from 1, does not have.

    Then all boxes are likely to be counted from 0.

    Args:
        folder: The annotations.
    """
    return any(_ZERO.search(path.read_bytes()) for path in folder.glob("*.xml"))


def _names(root: Path, annotations: Path, split) -> list[str]:
    if split is None:
        names = sorted(path.stem for path in annotations.glob("*.xml"))
        if not names:
            raise ValueError(
                "`folder` must have `Annotations/*.xml`. "
                f"Received: folder={str(root)!r}, without any"
            )
        return names
    if isinstance(split, str):
        check_names([split], "`split`")
        paths = [root / "ImageSets" / f"{split}.txt"]
        paths.append(root / "ImageSets" / "Main" / f"{split}.txt")
        return read_names(next((path for path in paths if path.is_file()), paths[0]))
    check_names(split, "`split`")
    return list(split)


def _decoded(content: bytes, path: Path) -> bytes | str:
    """Decodes a file for expat, whose only multi-byte encodings are Unicode's.

    Raises:
        ValueError: If the file is not in the encoding that it declares.
    """
    declared = _DECLARATION.match(content)
    name = declared[1].decode().lower() if declared else ""
    if content.startswith(codecs.BOM_UTF8):
        name = "utf-8-sig"  # Also if it declares another encoding.
    if name in ("", "utf-8", "utf-16", "us-ascii", "iso-8859-1"):
        return content
    try:
        return content.decode(_SUPERSETS.get(name.replace("_", "-"), name))
    except (UnicodeDecodeError, LookupError) as error:
        raise ValueError(
            f"{path.name} must be in the encoding that its first line declares. "
            f"Received: {str(path)!r}, encoding={name!r}, {error}"
        ) from error


def _read_xml(path: Path) -> Element:
    """Parses a file, refusing declarations of types or entities."""
    content = _decoded(read_bytes(path, _MAX_XML_BYTES), path)
    builder, parser = TreeBuilder(), expat.ParserCreate()
    depth = 0

    def refuse(*_):
        # Entities can grow without limit, or name other files.
        raise ValueError(
            f"{path.name} must not declare a DOCTYPE. Received: {str(path)!r}"
        )

    def start(tag, attributes):
        nonlocal depth
        depth += 1
        if depth > _MAX_XML_DEPTH:
            raise ValueError(
                f"{path.name} must be XML nested at most {_MAX_XML_DEPTH} deep. "
                f"Received: {str(path)!r}, which is deeper"
            )
        builder.start(tag, attributes)

    def end(tag):
        nonlocal depth
        depth -= 1
        builder.end(tag)

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, LookupError, UnicodeError) as error:
        raise ValueError(
            f"{path.name} must be complete, well-formed XML. Received: {str(path)!r}, "
            f"{error}"
        ) from error
    return builder.close()


def _is_difficult(element: Element, label: str) -> bool:
    text = (_text(element, "difficult") or "0").lower()
    if text not in ("0", "1", "false", "true"):
        raise ValueError(
            f"{label} must have <difficult> 0 or 1. Received: difficult={shown(text)}"
        )
    return text in ("1", "true")


def _text(element: Element, tag: str) -> str | None:
    found = element.findtext(tag)
    return found.strip() if found is not None else None


def _number(element: Element, tag: str, label: str) -> float:
    text = _text(element, tag)
    try:
        return float(text or "")
    except ValueError:
        raise ValueError(
            f"{label} must have a number in <{tag}>. Received: {tag}={shown(text)}"
        ) from None


def _size(tree: Element, path: Path) -> tuple[int, int] | None:
    """Height and width; None if they are missing or 0."""
    element = tree.find("size")
    if element is None:
        return None
    height, width = (_number(element, each, path.name) for each in ("height", "width"))
    if not all(0 <= side < 2**31 and side == int(side) for side in (height, width)):
        raise ValueError(
            f"{path.name} must have a size in whole pixels. Received: {str(path)!r}, "
            f"height={height}, width={width}"
        )
    return (int(height), int(width)) if height and width else None


def _list_images(folder: Path) -> dict[str, list[Path]]:
    """The images of a folder by their names without suffix."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if is_picture(path.name):
            found.setdefault(path.stem, []).append(path)
    return found


def _find_image(images: dict[str, list[Path]], name: str, folder: Path) -> Path:
    found = images.get(name, [])
    if not found:
        raise FileNotFoundError(
            f"`folder` has no image {name}.jpg. Received: {str(folder / name)!r}"
        )
    if len(found) > 1:
        raise ValueError(
            "`folder` must have one image of each name. Received: "
            f"{', '.join(path.name for path in found)} in {str(folder)!r}"
        )
    return found[0]


def _get_class(element: Element, numbers: dict[str, int], label: str) -> int:
    name = _text(element, "name")
    if name not in numbers:
        raise ValueError(
            f"{label} must have a class from `class_names`, {list(numbers)}. Received: "
            f"name={shown(name)}"
        )
    return numbers[name]


def _box(element: Element, size, one_based: bool, label: str) -> np.ndarray | None:
    """The corners of an object; None without width or height."""
    found = element.find("bndbox")
    if found is None:
        raise ValueError(f"{label} must have a <bndbox>. Received: none")
    box = np.array([_number(found, side, label) for side in _SIDES])
    if one_based:
        box[:2] -= 1
    if is_line(box):
        return None
    return check_boxes(box, size, label)[0]
