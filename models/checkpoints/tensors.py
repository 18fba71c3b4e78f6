"""One safetensors file: read tensor by tensor, written tensor by tensor.

Files are read by the `safetensors` library, which checks the header against the length
of the file. It is only given regular files whose header has a bounded size and names
each tensor once. The library's writer needs all tensors in memory at once; ours takes
them one at a time.
"""

import json
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from keras_attn.files.reading import MAX_JSON_BYTES, check_file, parse_json, shortened

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
FLOATS = ("F64", "F32", "F16", "BF16")
# A part of an array: a slice of each axis.
Index = tuple[slice, ...]
# How a file begins that `git clone` leaves without Git LFS.
_LFS_POINTER = b"version "
# How much of a file is in memory while a part of a tensor is read.
_CHUNK_BYTES = 2**23
# The dtypes of `save_checkpoint(dtype=)`, by the format's names.
SAVED_AS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class TensorFile:
    """A safetensors file, open for reading.

    Args:
        path: The file.

    Attributes:
        shapes: Key to shape, of every tensor in the file.
        dtypes: Key to the format's name of its dtype, such as `"F32"`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is truncated, corrupt or not a safetensors file.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        size = check_file(self.path)
        entries, start = _check_header(self.path, size)
        try:
            # Not memory-mapped: pages of a mapped file count towards our memory once
            # read.
            self._file = safe_open(str(path), framework="np", backend="pread")
        except SafetensorError as error:
            raise _corrupt(self.path, size, error) from error
        # The library has checked the entries.
        self._offsets = {
            key: start + entries[key]["data_offsets"][0] for key in self._file.keys()
        }
        slices = {key: self._file.get_slice(key) for key in self._file.keys()}
        self.shapes = {key: tuple(each.get_shape()) for key, each in slices.items()}
        self.dtypes = {key: each.get_dtype() for key, each in slices.items()}

    def read(self, key: str) -> np.ndarray:
        """Reads the tensor of a key, in the dtype of the file.

        Raises:
            ValueError: If the dtype is not in `DTYPES`, such as an 8-bit float.
        """
        self._dtype(key)
        return self._file.get_tensor(key)

    def read_part(self, key: str, index: Index) -> np.ndarray:
        """Reads a part of a tensor, with little more than the part in memory.

        `safe_open(…).get_slice(key)[index]` has the whole tensor in memory.

        Args:
            key: The tensor, with at least one axis.
            index: A slice with a step of 1 for each axis.

        Raises:
            ValueError: As in `read`, or if the file has become shorter.
        """
        dtype, shape = self._dtype(key), self.shapes[key]
        ranges = [range(size)[each] for each, size in zip(index, shape, strict=True)]
        part = np.empty([len(each) for each in ranges], dtype)
        row = int(np.prod(shape[1:], dtype=np.int64))
        rows = max(1, _CHUNK_BYTES // max(1, row * dtype.itemsize))
        with open(self.path, "rb") as file:
            for start in range(0, len(ranges[0]), rows):
                count = min(rows, len(ranges[0]) - start)
                first = (ranges[0].start + start) * row * dtype.itemsize
                file.seek(self._offsets[key] + first)
                data = file.read(count * row * dtype.itemsize)
                if len(data) < count * row * dtype.itemsize:
                    size = self.path.stat().st_size
                    raise _corrupt(self.path, size, f"`{key}` is cut off")
                read = np.frombuffer(data, dtype).reshape(count, *shape[1:])
                part[start : start + count] = read[:, *index[1:]]
        return part

    def _dtype(self, key: str) -> np.dtype:
        dtype = self.dtypes[key]
        if dtype not in DTYPES:
            raise ValueError(
                f"`{key}` must have one of the dtypes {', '.join(DTYPES)}: convert it. "
                f"Received: dtype={dtype} in {self.path.name}"
            )
        return DTYPES[dtype]


def _corrupt(path, size, reason):
    return ValueError(
        f"`{path.name}` is truncated, corrupt or not a safetensors file: "
        f"{shortened(reason)}. Download it again. "
        f"Received: path={str(path)!r}, {size} bytes"
    )


def _check_header(path, size) -> tuple[dict, int]:
    """Raises unless the file contains all of its header, with each tensor once.

    Returns:
        The header, whose entries are not checked, and its end in the file.
    """
    with open(path, "rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise _corrupt(path, size, "it has no header")
        if start == _LFS_POINTER:
            fix = (
                "it is a pointer of Git LFS, which `git lfs pull` replaces by the file"
            )
            raise _corrupt(path, size, fix)
        (length,) = struct.unpack("<Q", start)
        if length > min(size - 8, MAX_JSON_BYTES):
            raise _corrupt(
                path,
                size,
                f"a header of {length} bytes is larger than the file or than "
                f"{MAX_JSON_BYTES} bytes",
            )
        header = file.read(length)

    try:
        # The library would silently pick one of two tensors of the same name.
        entries = parse_json(header, path, unique_keys=True)
    except ValueError as error:
        raise _corrupt(path, size, error) from error
    return entries, 8 + length


@dataclass(frozen=True)
class Tensor:
    """A tensor to write, computed only when it is written.

    Attributes:
        shape: Shape of the array.
        dtype: `"F32"`, … as in `DTYPES`.
        compute: Returns the array, of that shape and of any floating-point dtype.
    """

    shape: tuple[int, ...]
    dtype: str
    compute: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Size in the file, in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * DTYPES[self.dtype].itemsize


def write_tensors(path: str | os.PathLike, tensors: dict[str, Tensor]) -> None:
    """Writes a safetensors file, holding one tensor at a time.

    Args:
        path: The file. An existing file is overwritten in place, not atomically.
        tensors: Key to tensor, in the order of the file.

    Raises:
        ValueError: If a finite number overflows in the dtype it is saved in.
    """
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    start = 0
    for key, tensor in tensors.items():
        end = start + tensor.nbytes
        header[key] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # The format aligns the data to 8 bytes.
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for key, tensor in tensors.items():
            array = _cast(key, tensor.compute(), tensor)
            # As bytes: the buffer protocol does not know bfloat16.
            file.write(array.reshape(-1).view("u1").data)
        file.flush()
        os.fsync(file.fileno())


def _cast(key, array, tensor):
    dtype = DTYPES[tensor.dtype]
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array, dtype=dtype)
    lost = np.isfinite(array) & ~np.isfinite(cast)
    if lost.any():
        raise ValueError(
            f"`{key}` does not fit into {dtype.name}; save it as float32 or bfloat16. "
            f"Received: a value of {float(array[lost][0]):g}"
        )
    return cast


def shards(tensors: dict[str, Tensor], max_bytes: int) -> Iterable[dict[str, Tensor]]:
    """Splits `tensors`, in order, into parts of at most `max_bytes` or one tensor."""
    shard: dict[str, Tensor] = {}
    taken = 0
    for key, tensor in tensors.items():
        if shard and taken + tensor.nbytes > max_bytes:
            yield shard
            shard, taken = {}, 0
        shard[key] = tensor
        taken += tensor.nbytes
    if shard:
        yield shard
