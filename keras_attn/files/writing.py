"""Atomic writes: a reader sees the old file or folder or the new one, never a part."""

import contextlib
import ctypes
import errno
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from keras_attn.files.hub_names import check_is_local

try:
    import fcntl
except ImportError:  # Windows.
    fcntl = None

# A work folder is called `.<target>-<random>.partial`.
_PARTIAL = ".partial"
# A full disk, a limit that is reached, a disk that fails.
_OF_DISKS = (errno.ENOSPC, getattr(errno, "EDQUOT", None), errno.EFBIG, errno.EIO)
# Arguments of Linux' `renameat2`.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, which is renamed to `path` on success.

    The temporary path is in a work folder next to `path`, on the same file system. A
    file is replaced atomically. So is a folder on Linux, where the file system can
    exchange two names (ext4, XFS, Btrfs, tmpfs, overlayfs). Elsewhere the old folder
    is renamed first and then the new one: for a moment `path` does not exist, and a
    process killed in that moment leaves the old folder in its work folder, from which
    the next write to `path` restores it.

    On failure the work folder is removed and `path` is unchanged. The work folder of a
    killed process is removed by the next write to `path`; the work folder of a running
    process is locked and is not touched. (Without file locks, as on Windows, none is
    removed.)

    Args:
        path: The target, a file or a folder. Its parent folder must exist.

    Yields:
        A path of the same name in the work folder.

    Raises:
        ValueError: If `path` is a name on the hub.
        OSError: If the file system refuses the write (permissions, space).
    """
    check_is_local(path)
    remove_leftovers(path)
    work, lock = make_work_folder(path)
    try:
        yield work / path.name
        _move(work / path.name, path, backup=_backup(work, path))
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def open_atomically(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` on success.

    Args:
        path: The target. Missing folders are made.

    Yields:
        The file to write to. Even after a kill or a power cut `path` holds all of the
        old content or all of the new.

    Raises:
        ValueError: If `path` is a name on the hub.
        IsADirectoryError: If `path` is a folder, which is never replaced by a file.
        OSError: If the disk is full or fails; its `filename` is `path`.
    """
    check_is_local(path)
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a folder", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as partial, partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in _OF_DISKS or error.filename is not None:
            raise
        # A write does not know the name of its file.
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
    """Replaces a file: see `open_atomically`.

    Args:
        path: The target. Missing folders are made.
        content: The whole file.
    """
    with open_atomically(path) as file:
        file.write(content)


def remove_leftovers(path: Path) -> None:
    """Removes the work folders of killed processes that were writing `path`.

    If one was killed between its two renames, the old folder is restored first.
    """
    if not path.parent.is_dir():
        return
    name = re.compile(rf"\.{re.escape(path.name)}-\w{{8}}{re.escape(_PARTIAL)}")
    for work in list(path.parent.iterdir()):
        if not name.fullmatch(work.name) or work.is_symlink() or not work.is_dir():
            continue
        try:
            lock = _lock(work)
        except OSError:
            continue
        if lock is None:
            continue
        try:
            backup = _backup(work, path)
            if os.path.lexists(backup) and not os.path.lexists(path):
                os.rename(backup, path)
            shutil.rmtree(work, ignore_errors=True)
        finally:
            os.close(lock)


def _backup(work: Path, path: Path) -> Path:
    """The path of the old folder between two renames."""
    return work / f"{path.name}.replaced"


def make_work_folder(path: Path) -> tuple[Path, int | None]:
    """Makes and locks a work folder for what is to be written to a path.

    If this process is killed, `remove_leftovers` of the path removes it.

    Args:
        path: The target, a file or a folder. Its parent folder must exist.

    Returns:
        The folder, which the caller removes, and its lock, which the caller closes:
        a file descriptor; None if the system has no such locks.
    """
    while True:
        work = Path(
            tempfile.mkdtemp(prefix=f".{path.name}-", suffix=_PARTIAL, dir=path.parent)
        )
        # Until it is locked, another process may remove it as a leftover.
        try:
            lock = _lock(work)
        except (BlockingIOError, FileNotFoundError):
            continue
        if work.is_dir():
            return work, lock
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Locks a folder until this process closes the lock or ends.

    Returns:
        A file descriptor; None if the system has no such locks.

    Raises:
        BlockingIOError: If a different process holds the lock.
        FileNotFoundError: If `folder` no longer exists.
    """
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


def _move(source: Path, target: Path, backup: Path) -> None:
    """Renames `source` to `target`; see `replacing`."""
    if not (target.is_dir() or source.is_dir()) or not os.path.lexists(target):
        os.replace(source, target)
        return
    # No system renames over a folder that is not empty.
    if _exchange(source, target):
        return
    os.rename(target, backup)
    try:
        os.rename(source, target)
    except OSError:
        os.rename(backup, target)
        raise


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two names atomically; False if the system cannot."""
    if sys.platform != "linux":
        return False
    # Python's `os` lacks this call, and so do some C libraries.
    function = getattr(ctypes.CDLL(None), "renameat2", None)
    if function is None:
        return False
    names = [os.fsencode(os.path.abspath(path)) for path in (one, other)]
    failed = function(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    return failed == 0
