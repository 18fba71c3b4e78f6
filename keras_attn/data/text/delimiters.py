"""Rows of quoted tables, and what is between their fields."""

import csv
import io
import re
from collections.abc import Iterator

# Of a field; Python's limit is 131,072.
_MAX_CHARACTERS = 2**31 - 1
# What spreadsheets write between fields where a comma belongs to numbers.
_OTHER_DELIMITERS = (";", "\t", "|")
# Excel's first line, which says what is between the fields.
_SEPARATOR_LINE = re.compile(r"sep=([,;\t|])\r?\n", re.IGNORECASE)


def quoted_rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a text, each with the number of its last line.

    Args:
        text: Quoted as in RFC 4180.
        delimiter: What is between the fields.

    Raises:
        csv.Error: If a quotation mark is wrong.
    """
    limit = csv.field_size_limit(_MAX_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    finally:
        csv.field_size_limit(limit)


def unless_blank(row: list[str]) -> list[str]:
    """A row, or none if all of its fields are blank.

    Args:
        row: The fields.
    """
    return row if any(field.strip() for field in row) else []


def find_delimiter(text: str, usual: str) -> tuple[str, int]:
    """The delimiter of a text's fields, and where its first line begins.

    Args:
        text: Of the file.
        usual: What the suffix of the file says; a comma may be something else.
    """
    said = _SEPARATOR_LINE.match(text)
    if said:
        return said[1], said.end()
    if usual != ",":
        return usual, 0
    first = {each: _first_width(text, each) for each in (usual, *_OTHER_DELIMITERS)}
    others = [each for each in _OTHER_DELIMITERS if first[each] > 1]
    if not others:
        return usual, 0
    is_even = _is_even(text, usual)
    if first[usual] > 1 and is_even:
        return usual, 0
    even = [each for each in others if _is_even(text, each)]
    if not even and first[usual] == 1 and not is_even:
        return others[0], 0  # One of its lines is bad, which the reader says.
    return even[0] if even else usual, 0


def _first_width(text: str, delimiter: str) -> int:
    """The number of fields in the first row."""
    try:
        return next((len(row) for _, row in quoted_rows(text, delimiter) if row), 0)
    except csv.Error:
        return 0


def _is_even(text: str, delimiter: str) -> bool:
    """Whether all rows have as many fields."""
    try:
        rows = (unless_blank(row) for _, row in quoted_rows(text, delimiter))
        return len({len(row) for row in rows if row}) == 1
    except csv.Error:
        return False
