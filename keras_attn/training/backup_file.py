"""The file of a training backup: a header and arrays, with a checksum.

    file    magic | length of the header, 8 bytes | header, JSON | arrays | SHA-256

Reading checks the whole file first, and every size before memory is allocated for it.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

_MAGIC = b"keras_attn training backup 1\n"
_LENGTH_BYTES = 8
_DIGEST_BYTES = hashlib.sha256().digest_size
_CHUNK_BYTES = 1 << 20


def write_backup(file: BinaryIO, header: dict, arrays: Sequence[np.ndarray]) -> None:
    """Writes a header and arrays, which the header must describe."""
    digest = hashlib.sha256()

    def write(data):
        digest.update(data)
        file.write(data)

    text = json.dumps(header).encode()
    write(_MAGIC)
    write(len(text).to_bytes(_LENGTH_BYTES, "little"))
    write(text)
    for array in arrays:
        # As bytes: 16-bit dtypes that NumPy does not know have no buffer.
        write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    file.write(digest.digest())


def read_header(file: BinaryIO) -> dict:
    """Checks the whole file, then reads its header; `read_arrays` reads the rest."""
    size = os.fstat(file.fileno()).st_size
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not start with a backup's signature")
    file.seek(0)
    digest, remaining = hashlib.sha256(), size - _DIGEST_BYTES
    while remaining > 0:
        chunk = file.read(min(remaining, _CHUNK_BYTES))
        digest.update(chunk)
        remaining -= len(chunk)
    if remaining < 0 or file.read() != digest.digest():
        raise ValueError("its checksum does not match")
    file.seek(len(_MAGIC))
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > size:
        raise ValueError("its header is longer than the file")
    return json.loads(file.read(length))


def read_arrays(file: BinaryIO, specs) -> Iterator[np.ndarray]:
    """Reads one array after the other.

    Args:
        file: A file whose header has been read.
        specs: Name, dtype and shape of each array.
    """
    size = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
    for _, dtype, shape in specs:
        length = math.prod(shape) * dtype.itemsize
        if not 0 <= length <= size - file.tell():
            raise ValueError("its arrays are larger than the file")
        data = file.read(length)
        yield np.frombuffer(data, np.uint8).view(dtype).reshape(shape)
