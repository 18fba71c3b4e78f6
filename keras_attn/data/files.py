"""Writing a file so that nobody ever reads half of it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def open_atomically(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a file beside `path`, which replaces it when all went well.

    Args:
        path: Where the file goes. Missing folders are made.

    Yields:
        The file to write to. What is at `path` is the old file or the whole new one,
        never a part, also after a kill or a power cut.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A sibling, because a rename is atomic only within one file system.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
    """Writes beside `path` and renames: the old file or the new one, never a part.

    Args:
        path: Where the file goes. Missing folders are made.
        content: The whole file.
    """
    with open_atomically(path) as file:
        file.write(content)
