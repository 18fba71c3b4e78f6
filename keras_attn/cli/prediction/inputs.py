"""Inputs to predict from: texts or images in files, folders and standard input."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_attn.cli.terminal import note
from keras_attn.data.images.image_files import IMAGE_SUFFIXES, find_pictures, is_picture
from keras_attn.data.images.unused_files import unused_files
from keras_attn.data.text.tables import (
    TABLE_SUFFIXES,
    check_text,
    column_names,
    is_table,
    read_all_columns,
)
from keras_attn.files.reading import read_text, shown

STDIN = "-"


@dataclass(frozen=True)
class TextRow:
    """A text, or several that belong together.

    Attributes:
        label: File and line, for messages.
        texts: The texts by the names of their columns, in order.
        fields: Everything that the row has, by the names of its columns: what is
            written before the prediction.
    """

    label: str
    texts: dict[str, str]
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to predict from, as an empty line."""
        return not any(text.strip() for text in self.texts.values())


def read_rows(
    sources: Sequence[str],
    columns: Sequence[str],
    usual: Sequence[str],
    *,
    header: bool = True,
) -> list[TextRow]:
    """Reads texts.

    Args:
        sources: Tables, text files with one text per line, or "-" for standard input,
            likewise; several texts of a line have tabs between them.
        columns: Names of the columns. One that is only a guess may have another name.
        usual: Other names of the first column, if there is only one column.
        header: Whether the first line of a table names its columns.

    Returns:
        A row for each line, also for an empty one.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is of another kind, not UTF-8, lacks a column, or has
            something else than a text; or if all texts are missing. File and line are
            named.
    """
    rows: list[TextRow] = []
    for source in sources:
        if source == STDIN:
            rows += _lines(_read_stdin(), "standard input", columns)
        elif is_table(source):
            rows += _table(Path(source), columns, usual, header)
        else:
            path = Path(source)
            if is_picture(path.name) or path.is_dir():
                raise ValueError(
                    "MODEL predicts from texts: INPUT must be a table, "
                    f"{', '.join(TABLE_SUFFIXES)}, or a file with one text per line. "
                    f"Received: {source!r}"
                )
            rows += _lines(read_text(path), path.name, columns)
    if all(row.is_empty for row in rows):
        raise ValueError(f"INPUT must have a text. Received: {list(sources)}")
    return rows


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Standard input must be UTF-8. Received: {shown(str(error))}"
        ) from error


def _lines(text: str, name: str, columns: Sequence[str]) -> Iterator[TextRow]:
    # Editors and spreadsheets write a byte-order mark.
    lines = text.removeprefix("\ufeff").split("\n")
    for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
        line = line.removesuffix("\r")
        parts = line.split("\t") if len(columns) > 1 else [line]
        label = f"{name}, line {number}"
        if not line.strip() and len(columns) > 1:
            parts = [""] * len(columns)
        if len(parts) != len(columns):
            raise ValueError(
                f"Every line must have {len(columns)} texts with tabs between them, "
                f"{', '.join(columns)}. Received: {label} with {len(parts)}"
            )
        texts = dict(zip(columns, parts, strict=True))
        yield TextRow(label, texts, texts)


def _table(
    path: Path, columns: Sequence[str], usual: Sequence[str], header: bool
) -> Iterator[TextRow]:
    names = column_names(path, header=header)
    if len(columns) == 1 and columns[0] not in names:
        columns = [next((name for name in usual if name in names), columns[0])]
    missing = [name for name in columns if name not in names]
    if missing:
        raise ValueError(
            f"{path.name} must have the columns {list(columns)}; or say which with "
            "--columns, and --no-header if the first line is a row. "
            f"Received: {str(path)!r} without {missing}, with {shown(names)}"
        )
    double = [name for name in columns if names.count(name) > 1]
    if double:
        raise ValueError(
            f"{path.name} must have each of the columns {list(columns)} once. "
            f"Received: {str(path)!r} with {shown(names)}"
        )
    for label, fields in read_all_columns(path, header=header):
        if fields and not set(columns) <= set(fields):
            raise ValueError(
                f"Every object must have {list(columns)}. Received: {label} with "
                f"{shown(list(fields))}"
            )
        texts = {name: fields.get(name, "") for name in columns}
        for name, text in texts.items():
            check_text(text, name, label, may_be_empty=True)
        yield TextRow(label, texts, fields)


def list_files(sources: Sequence[str]) -> list[Path]:
    """The images of files and folders; "-" is a list of paths on standard input.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a file is not an image, or a folder has none, or all are missing.
    """
    files: list[Path] = []
    for source in sources:
        if source == STDIN:
            lines = (line.strip() for line in _read_stdin().split("\n"))
            files += _images([line for line in lines if line])
        else:
            files += _images([source])
    if not files:
        raise ValueError(f"INPUT must have an image. Received: {list(sources)}")
    return files


def _images(names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        path = Path(name)
        if path.is_dir():
            pictures, _ = find_pictures("INPUT", path)
            found = [each for each in pictures if isinstance(each, Path)]
            for line in unused_files(path, found):
                note(line)
            yield from found
        elif path.suffix.lower() not in IMAGE_SUFFIXES:
            raise ValueError(
                "MODEL predicts from images: INPUT must be a folder of images or a "
                f"file, {', '.join(IMAGE_SUFFIXES)}. Received: {name!r}"
            )
        elif not path.is_file():
            raise FileNotFoundError(f"{name} does not exist. Received: {name!r}")
        else:
            yield path
