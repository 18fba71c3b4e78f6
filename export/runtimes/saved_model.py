"""TensorFlow, which runs SavedModels."""

import importlib
from pathlib import Path
from typing import Any

from keras_attn.export import description, metadata
from keras_attn.export.errors import RefusedError, in_one_line
from keras_attn.export.signature_info import (
    SERVE,
    SignatureInfo,
    as_array,
    tensor_infos,
)
from keras_attn.export.silence import silence
from keras_attn.extras import requires_extra
from keras_attn.files.reading import read_bytes

# The signature that stock tools call by default.
SERVING_DEFAULT = "serving_default"
# The folder of files that TensorFlow does not read.
METADATA = "assets.extra"
_ENTRIES = {
    "saved_model.pb",
    "fingerprint.pb",
    "variables",
    "assets",
    METADATA,
}


def recognizes(path: Path) -> bool:
    """Whether `path` is a SavedModel folder without other files."""
    if not path.is_dir():
        return False
    entries = {entry.name for entry in path.iterdir()}
    return "saved_model.pb" in entries and entries <= _ENTRIES


class Engine:
    """A SavedModel loaded by TensorFlow.

    Args:
        path: Folder of the SavedModel.
    """

    format = "saved_model"

    def __init__(self, path: Path):
        try:
            # Kept: the functions hold only weak references to its variables.
            self._loaded = _load(path)
            functions = dict(self._loaded.signatures)
            if SERVE in functions:
                functions.pop(SERVING_DEFAULT, None)
            self._functions = functions
            signatures = {
                name: SignatureInfo(
                    tensor_infos(function.structured_input_signature[1]),
                    tensor_infos(function.structured_outputs),
                )
                for name, function in functions.items()
            }
            ranges, order, described = (
                read_bytes(path / METADATA / name, limit)
                if (path / METADATA / name).is_file()
                else None
                for name, limit in metadata.FILES.items()
            )
            self.signatures = metadata.in_order(signatures, order)
            self.index_ranges = None if ranges is None else metadata.from_json(ranges)
            self.description = description.from_json(described)
        except ImportError:
            raise
        # A damaged file raises errors of every type, even KeyError.
        except Exception as error:
            raise RefusedError(
                f"TensorFlow cannot load {path.name}: {in_one_line(error)}",
                advice="Build the layer from other operations",
            ) from error

    def call(self, signature: str, inputs: dict, in_place: bool) -> dict:
        """Runs one signature, see `Engine`."""
        import tensorflow as tf

        tensors = {name: tf.constant(value) for name, value in inputs.items()}
        try:
            outputs = self._functions[signature](**tensors)
            return {name: as_array(tensor) for name, tensor in outputs.items()}
        except Exception as error:  # Of every type, as above.
            raise RefusedError(
                f"TensorFlow cannot run `{signature}`: {in_one_line(error)}",
                signatures=(signature,),
            ) from error


def _load(path: Path) -> Any:
    import tensorflow as tf  # Here, so that other runtimes run without it.

    with silence():
        try:
            return tf.saved_model.load(str(path))
        except (tf.errors.OpError, OSError, RuntimeError) as error:
            if "Op type not registered" not in str(error):
                raise
        # It contains a tokenizer, whose operators this import registers.
        with requires_extra("text", "A SavedModel with a tokenizer"):
            importlib.import_module("tensorflow_text")
        return tf.saved_model.load(str(path))
