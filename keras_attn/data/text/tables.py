"""Tables of texts in files: CSV, tab-separated values and JSON lines, by column.

Every error names the file and the line.
"""

import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_attn.files.reading import (
    MIB,
    check_file,
    parse_json,
    parse_json_list,
    read_gzip,
    read_text,
    shown,
    utf8,
)

_MAX_BYTES = 4096 * MIB
# Of a list of objects, commas in its texts included.
_MAX_ENTRIES = 30_000_000
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = (".jsonl", ".ndjson", ".json")
TABLE_SUFFIXES = (*_DELIMITERS, *_JSON_LINES)
_GZIP = ".gz"
# A whole field in quotation marks, in which a quotation mark is doubled.
_QUOTED_FIELD = re.compile(r'(?:(?<=[\t\n])|\A)"[^"]*(?:""[^"]*)*"(?=[\t\r\n]|\Z)')
# Of a field; Python's limit is 131,072.
_MAX_CHARACTERS = 2**31 - 1
# What spreadsheets write between fields where a comma belongs to numbers.
_OTHER_DELIMITERS = (";", "\t", "|")
# Excel's first line, which says what is between the fields.
_SEPARATOR_LINE = re.compile(r"sep=([,;\t|])\r?\n", re.IGNORECASE)


def is_table(path: str | os.PathLike) -> bool:
    """Whether a file has the suffix of a table, with `.gz` after it or not."""
    return _suffix(Path(path)) in TABLE_SUFFIXES


def read_columns(
    path: str | os.PathLike, columns: Sequence[str], *, header: bool = True
) -> Iterator[tuple[str, list[Any]]]:
    """The given columns of a table, line by line.

    The fields of a `.csv` have commas between them; or `;`, tabs or `|`, if with commas
    its first line is one field, or if only they give all lines as many fields. It is
    quoted as in RFC 4180. So is a `.tsv` in which each field that has a
    quotation mark is in quotation marks as a whole, with those inside doubled, as
    pandas writes it. If one is not, and all lines have the same number of tabs, a
    quotation mark is a letter, as in the files of GLUE: each line is a row. It is a
    letter, too, if quoting would join lines that have all their fields already.

    Args:
        path: A UTF-8 file: `.csv` or `.tsv`; or `.jsonl`, `.ndjson` or `.json` with one
            JSON object per line; or `.json` with a list of objects. `.gz` may follow.
            Empty rows, of blanks and delimiters, are left out: see `empty_rows`.
        columns: Names of the columns, or keys of the objects. Others are left out.
        header: Whether the first line of a `.csv` or `.tsv` names the columns.
            Otherwise their names are "1", "2", ….

    Yields:
        A label, which names the file and the line, and the values: strings in a CSV
        file, any value of JSON otherwise.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If its name ends otherwise, it is not UTF-8, a column is missing, or
            a line is not as described.
    """
    path = Path(path)
    if _delimiter(path, header) is None:
        yield from _json_lines(path, columns)
    else:
        yield from _csv_rows(path, columns, header)


def column_names(path: str | os.PathLike, *, header: bool = True) -> list[str]:
    """The names of a table's columns: its first line, or the keys of its first object.

    Args:
        path: As of `read_columns`.
        header: As of `read_columns`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: As `read_columns`; or if the file is empty.
    """
    path = Path(path)
    for _, found in _lines_with_names(path, header):
        if found:
            return list(found) if header else _numbered(found)
    raise ValueError(
        f"{path.name} must name its columns in its first line. "
        f"Received: {str(path)!r}, which is empty"
    )


def read_all_columns(
    path: str | os.PathLike, *, header: bool = True
) -> Iterator[tuple[str, dict[str, Any]]]:
    """All columns of a table, line by line, empty rows included.

    Args:
        path: As of `read_columns`.
        header: As of `read_columns`.

    Yields:
        A label, which names the file and the line, and the values by the names of their
        columns; none for an empty row. A name that is there twice gets a number.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: As `read_columns`.
    """
    path = Path(path)
    if _delimiter(path, header) is None:
        for label, found in _json_objects(path):
            yield label, found or {}
        return
    names: list[str] | None = None
    for label, row in _csv_lines(path):
        if names is None and row:
            names = _unique_names(row) if header else _numbered(row)
            if header:
                continue
        if names is not None:
            row = _checked(row, names, label, header)
            yield label, dict(zip(names, row, strict=False))
        elif not header:
            yield label, {}


