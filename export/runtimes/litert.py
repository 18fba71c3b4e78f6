"""LiteRT's interpreter, which runs `.tflite` files."""

import os
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_attn.export import description, metadata
from keras_attn.export.errors import RefusedError, in_one_line
from keras_attn.export.runtimes.litert_step import LiteRTStep
from keras_attn.export.signature_info import STEP, SignatureInfo, TensorInfo
from keras_attn.export.silence import silence
from keras_attn.extras import requires_extra

_FLATBUFFER_IDENTIFIER = b"TFL3"


def recognizes(path: Path) -> bool:
    """Whether `path` is a `.tflite` file, with any suffix."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8)[4:] == _FLATBUFFER_IDENTIFIER


class Engine:
    """A `.tflite` file loaded by LiteRT's interpreter.

    Args:
        path: The file.
    """

    format = "litert"

    def __init__(self, path: Path):
        with requires_extra("export", "LiteRT"):
            from ai_edge_litert.interpreter import Interpreter
        try:
            with silence():
                # By default it has one thread; ONNX Runtime and TensorFlow have all.
                self._interpreter = Interpreter(str(path), num_threads=count_cpus())
                names = list(self._interpreter.get_signature_list())
                self._functions = {
                    name: self._interpreter.get_signature_runner(name) for name in names
                }
            self._step = LiteRTStep(self._functions.get(STEP))
            signatures = {
                name: SignatureInfo(
                    _tensor_infos(function.get_input_details()),
                    _tensor_infos(function.get_output_details()),
                )
                for name, function in self._functions.items()
            }
            files = _read_metadata(path)
            ranges, order, described = map(files.get, metadata.FILES)
            self.signatures = metadata.in_order(signatures, order)
            self.index_ranges = None if ranges is None else metadata.from_json(ranges)
            self.description = description.from_json(described)
        except Exception as error:
            raise RefusedError(
                f"LiteRT cannot load {path.name}: {in_one_line(error)}"
            ) from error
        # All signatures of an interpreter share its buffers, including inputs and
        # outputs.
        self._lock = threading.Lock()

    def call(self, signature: str, inputs: dict, in_place: bool) -> dict:
        """Runs one signature, see `Engine`."""
        try:
            with self._lock:
                if signature == STEP:
                    return self._step(inputs, in_place)
                return self._functions[signature](**inputs)
        except Exception as error:
            shapes = {name: value.shape for name, value in inputs.items()}
            raise RefusedError(
                f"LiteRT cannot run `{signature}` at {shapes}: {in_one_line(error)}",
                signatures=(signature,),
            ) from error


def count_cpus() -> int:
    """CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):  # On Linux.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _tensor_infos(details: Mapping[str, Mapping]) -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(
            tuple(None if size < 0 else int(size) for size in info["shape_signature"]),
            np.dtype(info["dtype"]).name,
        )
        for name, info in details.items()
    }


def _read_metadata(path: Path) -> dict[str, bytes]:
    """The metadata of a `.tflite` file, by the names in its archive.

    Raises:
        ValueError: If the metadata are damaged.
    """
    if not zipfile.is_zipfile(path):
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            found = set(archive.namelist())
            return {
                name: archive.open(name).read(limit)
                for name, limit in metadata.FILES.items()
                if name in found
            }
    # `zipfile` raises all of these for damaged archives.
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, KeyError) as error:
        raise ValueError(f"the metadata in it are damaged ({error})") from error
