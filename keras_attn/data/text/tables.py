"""Tables of texts in files: CSV, tab-separated values and JSON lines, by column.

Every error names the file and the line.
"""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_attn.file_reading import MIB, check_file, parse_json, read_text, shown

_MAX_BYTES = 4096 * MIB
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = (".jsonl", ".ndjson", ".json")


def read_columns(
    path: str | os.PathLike, columns: Sequence[str]
) -> Iterator[tuple[str, list[Any]]]:
    """The given columns of a table, line by line.

    Args:
        path: A UTF-8 file: `.csv` or `.tsv`, quoted as in RFC 4180, whose first line
            names the columns; or `.jsonl`, `.ndjson` or `.json` with one JSON object
            per line. Empty lines are left out.
        columns: Names of the columns, or keys of the objects. Others are left out.

    Yields:
        A label, which names the file and the line, and the values: strings in a CSV
        file, any value of JSON otherwise.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If its name ends otherwise, it is not UTF-8, a column is missing, or
            a line is not as described.
    """
    path = Path(path)
    if _delimiter(path) is None:
        yield from _json_lines(path, columns)
    else:
        yield from _csv_rows(path, columns)


def column_names(path: str | os.PathLike) -> list[str]:
    """The names of a table's columns: its first line, or the keys of its first object.

    Args:
        path: As of `read_columns`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: As `read_columns`; or if the file is empty.
    """
    path = Path(path)
    for found in _names_by_line(path):
        return found
    raise ValueError(
        f"{path.name} must name its columns in its first line. "
        f"Received: {str(path)!r}, which is empty"
    )


def check_text(value: Any, name: str, label: str, *, may_be_empty=False) -> str:
    """Returns a text of a table.

    Args:
        value: What was read.
        name: Its column, for the message.
        label: Its file and line.
        may_be_empty: Whether white space alone is allowed.

    Raises:
        ValueError: If it is not a text, or empty.
    """
    if not isinstance(value, str) or not (may_be_empty or value.strip()):
        kind = "a text" if may_be_empty else "a text that is not empty"
        raise ValueError(
            f"`{name}` must be {kind}. Received: {shown(value)} in {label}"
        )
    return value


def _delimiter(path: Path) -> str | None:
    """What separates the fields of a line; None for lines of JSON."""
    check_file(path)
    suffix = path.suffix.lower()
    if suffix not in (*_DELIMITERS, *_JSON_LINES):
        raise ValueError(
            f"A table must end in one of {[*_DELIMITERS, *_JSON_LINES]}. "
            f"Received: {str(path)!r}"
        )
    return _DELIMITERS.get(suffix)


def _names_by_line(path):
    """The columns of each line of a table."""
    if _delimiter(path) is None:
        for _, found in _json_objects(path):
            yield list(found)
    else:
        for _, fields in _csv_lines(path):
            yield fields


def _json_objects(path):
    # Not `splitlines`: a text may have a Unicode line separator.
    for number, line in enumerate(read_text(path, _MAX_BYTES).split("\n"), 1):
        if not line.strip():
            continue
        label = f"{path.name}, line {number}"
        try:
            yield label, parse_json(line.encode(), path, unique_keys=True)
        except ValueError as error:
            raise ValueError(
                f"Every line must be one JSON object. Received: {label}: {error}"
            ) from error


def _json_lines(path, columns):
    for label, found in _json_objects(path):
        missing = [name for name in columns if name not in found]
        if missing:
            raise ValueError(
                f"Every object must have {list(columns)}. Received: {label} without "
                f"{missing}, with {shown(list(found))}"
            )
        yield label, [found[name] for name in columns]


def _csv_lines(path):
    """The fields of each line that is not empty, with its label."""
    # Spreadsheets write a byte-order mark.
    text = read_text(path, _MAX_BYTES).removeprefix("\ufeff")
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=_delimiter(path) or ",", strict=True
    )
    begin = 1
    try:
        for row in reader:
            label = f"{path.name}, line {begin}"
            begin = reader.line_num + 1
            if row:
                yield label, row
    except csv.Error as error:
        raise ValueError(
            "The file must be quoted as in RFC 4180. "
            f"Received: {path.name}, line {begin}: {error}"
        ) from error


def _csv_rows(path, columns):
    header: list[str] | None = None
    for label, row in _csv_lines(path):
        if header is None:
            header = row
            missing = [name for name in columns if name not in header]
            if missing:
                raise ValueError(
                    f"The first line must name the columns {list(columns)}. "
                    f"Received: {label} without {missing}, with {shown(header)}"
                )
            continue
        if len(row) != len(header):
            raise ValueError(
                f"Every line must have {len(header)} fields, as the first. "
                f"Received: {label} with {len(row)}"
            )
        yield label, [row[header.index(name)] for name in columns]
