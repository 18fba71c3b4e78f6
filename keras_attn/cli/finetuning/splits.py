"""Whether training and validation data are apart: same files, same contents, rows."""

import functools
import hashlib
import os
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from keras_attn.cli.finetuning.job import shortened_names
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.data.text.tables import empty_rows
from keras_attn.files.reading import read_bytes

_END = 4096
_MAX_BYTES = 2**30


def check_apart(
    settings: Settings,
    train: Sequence[Path],
    validation: Sequence[Path],
    *,
    are_held_out: bool,
    is_asked_for: bool = False,
) -> list[str]:
    """Checks that no image is in both splits.

    Args:
        settings: The command line; a `--validation` that is DATA asks for it.
        train: The files to train on.
        validation: The files to validate on.
        are_held_out: Whether they are a part of DATA chosen at random, where a link to
            another image only counts as the same content.
        is_asked_for: Whether the data set itself names one folder for both.

    Returns:
        Notes for the user: how many files have the same content.

    Raises:
        ValueError: If a file is in both splits.
    """
    ours = {path.resolve() for path in train}
    both = [path for path in validation if path.resolve() in ours]
    is_asked_for |= are_held_out or _is_same_data(settings)
    if both and not is_asked_for:
        raise ValueError(
            "The images to validate on must not be those to train on; see "
            "--validation, --images and --validation-images. Received: the same file "
            f"for both {len(both):,} times, first {str(both[0])!r}"
        )
    return _repeated(_count_same(train, validation), len(validation), "images")


def repeated_rows(
    train: Sequence[Hashable], validation: Sequence[Hashable], what: str = "rows"
) -> list[str]:
    """Counts rows to validate on that are also training rows.

    Args:
        train: What a model reads of each row.
        validation: The same of the rows to validate on.
        what: What they are called.

    Returns:
        Notes for the user.
    """
    known = set(train)
    return _repeated(sum(row in known for row in validation), len(validation), what)


def left_out_rows(settings: Settings) -> list[str]:
    """Notes on the empty rows of the tables.

    Args:
        settings: The command line.
    """
    notes = []
    for path in dict.fromkeys((settings.data, settings.validation)):
        found = [] if path is None else empty_rows(path, header=settings.header)
        if found:
            what = "empty row" if len(found) == 1 else "empty rows"
            notes.append(f"left out: {len(found):,} {what}, first {found[0]}")
    return notes


def without_examples(
    names: Sequence[str], classes: np.ndarray, purpose: str = "validate"
) -> list[str]:
    """A note on the classes that a split lacks.

    Args:
        names: Name of each class.
        classes: The classes of the examples of the split.
        purpose: "train" or "validate".
    """
    counts = np.bincount(classes, minlength=len(names))
    missing = [name for name, count in zip(names, counts, strict=True) if not count]
    if not missing:
        return []
    return [f"no example to {purpose} on of: {shortened_names(missing)}"]


def in_two_classes(paths: Sequence[Path], classes: Sequence[int]) -> list[str]:
    """A note on images whose content is in two classes, as from unclear labels.

    Args:
        paths: The files.
        classes: The class of each.
    """
    groups: dict[tuple[int, bytes], list[int]] = {}
    sizes = Counter(_size(path) for path in paths)
    for row, path in enumerate(paths):
        if sizes[_size(path)] > 1 and path.is_file():
            groups.setdefault(_key(path), []).append(row)
    found: dict[bytes, list[int]] = {}
    for rows in groups.values():
        for row in rows if len({classes[each] for each in rows}) > 1 else []:
            found.setdefault(_digest(paths[row]), []).append(row)
    double = [x for x in found.values() if len({classes[each] for each in x}) > 1]
    if not double:
        return []
    first = " and ".join(str(paths[row]) for row in double[0][:2])
    return [f"{len(double):,} images are in two classes, such as {first}"]


def _is_same_data(settings: Settings) -> bool:
    """Whether `--validation` is DATA."""
    other = settings.validation
    return other is not None and other.resolve() == settings.data.resolve()


def _repeated(count: int, total: int, what: str) -> list[str]:
    """A note that so many of the validation data are also training data."""
    if not count:
        return []
    return [f"{count:,} of {total:,} {what} to validate on are also training {what}"]


def _count_same(train: Sequence[Path], validation: Sequence[Path]) -> int:
    """The number of validation files whose content a training file has too.

    Few files are read as a whole: only those of one size that end in the same way.
    """
    by_key: dict[tuple[int, bytes], list[Path]] = {}
    # A file that is missing is refused when it is read.
    sizes = {_size(path) for path in validation} - {None}
    for path in train:
        if _size(path) in sizes:
            by_key.setdefault(_key(path), []).append(path)
    digest = functools.cache(_digest)
    count = 0
    for path in validation:
        others = by_key.get(_key(path), []) if path.is_file() else []
        count += any(digest(path) == digest(other) for other in others)
    return count


def _digest(path: Path) -> bytes:
    return hashlib.sha256(read_bytes(path, _MAX_BYTES)).digest()


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _key(path: Path) -> tuple[int, bytes]:
    """The size of a file and a digest of its end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END))
        return size, hashlib.sha256(file.read()).digest()
