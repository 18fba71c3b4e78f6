"""Output of the command line: lines, errors, progress, and silenced libraries.

What only some commands need is imported where it is used: see `app.py`.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

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
    """Prints `error: …` to stderr, in one line."""
    line = Text.assemble(("error:", "bold red"), " ", " ".join(text.split()))
    _errors.print(line, soft_wrap=True)


def mention(text: str) -> None:
    """Prints a line to stderr, beside results that go to a file or a pipe."""
    _errors.print(Text(text, style="yellow"), soft_wrap=True)


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
def counting(description: str) -> Iterator[Callable[[int, int], None]]:
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
def working(text: str) -> Iterator[None]:
    """Shows a spinner, and hides what libraries print in the meantime."""
    from keras_attn.silence import silence

    noise = contextlib.nullcontext() if debugging() else silence()
    with console.status(text), noise:
        yield
