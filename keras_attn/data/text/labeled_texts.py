"""Reads texts, or pairs of texts, with a class or a score each, from tables."""

import math
import os
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from keras_attn.data.pipelines.class_names import check_class_names, same_but_for_case
from keras_attn.data.text.tables import check_text, read_columns
from keras_attn.files.reading import shown

# 3,5 and 1.250,75; and 1,250, which is 1250 or 1.25.
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")
# What libraries of tables write for a missing number.
_MISSING = ("nan", "na", "n/a", "<na>", "null", "none", "inf", "-inf", "infinity")
_MAYBE_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


@dataclass(frozen=True)
class LabeledTexts:
    """N texts, or pairs of texts, with a label each.

    Attributes:
        texts: N texts, or the first text of each pair.
        second_texts: The second text of each pair; None for single texts.
        labels: N labels as they are written in the file.
        rows: File and line of each, for messages.
        label_column: Column of the labels, for messages.
    """

    texts: list[str]
    second_texts: list[str] | None
    labels: list[str]
    rows: list[str]
    label_column: str = "label"

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def rows_of_texts(self) -> list[tuple[str, ...]]:
        """The text, or the two texts, of each row."""
        second = [] if self.second_texts is None else [self.second_texts]
        return list(zip(self.texts, *second, strict=True))

    @property
    def class_names(self) -> list[str]:
        """The different labels: in the order of their numbers, or of the alphabet.

        Raises:
            ValueError: If two of them differ only in upper case, blanks or the form of
                a number, as 1 and 1.0.
        """
        names = set(self.labels)
        check_class_names(sorted(names), f"`{self.label_column}`", _key)
        if all(name.isascii() and name.isdigit() for name in names):
            return sorted(names, key=int)
        return sorted(names)

    @property
    def are_scores(self) -> bool:
        """Whether all labels are numbers, and not all of them whole.

        Raises:
            ValueError: As `scores`, if a comma is in all of them.
        """
        numbers = [_number(label) for label in self.labels]
        if None not in numbers:
            self._check_commas()
        return None not in numbers and not all(
            number is not None and number.is_integer() for number in numbers
        )

    def classes(self, class_names: Sequence[str]) -> np.ndarray:
        """The number of each label, int32 (N,).

        Args:
            class_names: The classes in the order of their numbers.

        Raises:
            ValueError: If a label is not a class; its row is named.
        """
        numbers = {name: number for number, name in enumerate(class_names)}
        for label, row in zip(self.labels, self.rows, strict=True):
            if label not in numbers:
                raise ValueError(
                    f"`{self.label_column}` must be one of {shown(list(numbers))}. "
                    f"Received: {shown(label)} in {row}"
                )
        return np.array([numbers[label] for label in self.labels], np.int32)

    def scores(self) -> np.ndarray:
        """The labels as numbers, float32 (N,).

        A comma may stand for the decimal point, as in many countries.

        Raises:
            ValueError: If a label is not a finite number; its row is named. Or if all
                commas are where they might separate thousands: 1,250.
        """
        self._check_commas()
        numbers = [_number(label) for label in self.labels]
        if None in numbers:
            place = numbers.index(None)
            raise ValueError(
                f"`{self.label_column}` must be a finite number. "
                f"Received: {shown(self.labels[place])} in {self.rows[place]}"
            )
        return np.array(numbers, np.float32)

    def _check_commas(self) -> None:
        commas = [label for label in self.labels if "," in label]
        if commas and all(_MAYBE_THOUSANDS.fullmatch(label) for label in commas):
            raise ValueError(
                f"`{self.label_column}` must be numbers whose commas mean one thing; "
                "write 1250 or 1.250. Received: "
                f"{shown(commas[0])} in {self.rows[self.labels.index(commas[0])]}"
            )

    def subset(self, indices: Sequence[int]) -> "LabeledTexts":
        """Some of the rows.

        Args:
            indices: Of the rows, in the order to return them in.
        """
        second = self.second_texts
        return LabeledTexts(
            [self.texts[index] for index in indices],
            None if second is None else [second[index] for index in indices],
            [self.labels[index] for index in indices],
            [self.rows[index] for index in indices],
            self.label_column,
        )


def read_labeled_texts(
    path: str | os.PathLike,
    *,
    text_column: str = "text",
    second_column: str | None = None,
    label_column: str = "label",
    header: bool = True,
) -> LabeledTexts:
    r"""Reads texts with their labels.

    Args:
        path: A UTF-8 file: `.csv`, with commas or `;` between fields; `.tsv`, quoted,
            or not, as the files of GLUE; or `.jsonl` with one JSON object per line.
            `.gz` may follow. A `.tsv` without quoting has as many tabs in every line,
            and a quotation mark in a field that is not in quotation marks as a whole.
            Empty rows are left out.
        text_column: Column, or key, of the texts, or of the first text of each pair.
        second_column: Column, or key, of the second texts. None for single texts.
        label_column: Column, or key, of the labels: names of classes, or numbers.
        header: Whether the first line of a `.csv` or `.tsv` names its columns.
            Otherwise they are "1", "2", ….

    Returns:
        The rows, in the order of the file. Texts are unchanged; labels lose blanks
        around them.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is of another kind, not UTF-8, lacks a column, or has no
            rows; if a text or a label is missing. File and line are named.

    Example:
        ```python
        from pathlib import Path
        from keras_attn import data

        Path("reviews.csv").write_text("review,label\nWarm and wise.,good\nLong.,bad\n")
        reviews = data.read_labeled_texts("reviews.csv", text_column="review")
        reviews.texts, reviews.classes(reviews.class_names)  # Good is 1, bad 0.
        ```
    """
    texts = [text_column] if second_column is None else [text_column, second_column]
    rows = []
    for place, (*values, label) in read_columns(
        path, [*texts, label_column], header=header
    ):
        for name, value in zip(texts, values, strict=True):
            check_text(value, name, place)
        if isinstance(label, bool | int | float):
            label = str(label).lower() if isinstance(label, bool) else repr(label)
        check_text(label, label_column, place)
        rows.append((*values, label.strip(), place))
    if not rows:
        raise ValueError(f"The table must have rows. Received: {os.fspath(path)!r}")
    first, *second, labels, places = map(list, zip(*rows, strict=True))
    _check_missing(labels, places, label_column)
    return LabeledTexts(
        first, second[0] if second else None, labels, places, label_column
    )


def _check_missing(labels: list[str], rows: list[str], column: str) -> None:
    """Raises if all labels are numbers except some that stand for a missing one."""
    others = [place for place, label in enumerate(labels) if _number(label) is None]
    is_missing = all(labels[place].lower() in _MISSING for place in others)
    if others and len(others) < len(labels) and is_missing:
        raise ValueError(
            f"`{column}` must be a number in every row, as in most; leave out rows "
            "without one. "
            f"Received: {shown(labels[others[0]])} in {rows[others[0]]}"
        )


def _key(label: str) -> Hashable:
    """A form in which the labels of one class are equal."""
    number = _number(label)
    return same_but_for_case(label) if number is None else number


def _number(label: str) -> float | None:
    """A label as a finite number; None if it is not one."""
    if _DECIMAL_COMMA.fullmatch(label):
        label = label.replace(".", "").replace(",", ".")
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
