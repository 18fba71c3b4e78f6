"""SavedModel: TensorFlow's own format, for TensorFlow Serving and TensorFlow.js."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_attn.export.errors import ExportError
from keras_attn.export.signatures import SERVE
from keras_attn.silence import silence

# The name stock tools ask for.
SERVING_DEFAULT = "serving_default"
# Functions and operators that keep the books and compute nothing.
_BOOKKEEPING = ("__inference__traced_", "__inference_signature_wrapper")
_SILENT_OPERATORS = {"Const", "NoOp", "Identity", "ReadVariableOp"}


def write(
    functions: dict, models: Iterable[keras.Model], path: Path, tokenizer: Any = None
) -> None:
    """Writes concrete functions, and the weights they share, as one SavedModel.

    Args:
        functions: Concrete functions by signature name.
        models: The models behind them, which may hold lookup tables.
        path: Folder to make.
        tokenizer: What cuts texts in the functions, with tables of its own.

    Raises:
        ExportError: TensorFlow could not save them.
    """
    # Only what the functions use is saved: a training model drags its optimizer and
    # its training graph along.
    root = tf.Module()
    root.variables_used = list(
        {id(v): v for f in functions.values() for v in f.graph.variables}.values()
    )
    root.resources = _tables(models)
    root.tokenizer = tokenizer
    signatures = dict(functions)
    if SERVE in signatures:
        signatures[SERVING_DEFAULT] = signatures[SERVE]
    try:
        with silence():
            tf.saved_model.save(root, str(path), signatures=signatures)
    except (tf.errors.OpError, ValueError, AssertionError, TypeError) as error:
        raise ExportError(f"TensorFlow could not write {path.name}: {error}") from error


def operators(path: Path) -> dict[str, int]:
    """Counts the operators of a SavedModel's functions, those in loops once each."""
    content = (path / "saved_model.pb").read_bytes()
    counts: Counter[str] = Counter()
    for meta_graph in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        for function in meta_graph.graph_def.library.function:
            if not function.signature.name.startswith(_BOOKKEEPING):
                counts.update(node.op for node in function.node_def)
    return {name: n for name, n in counts.items() if name not in _SILENT_OPERATORS}


def _tables(models: Iterable[keras.Model]) -> list:
    """Lookup tables and the like, which a saved graph must own to be saved."""
    resource = tf.saved_model.experimental.TrackableResource
    return [
        part
        for model in models
        for part in tf.train.TrackableView(model).descendants()
        if isinstance(part, resource)
    ]
