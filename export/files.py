"""What an artefact looks like on disk, and how one is put there all at once."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
    """Yields a place beside `path`; on success what is there becomes `path`.

    The move is a rename within one folder: a reader sees the old artefact or the
    new one, never a half. On failure the place vanishes and `path` is untouched.

    Args:
        path: The target, a file or a folder.

    Yields:
        A path with the target's name in a temporary folder beside it.

    Raises:
        ExportError: The disk refused (permissions, space).
    """
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield work / path.name
        _move(work / path.name, path, aside=work / "replaced")
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _move(source: Path, target: Path, aside: Path) -> None:
    """Renames `source` to `target`; a folder that stands there steps aside first."""
    if not target.is_dir():
        os.replace(source, target)
        return
    # No system renames over a folder that has files in it.
    os.rename(target, aside)
    try:
        os.rename(source, target)
    except OSError:
        os.rename(aside, target)
        raise


def _unwritable(path: Path, error: OSError) -> ExportError:
    return ExportError(
        f"`path` could not be written ({error.strerror or error}); nothing was "
        f"left behind. Received: path={str(path)!r}"
    )
