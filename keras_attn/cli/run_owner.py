"""A run folder has one owner at a time: the command that writes it.

The owner holds a lock of the system on a hidden file in the folder. The lock ends with
its process, however that ends, so no lock is ever stale; the file says who holds it.
Where the system has no such locks (Windows, some network file systems) nothing is
checked.
"""

import contextlib
import errno
import os
import platform
import time
from pathlib import Path
from typing import IO, Any

from keras_attn.cli.child_processes import parent_id

fcntl: Any = None
with contextlib.suppress(ImportError):
    import fcntl

_NAME = ".owner"
# A process that was killed just now may need a moment to be gone.
_SECONDS, _POLL_SECONDS = 1.0, 0.05
_NOT_SUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

# What this process owns: locked files by their paths.
_owned: dict[Path, IO[str]] = {}


def own(folder: Path) -> None:
    """Makes this process the owner of a folder, until `release_all` or its end.

    Raises:
        ValueError: If another process owns it.
    """
    path = folder.resolve() / _NAME
    if path in _owned or fcntl is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _SECONDS
    while True:
        file = path.open("a+", encoding="utf-8")
        # The last owner removes the file: a lock on one that is gone says nothing.
        try:
            if _is_locked(file) and _is_at(path, file):
                break
            owner = _read_owner(file)
        except BaseException:
            file.close()
            raise
        file.close()
        if time.monotonic() > deadline:
            raise ValueError(
                f"--run-dir is in use: {owner} trains in it. Wait until that has "
                f"ended, or choose another folder. Received: {str(folder)!r}"
            )
        time.sleep(_POLL_SECONDS)
    _owned[path] = file
    file.truncate(0)
    # With `--processes`, the command that has started this process.
    file.write(f"process {parent_id() or os.getpid()} on {platform.node()}")
    file.flush()


def check_has_no_owner(folder: Path) -> None:
    """Raises now if `own` will raise; makes no folder.

    Raises:
        ValueError: If another process owns the folder.
    """
    if (folder / _NAME).exists():
        own(folder)


def release_all() -> None:
    """Gives up every folder that this process owns."""
    while _owned:
        path, file = _owned.popitem()
        with contextlib.suppress(OSError):
            path.unlink()
        with contextlib.suppress(OSError):  # A full disk has not taken its text.
            file.close()


def _is_locked(file: IO[str]) -> bool:
    """Whether this process now holds the lock, or the system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            return True
        raise
    return True


def _is_at(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _read_owner(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "another process"