def empty_rows(path: str | os.PathLike, *, header: bool = True) -> list[str]:
    """The rows that `read_columns` leaves out: file and line of each.

    Args:
        path: As of `read_columns`.
        header: As of `read_columns`.
    """
    return [label for label, row in _lines_with_names(Path(path), header) if not row]


def get_delimiter(path: str | os.PathLike) -> str | None:
    """The delimiter of a table; None for lines of JSON.

    Args:
        path: As of `read_columns`.
    """
    path = Path(path)
    found = _delimiter(path, True)
    return found if found is None else _find_delimiter(_read(path), found)[0]


def check_text(value: Any, name: str, label: str, *, may_be_empty=False) -> str:
    """Returns a text of a table.

    Args:
        value: What was read.
        name: Its column, for the message.
        label: Its file and line.
        may_be_empty: Whether only white space is allowed.

    Raises:
        ValueError: If it is not a text, or empty.
    """
    if not isinstance(value, str) or not (may_be_empty or value.strip()):
        kind = "a text" if may_be_empty else "a text that is not empty"
        raise ValueError(
            f"`{name}` must be {kind}. Received: {shown(value)} in {label}"
        )
    return value


def _suffix(path: Path) -> str:
    """The suffix of the name, without `.gz`."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix == _GZIP else suffix


def _delimiter(path: Path, header: bool) -> str | None:
    """The delimiter of a line; None for lines of JSON."""
    check_file(path)
    suffix = _suffix(path)
    if suffix not in TABLE_SUFFIXES:
        raise ValueError(
            f"A table must end in one of {list(TABLE_SUFFIXES)}, with .gz after it or "
            f"without. Received: {str(path)!r}"
        )
    if suffix in _JSON_LINES and not header:
        raise ValueError(
            "A table without a header must be .csv or .tsv; JSON names the columns in "
            f"every line. Received: {str(path)!r}"
        )
    return _DELIMITERS.get(suffix)


def _read(path: Path) -> str:
    if path.suffix.lower() == _GZIP:
        text = utf8(read_gzip(path, _MAX_BYTES), path)
    else:
        text = read_text(path, _MAX_BYTES)
    return text.removeprefix("\ufeff")  # The byte-order mark of spreadsheets.


def _numbered(fields: Sequence[str]) -> list[str]:
    return [str(number) for number in range(1, len(fields) + 1)]


def _unique_names(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            unique, number = f"{name}.{number}", number + 1
        found.append(unique)
    return found


def _lines_with_names(path: Path, header: bool) -> Iterator[tuple[str, Sequence[Any]]]:
    """Each line of a table with its fields, or its keys; none in an empty one."""
    if _delimiter(path, header) is None:
        for label, found in _json_objects(path):
            yield label, list(found or ())
    else:
        yield from _csv_lines(path)


def _json_objects(path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The object of each line; None for an empty line."""
    text = _read(path)
    if _suffix(path) == ".json" and text.lstrip().startswith("["):
        found = parse_json_list(text.encode(), path, _MAX_ENTRIES, unique_keys=True)
        for number, value in enumerate(found, 1):
            label = f"{path.name}, object {number}"
            if not isinstance(value, dict):
                raise ValueError(
                    "A list must be one of JSON objects. "
                    f"Received: {label}: {shown(value)}"
                )
            yield label, value
        return
    # Not `splitlines`: a text may have a Unicode line separator.
    lines = text.split("\n")
    for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
        label = f"{path.name}, line {number}"
        if not line.strip():
            yield label, None
            continue
        try:
            yield label, parse_json(line.encode(), path, unique_keys=True)
        except ValueError as error:
            raise ValueError(
                f"Every line must be one JSON object. Received: {label}: {error}"
            ) from error


def _json_lines(path, columns):
    for label, found in _json_objects(path):
        if found is None:
            continue
        missing = [name for name in columns if name not in found]
        if missing:
            raise ValueError(
                f"Every object must have {list(columns)}. Received: {label} without "
                f"{missing}, with {shown(list(found))}"
            )
        yield label, [found[name] for name in columns]


