"""What is predicted: texts or images in files, folders and standard input."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_attn.cli.terminal import mention
from keras_attn.data.images.image_files import (
    IMAGE_SUFFIXES,
    find_pictures,
    is_picture,
)
from keras_attn.data.text.tables import (
    TABLE_SUFFIXES,
    check_text,
    column_names,
    is_table,
    read_columns,
)
from keras_attn.file_reading import read_text, shown

STDIN = "-"


@dataclass(frozen=True)
class TextRow:
    """A text, or several that belong together.

    Attributes:
        label: File and line, for messages.
        texts: The texts by the names of their columns, in order.
    """

    label: str
    texts: dict[str, str]


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
        usual: Other names of the first column, if there is one column alone.
        header: Whether the first line of a table names its columns.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is of another kind, not UTF-8, lacks a column, or has an
            empty text; or if there is no text at all. File and line are named.
    """
    rows: list[TextRow] = []
    for source in sources:
        if source == STDIN:
            rows += _lines(sys.stdin.read(), "standard input", columns)
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
    if not rows:
        raise ValueError(f"INPUT must have a text. Received: {list(sources)}")
    return rows


def _lines(text: str, name: str, columns: Sequence[str]) -> Iterator[TextRow]:
    # Editors and spreadsheets write a byte-order mark.
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip():
            continue
        parts = line.split("\t") if len(columns) > 1 else [line]
        label = f"{name}, line {number}"
        if len(parts) != len(columns):
            raise ValueError(
                f"Every line must have {len(columns)} texts with tabs between them, "
                f"{', '.join(columns)}. Received: {label} with {len(parts)}"
            )
        yield TextRow(label, dict(zip(columns, parts, strict=True)))


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
    for label, texts in read_columns(path, columns, header=header):
        for name, text in zip(columns, texts, strict=True):
            check_text(text, name, label, may_be_empty=len(columns) > 1)
        yield TextRow(label, dict(zip(columns, texts, strict=True)))


def list_files(sources: Sequence[str]) -> list[Path]:
    """The images of files and folders; "-" is a list of paths on standard input.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file is no image, a folder has none, or there is no image.
    """
    files: list[Path] = []
    for source in sources:
        if source == STDIN:
            lines = (line.strip() for line in sys.stdin.read().split("\n"))
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
            pictures, others = find_pictures("INPUT", path)
            for other, reason in others.items():
                mention(f"left out {other}: {reason}")
            yield from (each for each in pictures if isinstance(each, Path))
        elif path.suffix.lower() not in IMAGE_SUFFIXES:
            raise ValueError(
                "MODEL predicts from images: INPUT must be a folder of images or a "
                f"file, {', '.join(IMAGE_SUFFIXES)}. Received: {name!r}"
            )
        elif not path.is_file():
            raise FileNotFoundError(f"There is no {name}. Received: {name!r}")
        else:
            yield path
