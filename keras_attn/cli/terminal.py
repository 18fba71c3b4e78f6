"""Output of the command line: lines, errors, progress, and silenced libraries.

What only some commands need is imported where it is used: see `app.py`.
"""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from keras_attn.files.hub_names import with_hub_names

# Variable of a folder in which processes note which errors one of them has printed.
SAID = "KERAS_ATTN_SAID"

console = Console(highlight=False)
_errors = Console(stderr=True, highlight=False)


class CheckFailedError(Exception):
    """A measured result misses its requirement: exit code 1, the text on stderr."""


def debugging() -> bool:
    """Whether `KERAS_ATTN_DEBUG` asks for tracebacks and the libraries' own logs."""
    return os.environ.get("KERAS_ATTN_DEBUG", "0") not in ("", "0")


def say(text: str = "", style: str = "") -> None:
    """Prints text verbatim: brackets are not markup, and paths are not wrapped."""
    console.print(Text(text, style=style), soft_wrap=True)


def complain(text: str) -> None:
    """Prints `error: …` to stderr, in one line.

    Processes that train together (`SAID`) print the same error once.
    """
    if _is_said(text):
        return
    text = with_hub_names(" ".join(text.split()))
    line = Text.assemble(("error:", "bold red"), " ", text)
    _errors.print(line, soft_wrap=True)


def note(text: str) -> None:
    """Prints a line to stderr: standard output may be data."""
    _errors.print(Text(with_hub_names(text), style="yellow"), soft_wrap=True)


def in_one_line(text: object, most: int) -> str:
    """A text without line breaks, and no longer than `most` letters."""
    text = " ".join(str(text).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def print_json(value: Any) -> None:
    """Prints a value as JSON, and nothing else, for programs to read."""
    import json

    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(text + "\n")


def print_rows(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Prints a table of labels and texts, without those that are empty."""
    table = Table(show_header=False, title=Text(title))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")  # A long path is not cut.
    for label, text in rows:
        if text:
            table.add_row(label, Text(text))
    console.print(table)


def _is_said(text: str) -> bool:
    """Whether another process of these has printed a text; if not, this one will."""
    folder = os.environ.get(SAID)
    if not folder:
        return False
    path = os.path.join(folder, hashlib.sha256(text.encode()).hexdigest())
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return True
    except OSError:
        return False
    return False


def in_parts(items: Sequence, size: int, description: str) -> Iterable[Sequence]:
    """Yields items, `size` at a time, with a progress bar that disappears at the end.

    Args:
        items: What to iterate over.
        size: Items per part.
        description: Text of the progress bar.
    """
    from rich.progress import track

    parts = [items[start : start + size] for start in range(0, len(items), size)]
    return track(
        parts,
        description,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextlib.contextmanager
def counting(description: str) -> Iterator[Callable[[float, int], None]]:
    """Shows a progress bar that disappears at the end.

    Args:
        description: Text of the progress bar.

    Yields:
        A function that is called with the number of items done and of all items.
    """
    from rich.progress import Progress

    with Progress(
        console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def fit_verbosity() -> int:
    """The `verbose` of `model.fit`: a progress bar on a terminal, else lines.

    Nothing in a process that is not to print.
    """
    if console.quiet:
        return 0
    return 1 if console.is_terminal else 2


@contextlib.contextmanager
def naming_options(**options: str) -> Iterator[None]:
    """Lets errors name the options of a command instead of a function's arguments.

    Args:
        **options: The option by the name of the argument, such as `topology="--tpu"`.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        text = str(error)
        for name, option in options.items():
            text = text.replace(f"`{name}`", option).replace(f"{name}=", f"{option} ")
        if len(error.args) == 1:
            error.args = (text,)
        raise


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Shows a spinner, and hides what libraries print in the meantime."""
    from keras_attn.export.silence import silence

    noise = contextlib.nullcontext() if debugging() else silence()
    with console.status(text), noise:
        yield
