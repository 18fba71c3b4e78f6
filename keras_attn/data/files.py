"""Writing a file so that nobody ever reads half of it."""

import os
from pathlib import Path


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
    """Writes beside `path` and renames: the old file or the new one, never a part.

    Args:
        path: Where the file goes. Missing folders are made.
        content: The whole file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A sibling, because a rename is atomic only within one file system.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
