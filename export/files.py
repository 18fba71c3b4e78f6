"""What an artefact looks like on disk, and how one is put there all at once."""

import contextlib
import ctypes
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows.
    fcntl = None

from keras_attn.export.errors import ExportError

FORMATS = ("saved_model", "litert", "onnx")
_SUFFIXES = {"": "saved_model", ".tflite": "litert", ".onnx": "onnx"}
_FLATBUFFER_IDENTIFIER = b"TFL3"
# The tag of `ir_version`, the first field that every ONNX writer emits.
_ONNX_FIRST_BYTE = b"\x08"
# Where the graphs of one ONNX folder keep their tensors, each stored once.
ONNX_WEIGHTS = "weights.data"
# Key in an ONNX graph's metadata: our output names, by the graph's.
ONNX_OUTPUT_NAMES = "keras_attn.output_names"
_SAVED_MODEL_ENTRIES = {
    "saved_model.pb",
    "fingerprint.pb",
    "variables",
    "assets",
    "assets.extra",
}
# A work folder is called `.<target>-<random>.partial`.
_PARTIAL = ".partial"
# Of Linux' `renameat2`.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def format_for(path: Path, format: str | None) -> str:
    """The format to write: the one asked for, or the one the suffix says."""
    if format is not None:
        if format not in FORMATS:
            raise ValueError(
                f"`format` must be one of {FORMATS}, or None to read it from the "
                f"suffix of `path`. Received: format={format!r}"
            )
        return format
    if path.suffix not in _SUFFIXES:
        raise ValueError(
            "`path` must end in `.tflite` (LiteRT), in `.onnx` (ONNX) or have no "
            "suffix (a SavedModel folder); for any other name pass `format`, one of "
            f"{FORMATS}. Received: path={str(path)!r}"
        )
    return _SUFFIXES[path.suffix]


def format_at(path: Path) -> str | None:
    """The format of the artefact that stands at `path`; None for anything else.

    Only what an exporter writes counts: a folder with any other file in it is
    somebody's, and neither loaded nor replaced.
    """
    if path.is_dir():
        entries = {entry.name for entry in path.iterdir()}
        if "saved_model.pb" in entries:
            return "saved_model" if entries <= _SAVED_MODEL_ENTRIES else None
        graphs = {name for name in entries if name.endswith(".onnx")}
        return "onnx" if graphs and entries - graphs <= {ONNX_WEIGHTS} else None
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(8)
    if head[4:8] == _FLATBUFFER_IDENTIFIER:
        return "litert"
    # ONNX has no identifier, so its suffix has to vouch for the first byte.
    if path.suffix == ".onnx" and head[:1] == _ONNX_FIRST_BYTE:
        return "onnx"
    return None


def check_target(path: Path, format: str) -> None:
    """Refuses a target that cannot be written, or that holds something else."""
    if not path.parent.is_dir():
        raise ValueError(
            "`path` must lie in a folder that exists; make it first. "
            f"Received: path={str(path)!r}"
        )
    if os.path.lexists(path) and format_at(path) != format:
        raise ValueError(
            f"`path` exists and is no {format} artefact, so it is not replaced; "
            f"remove it or choose another name. Received: path={str(path)!r}"
        )


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path to write to; on success what is there becomes `path`.

    Both lie in one folder, so the move is a rename. A file is replaced at once: a
    reader sees the old or the new one. So is a folder on Linux, where the file system
    can exchange two names (ext4, XFS, Btrfs, tmpfs, overlayfs). Elsewhere the old
    folder is renamed first and then the new one: for a moment nothing is at `path`,
    and a process that is killed in that moment leaves the old folder in its work
    folder, from which the next export to `path` restores it.

    On failure the work folder is removed and `path` is untouched. What a killed
    process left is removed by the next export to `path`; the work folder of a living
    process is locked, and left alone. (Without file locks, as on Windows, all are.)

    Args:
        path: The target, a file or a folder.

    Yields:
        A path with the target's name in a temporary folder beside it.

    Raises:
        ExportError: The disk refused (permissions, space).
    """
    try:
        _remove_leftovers(path)
        work, lock = _work_folder(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield work / path.name
        _move(work / path.name, path, aside=_aside(work, path))
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _aside(work: Path, path: Path) -> Path:
    """Where in a work folder the old artefact is put."""
    return work / f"{path.name}.replaced"


def _work_folder(path: Path) -> tuple[Path, int | None]:
    """Makes a work folder and locks it; see `_lock`."""
    while True:
        work = Path(
            tempfile.mkdtemp(prefix=f".{path.name}-", suffix=_PARTIAL, dir=path.parent)
        )
        # Before it is locked another export may take it for a leftover.
        try:
            lock = _lock(work)
        except (BlockingIOError, FileNotFoundError):
            continue
        if work.is_dir():
            return work, lock
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Locks a folder for as long as this process lives and does not close the lock.

    Returns:
        A file descriptor; None where the system has no such locks.

    Raises:
        BlockingIOError: Another process holds it.
        FileNotFoundError: The folder is gone.
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


def _remove_leftovers(path: Path) -> None:
    """Removes the work folders of exports to `path` that were killed.

    One that was killed between its two renames has the old artefact: it is put back.
    """
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
            aside = _aside(work, path)
            if os.path.lexists(aside) and not os.path.lexists(path):
                os.rename(aside, path)
            shutil.rmtree(work, ignore_errors=True)
        finally:
            os.close(lock)


def _move(source: Path, target: Path, aside: Path) -> None:
    """Renames `source` to `target`; see `replacing`."""
    if not (target.is_dir() or source.is_dir()) or not os.path.lexists(target):
        os.replace(source, target)
        return
    # No system renames over a folder that has files in it.
    if _exchange(source, target):
        return
    os.rename(target, aside)
    try:
        os.rename(source, target)
    except OSError:
        os.rename(aside, target)
        raise


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two names at once; False if that cannot be done here."""
    if sys.platform != "linux":
        return False
    # Not in Python's `os`; and not in every C library.
    function = getattr(ctypes.CDLL(None), "renameat2", None)
    if function is None:
        return False
    names = [os.fsencode(os.path.abspath(path)) for path in (one, other)]
    failed = function(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    return failed == 0


def _unwritable(path: Path, error: OSError) -> ExportError:
    return ExportError(
        f"`path` could not be written ({error.strerror or error}); nothing was "
        f"left behind. Received: path={str(path)!r}"
    )
