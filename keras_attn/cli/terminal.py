"""How the command speaks: lines, errors, progress, and no noise from below."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import track
from rich.text import Text

from keras_attn.silence import silence

console = Console(highlight=False)
_errors = Console(stderr=True, highlight=False)


class CheckFailedError(Exception):
    """What was measured is not as it must be: exit code 1, the text on stderr."""


def debugging() -> bool:
    """Whether `KERAS_ATTN_DEBUG` asks for tracebacks and the libraries' own logs."""
    return os.environ.get("KERAS_ATTN_DEBUG", "0") not in ("", "0")


def say(text: str = "", style: str = "") -> None:
    """Prints text as it is: no brackets are markup, and no path is broken."""
    console.print(Text(text, style=style), soft_wrap=True)


def complain(text: str) -> None:
    """Prints `error: …` to stderr, in one line."""
    line = Text.assemble(("error:", "bold red"), " ", " ".join(text.split()))
    _errors.print(line, soft_wrap=True)


def in_parts(items: Sequence, size: int, description: str) -> Iterable[Sequence]:
    """Yields items, `size` at a time, behind a progress bar that goes when done."""
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    return track(
        parts,
        description,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def fit_verbosity() -> int:
    """For `model.fit`: a moving bar on a terminal, else one line an epoch."""
    return 1 if console.is_terminal else 2


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Shows that something is being done; what libraries say meanwhile is not shown."""
    noise = contextlib.nullcontext() if debugging() else silence()
    with console.status(text), noise:
        yield