def _csv_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The fields of each line, with its label; none if all of them are blank."""
    text = _read(path)
    delimiter, start = _find_delimiter(text, _DELIMITERS[_suffix(path)])
    before = text.count("\n", 0, start)
    if delimiter == "\t" and '"' in text and _is_unquoted(text[start:]):
        lines = text[start:].split("\n")
        for number, line in enumerate(lines if lines[-1] else lines[:-1], before + 1):
            yield f"{path.name}, line {number}", _unless_blank(_fields(line))
        return
    begin = before + 1
    try:
        for number, row in _quoted_rows(text[start:], delimiter):
            label = f"{path.name}, line {begin}"
            begin = before + number + 1
            yield label, _unless_blank(row)
    except csv.Error as error:
        is_tabbed = delimiter == "\t"
        raise ValueError(
            "The file must be quoted as in RFC 4180"
            + (", or have as many tabs in every line" if is_tabbed else "")
            + f". Received: {path.name}, line {begin}: {error}"
            + (_uneven(text) if is_tabbed else "")
        ) from error


def _quoted_rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
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


def _unless_blank(row: list[str]) -> list[str]:
    """A row, or none if all of its fields are blank.

    Args:
        row: The fields.
    """
    return row if any(field.strip() for field in row) else []


def _find_delimiter(text: str, usual: str) -> tuple[str, int]:
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
        return next((len(row) for _, row in _quoted_rows(text, delimiter) if row), 0)
    except csv.Error:
        return 0


def _is_even(text: str, delimiter: str) -> bool:
    """Whether all rows have as many fields."""
    try:
        rows = (_unless_blank(row) for _, row in _quoted_rows(text, delimiter))
        return len({len(row) for row in rows if row}) == 1
    except csv.Error:
        return False


def _fields(line: str) -> list[str]:
    """The fields of a line without quoting."""
    return line.removesuffix("\r").split("\t")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers.

    Not by `splitlines`: a text may have a Unicode line separator.
    """
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line:
            yield number, line


def _is_unquoted(text: str) -> bool:
    """Whether the quotation marks of tab-separated values are letters."""
    if len({line.count("\t") for _, line in _lines(text)}) != 1:
        return False
    quoted = _QUOTED_FIELD.sub("x", text)
    counts = {line.count("\t") for _, line in _lines(quoted)}
    if '"' in quoted or len(counts) != 1:
        return True
    # The text of a single column may have lines.
    return counts != {0} and quoted.count("\n") != text.count("\n")


def _uneven(text: str) -> str:
    """Why the lines are not rows without quoting."""
    counts = [(number, line.count("\t") + 1) for number, line in _lines(text)]
    (_, first), *_ = counts
    for number, count in counts:
        if count != first:
            return f"; without quoting, line {number} has {count} fields, not {first}"
    return ""


def _csv_rows(path: Path, columns: Sequence[str], header: bool):
    names: list[str] | None = None
    for label, row in _csv_lines(path):
        if not row:
            continue
        if names is None:
            names = row if header else _numbered(row)
            missing = [name for name in columns if name not in names]
            if missing:
                raise ValueError(
                    f"The first line must name the columns {list(columns)}. "
                    f"Received: {label} without {missing}, with {shown(names)}"
                )
            double = [name for name in columns if names.count(name) > 1]
            if double:
                raise ValueError(
                    f"The first line must name each of the columns {list(columns)} "
                    f"once. Received: {label} with {shown(names)}"
                )
            if header:
                continue
        row = _checked(row, names, label, header)
        yield label, [row[names.index(name)] for name in columns]


def _checked(
    row: list[str], names: Sequence[str], label: str, header: bool
) -> list[str]:
    """A row, which is empty or has a field for each column."""
    if header and row == names and len(names) > 1:
        raise ValueError(
            "A table must name its columns only once; were two files joined? Leave the "
            f"line out. Received: {label} with {shown(row)}"
        )
    if row and len(row) != len(names):
        raise ValueError(
            f"Every line must have {len(names)} fields, as the first. "
            f"Received: {label} with {len(row)}"
        )
    return row
