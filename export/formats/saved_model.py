"""SavedModel: TensorFlow's own format, for TensorFlow Serving and TensorFlow.js."""

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_attn.export import metadata
from keras_attn.export.errors import ExportError, RefusedError
from keras_attn.export.signatures import (
    SERVE,
    SignatureInfo,
    TracedModel,
    tensor_infos,
)
from keras_attn.extras import requires_extra
from keras_attn.file_reading import read_bytes
from keras_attn.silence import silence

# The signature that stock tools call by default.
SERVING_DEFAULT = "serving_default"
_METADATA = Path("assets.extra", metadata.FILE)
_ENTRIES = {
    "saved_model.pb",
    "fingerprint.pb",
    "variables",
    "assets",
    "assets.extra",
}
# Functions and operators that compute nothing.
_BOOKKEEPING = ("__inference__traced_", "__inference_signature_wrapper")
_SILENT_OPERATORS = {"Const", "NoOp", "Identity", "ReadVariableOp"}


def recognizes(path: Path) -> bool:
    """Whether `path` is a SavedModel folder without other files."""
    if not path.is_dir():
        return False
    entries = {entry.name for entry in path.iterdir()}
    return "saved_model.pb" in entries and entries <= _ENTRIES


def write(traced: TracedModel, path: Path) -> tuple[str, ...]:
    """Writes a traced model as one SavedModel; returns no notes.

    Raises:
        ExportError: TensorFlow could not save it.
    """
    save(traced, path)
    text = metadata.to_json(traced.signatures)
    if text is not None:
        (path / _METADATA).parent.mkdir(exist_ok=True)
        (path / _METADATA).write_text(text, encoding="utf-8")
    return ()


def save(traced: TracedModel, path: Path) -> None:
    """Writes the functions and the weights that they share, without metadata.

    Raises:
        ExportError: TensorFlow could not save it.
    """
    # A new root, because saving the model itself would save its optimizer and its
    # training functions too.
    root = tf.Module()
    functions = traced.functions
    root.variables_used = list(
        {id(v): v for f in functions.values() for v in f.graph.variables}.values()
    )
    root.resources = _lookup_tables(traced.models)
    root.tokenizer = traced.tokenizer
    signatures = dict(functions)
    if SERVE in signatures:
        signatures[SERVING_DEFAULT] = signatures[SERVE]
    try:
        with silence():
            tf.saved_model.save(root, str(path), signatures=signatures)
    except (tf.errors.OpError, ValueError, AssertionError, TypeError) as error:
        raise ExportError(f"TensorFlow could not write {path.name}: {error}") from error


def _lookup_tables(models: list[keras.Model]) -> list:
    """Lookup tables and other resources, which the root must own to be saved."""
    resource = tf.saved_model.experimental.TrackableResource
    return [
        part
        for model in models
        for part in tf.train.TrackableView(model).descendants()
        if isinstance(part, resource)
    ]


def count_operators(path: Path) -> dict[str, int]:
    """Counts the operators in the functions of a SavedModel; those in loops once."""
    content = (path / "saved_model.pb").read_bytes()
    counts: Counter[str] = Counter()
    for meta_graph in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        for function in meta_graph.graph_def.library.function:
            if not function.signature.name.startswith(_BOOKKEEPING):
                counts.update(node.op for node in function.node_def)
    return {name: n for name, n in counts.items() if name not in _SILENT_OPERATORS}


class SavedModelEngine:
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
            self.signatures = {
                name: SignatureInfo(
                    tensor_infos(function.structured_input_signature[1]),
                    tensor_infos(function.structured_outputs),
                )
                for name, function in functions.items()
            }
            self.index_ranges = None
            if (path / _METADATA).is_file():
                content = read_bytes(path / _METADATA, metadata.MAX_BYTES)
                self.index_ranges = metadata.from_json(content)
        except ImportError:
            raise
        # A damaged file raises errors of every type, even KeyError.
        except Exception as error:
            raise RefusedError(
                f"TensorFlow cannot load {path.name}: {error}"
            ) from error

    def call(self, signature: str, inputs: dict, in_place: bool) -> dict:
        """Runs one signature, see `Engine`."""
        tensors = {name: tf.constant(value) for name, value in inputs.items()}
        try:
            outputs = self._functions[signature](**tensors)
            return {name: tensor.numpy() for name, tensor in outputs.items()}
        except Exception as error:  # Of every type, as above.
            raise RefusedError(
                f"TensorFlow cannot run `{signature}`: {error}",
                signatures=(signature,),
            ) from error


def _load(path: Path) -> Any:
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
