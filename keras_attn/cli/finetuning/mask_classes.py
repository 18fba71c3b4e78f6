"""The classes of masks and their values, from a file or the numbers that occur."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_attn.cli.finetuning.kinds import Kind
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.terminal import working
from keras_attn.data.images.geometry import IGNORED_LABEL
from keras_attn.data.images.image_files import list_images, read_label_image
from keras_attn.files.reading import read_text, shown

_BLACK_AND_WHITE = {0, 255}
# The name of values without a class, in a file of classes.
_IGNORED = "ignored"
# So many numbers up to nearly 255 are shades of gray, not classes.
_MOST_NUMBERS, _LIGHT = 64, 250
_NUMBERS_LAST = re.compile(r"(.*?\S)((?:[\s,;]+\d+){1,3})$")
_NUMBERS_FIRST = re.compile(r"((?:\d+[\s,;]+){1,3})(\D.*)$")
_HEADER = re.compile(r"name[\s,;]+r(ed)?[\s,;]+g(reen)?[\s,;]+b(lue)?$", re.IGNORECASE)


def mask_classes(
    settings: Settings, kind: Kind
) -> tuple[list[str], Mapping[Any, int] | None]:
    """The names of the classes, and the value of each in a mask.

    They are from `--classes`, from `classes.txt` in DATA, or the numbers that occur.

    Args:
        settings: The command line.
        kind: The kind of DATA.

    Raises:
        ValueError: If they are not known, or the file cannot be understood.
    """
    path = classes_file(settings)
    if path is not None:
        names, palette = _named_classes(path)
        if palette is None:
            # Of two classes, all masks; otherwise one says whether they have colors.
            most = None if len(names) == 2 else 1
            with working("Reading the masks"):
                values, is_gray = _values_of_masks(kind.masks, most)
            is_binary = len(names) == 2 and values == _BLACK_AND_WHITE
            palette = _palette(len(names), is_binary, is_gray)
        return names, palette
    with working("Reading the masks"):
        values, is_gray = _values_of_masks(kind.masks)
    if values <= _BLACK_AND_WHITE and 255 in values:
        return ["background", "foreground"], _palette(2, True, is_gray)
    numbers = values - {IGNORED_LABEL}
    if len(numbers) < 2:
        raise ValueError(
            "The masks must have two classes at least. "
            f"Received: only {sorted(values)} in {str(kind.masks)!r}"
        )
    if len(numbers) > _MOST_NUMBERS and max(numbers) > _LIGHT:
        raise ValueError(
            "Masks must have a number for each class: smooth edges, and JPEG, make "
            "shades of gray between them. Save them as PNG without, such as "
            f"`255 * (mask > 127)`. Received: {len(numbers)} numbers up to "
            f"{max(numbers)} in {str(kind.masks)!r}"
        )
    if max(numbers) >= 2 * len(numbers) + 8:
        raise ValueError(
            "--classes, a file with a line `name value` per class, must be given for "
            f"masks with these values. Received: {sorted(numbers)[:20]} in "
            f"{str(kind.masks)!r}"
        )
    count = max(numbers) + 1
    names = [str(number) for number in range(count)]
    return names, _palette(count, False, is_gray)


def _palette(count: int, is_binary: bool, is_gray: bool) -> Mapping[Any, int] | None:
    """The value of each class in masks of numbers; None = the number itself.

    Args:
        count: Number of classes.
        is_binary: Whether the numbers are 0 and 255.
        is_gray: Whether the files have one number per pixel, not three equal ones.
    """
    numbers = {0: 0, 255: 1}
    if not is_binary:
        numbers = {number: number for number in (*range(count), IGNORED_LABEL)}
    if is_gray:
        return numbers if is_binary else None
    return {(number,) * 3: label for number, label in numbers.items()}


def _values_of_masks(folder: Path, most: int | None = None) -> tuple[set[int], bool]:
    """The numbers in masks, and whether all files have one number per pixel.

    A file of colors whose red, green and blue are equal has numbers too.

    Args:
        folder: The folder of the masks.
        most: How many to read; None = all.
    """
    found: set[int] = set()
    is_gray = True
    for path in list(list_images("--masks", folder).values())[:most]:
        try:
            labels = read_label_image(path, as_colors=False)
        except ValueError as error:
            # Raises if the file is damaged, and has no colors either.
            colors = read_label_image(path, as_colors=True)
            if (colors != colors[..., :1]).any():
                raise ValueError(
                    "--classes, a file with a line `name red green blue` per class, "
                    f"must be given for masks of colors. Received: {path.name} in "
                    f"{str(folder)!r}"
                ) from error
            labels, is_gray = colors[..., 0], False
        found |= set(np.unique(labels).tolist())
    return found, is_gray


def classes_file(settings: Settings) -> Path | None:
    """The file with the classes: `--classes`, or `classes.txt` in DATA.

    Args:
        settings: The command line.
    """
    path = settings.classes or settings.data / "classes.txt"
    return path if settings.classes is not None or path.is_file() else None


def given_values(settings: Settings) -> list[list[Any]] | None:
    """The value of each class in the file of classes, for `finetuned.json`.

    Args:
        settings: The command line.

    Returns:
        Pairs of a value, or a color as a list, and a class; None if it does not say.
    """
    path = classes_file(settings)
    palette = None if path is None else _named_classes(path)[1]
    if palette is None:
        return None
    return [
        [list(value) if isinstance(value, tuple) else value, label]
        for value, label in palette.items()
    ]


def reordered(
    found: Sequence[str], palette: Mapping[Any, int] | None, names: Sequence[str]
) -> Mapping[Any, int] | None:
    """The values of classes in masks that list them in another order.

    Args:
        found: The classes in that order.
        palette: What stands for each; None = its number.
        names: The classes in the order of the model.

    Raises:
        ValueError: If they are other classes.
    """
    if list(found) == list(names):
        return palette
    if sorted(found) != sorted(names):
        raise ValueError(
            f"The masks must have the classes {shown(list(names))}. Received: "
            f"{shown(list(found))} in their own classes.txt, or --classes"
        )
    if palette is None:
        palette = {n: n for n in (*range(len(found)), IGNORED_LABEL)}
    return {
        value: label if label == IGNORED_LABEL else names.index(found[label])
        for value, label in palette.items()
    }


def _named_classes(path: Path) -> tuple[list[str], Mapping[Any, int] | None]:
    """The classes of a file: `name`, `name value` or `name red green blue`.

    CamVid's `label_colors.txt` has the numbers first, Kaggle's `class_dict.csv` has
    commas and a header. The name `ignored` is for values without a class. Two values of
    one name are one class. A line that begins with "# " is a comment.
    """
    text = read_text(path).removeprefix("\ufeff")
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line and not line.startswith("# ")]
    if lines and _HEADER.match(lines[0]):
        del lines[0]
    found = [_NUMBERS_LAST.match(line) for line in lines]
    pairs = [(x[1], x[2]) if x else (y, "") for x, y in zip(found, lines, strict=True)]
    if not any(found):
        first = [_NUMBERS_FIRST.match(line) for line in lines]
        pairs = [(x[2], x[1]) for x in first if x] if all(first) else pairs
    names: list[str] = []
    palette: dict[Any, int] = {}
    for text, numbers in pairs:
        name = " ".join(text.split())
        value = tuple(map(int, re.findall(r"\d+", numbers)))
        if len(value) == 2:
            raise ValueError(
                "A line of --classes must be a name, and the number or the three "
                f"numbers of its color in the masks. Received: {name!r} "
                f"with {list(value)} in {path.name}"
            )
        is_class = name != _IGNORED or not value
        if is_class and not (value and name in names):
            names.append(name)
        if value:
            key = value if len(value) == 3 else value[0]
            if key in palette:
                raise ValueError(
                    "Each value of --classes must stand for one class. Received: "
                    f"{key} twice in {path.name}"
                )
            palette[key] = names.index(name) if is_class else IGNORED_LABEL
    with_values = sum(bool(numbers) for _, numbers in pairs)
    if len(names) < 2 or with_values not in (0, len(pairs)):
        raise ValueError(
            "--classes must have two classes at least, and all of them or none with "
            f"their values. Received: {len(names)} classes and {with_values} values "
            f"in {str(path)!r}"
        )
    return names, palette or None
