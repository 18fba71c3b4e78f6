"""The digest at the end of an artefact's files, by which a damaged one is known.

The last 64 bytes of a `.tflite` or `.onnx` file are the SHA-256, in hexadecimal, of all
bytes before them; in an ONNX folder also of the names of its files and of
`weights.data`, so that no file of another export is taken for one of this. They are the
comment of LiteRT's ZIP archive, and the value of `keras_attn.sha256` in the metadata of
an ONNX graph, where no runtime reads them.

Only the cache of decoders checks them. Elsewhere a file may be edited on purpose: tools
that quantize or optimize a graph keep its metadata.
"""

import hashlib
from pathlib import Path

LENGTH = 64
# What a writer leaves room with.
ROOM = "0" * LENGTH
ONNX_KEY = "keras_attn.sha256"


def seal(path: Path) -> None:
    """Writes the digests of an artefact over the room that its writer left.

    Args:
        path: A file, or a folder of ONNX graphs.
    """
    files, rest = _files(path)
    common = _digest_of_rest(path, files, rest)
    for file in files:
        mark = _digest(file, common)
        with file.open("r+b") as opened:
            opened.seek(-LENGTH, 2)
            opened.write(mark)


def is_sealed(path: Path) -> bool:
    """Whether an artefact holds what was written, every byte of it."""
    try:
        files, rest = _files(path)
        common = _digest_of_rest(path, files, rest)
        return bool(files) and all(
            _digest(file, common) == _end(file) for file in files
        )
    except OSError:
        return False


def read_seals(path: Path) -> bytes:
    """The digests that an artefact's files end in, one after the other.

    Two artefacts with the same digests, if each is sealed, hold the same.

    Raises:
        OSError: If a file cannot be read.
    """
    return b"".join(_end(file) for file in _files(path)[0])


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """The files of an artefact that end in a digest, and its others."""
    if not path.is_dir():
        return [path], []
    files = sorted(path.iterdir())
    return (
        [file for file in files if file.suffix == ".onnx"],
        [file for file in files if file.suffix != ".onnx"],
    )


def _digest_of_rest(path: Path, files: list[Path], rest: list[Path]) -> bytes:
    """A digest of what the files of a folder have in common."""
    found = hashlib.sha256()
    if path.is_dir():
        found.update("\n".join(file.name for file in (*files, *rest)).encode())
    for file in rest:
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.digest()


def _digest(file: Path, common: bytes) -> bytes:
    """The digest that a file should end in."""
    found = hashlib.sha256(common)
    left = file.stat().st_size - LENGTH
    with file.open("rb") as opened:
        while left > 0 and (part := opened.read(min(left, 1 << 20))):
            found.update(part)
            left -= len(part)
    return found.hexdigest().encode()


def _end(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(file.stat().st_size - LENGTH, 0))
        return opened.read()
