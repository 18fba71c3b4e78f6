"""Predictions as CSV or JSON lines, on standard output or in a file."""

import contextlib
import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from keras_attn.files.writing import open_atomically

Row = Mapping[str, Any]


def choose_format(given: str | None, output: Path | None) -> str:
    """The format: the given one, or by the file's suffix, or CSV.

    Args:
        given: `--format`.
        output: `--output`.
    """
    if given is not None:
        return given
    is_lines = output is not None and output.suffix.lower() in (".jsonl", ".ndjson")
    return "jsonl" if is_lines else "csv"


@contextlib.contextmanager
def writing(output: Path | None, kind: str) -> Iterator[Callable[[Row], None]]:
    """Yields a function that writes a row.

    A file is complete or as it was before; standard output gets rows as they come.

    Args:
        output: The file; None = standard output.
        kind: "csv" or "jsonl".
    """
    if output is None:
        yield _writer(_print, kind)
        return
    with open_atomically(output) as file:
        binary: BinaryIO = file
        yield _writer(lambda text: binary.write(text.encode()), kind)


def _field(value: Any) -> Any:
    """A value of a CSV: lists and the like are JSON, as they were in the input."""
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False)
    return value


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _writer(write: Callable[[str], Any], kind: str) -> Callable[[Row], None]:
    if kind == "jsonl":
        return lambda row: write(json.dumps(row, ensure_ascii=False) + "\n")
    names: list[str] = []

    def write_line(row: Row) -> None:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        if not names:
            names.extend(row)
            writer.writerow(names)
        writer.writerow([_field(row[name]) for name in names])
        write(text.getvalue())

    return write_line
