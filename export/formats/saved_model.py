"""SavedModel: TensorFlow's own format, for TensorFlow Serving and TensorFlow.js."""

from collections import Counter
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_attn.export import metadata
from keras_attn.export.errors import ExportError
from keras_attn.export.runtimes.saved_model import METADATA, SERVING_DEFAULT
from keras_attn.export.signature_info import SERVE
from keras_attn.export.signatures import Signature, TracedModel
from keras_attn.export.silence import silence

# Functions and operators that compute nothing.
_BOOKKEEPING = ("__inference__traced_", "__inference_signature_wrapper")
_SILENT_OPERATORS = {"Const", "NoOp", "Identity", "ReadVariableOp"}


def write(traced: TracedModel, path: Path) -> tuple[str, ...]:
    """Writes a traced model as one SavedModel; returns no notes.

    Raises:
        ExportError: If TensorFlow could not save it.
    """
    save(traced, path)
    folder = path / METADATA
    folder.mkdir(exist_ok=True)
    for name, text in metadata.make_files(traced).items():
        (folder / name).write_text(text, encoding="utf-8")
    return ()


def save(traced: TracedModel, path: Path) -> None:
    """Writes the functions and the weights that they share, without metadata.

    Raises:
        ExportError: If TensorFlow could not save it.
    """
    # A new root, because saving the model itself would save its optimizer and its
    # training functions too.
    root = tf.Module()
    functions = traced.functions
    root.variables_used = list(
        {id(v): v for f in functions.values() for v in f.graph.variables}.values()
    )
    root.resources = _lookup_tables(traced.signatures)
    root.tokenizer = traced.tokenizer
    signatures = dict(functions)
    if SERVE in signatures:
        signatures[SERVING_DEFAULT] = signatures[SERVE]
    try:
        with silence():
            tf.saved_model.save(root, str(path), signatures=signatures)
    except (tf.errors.OpError, ValueError, AssertionError, TypeError) as error:
        raise ExportError(f"TensorFlow could not write {path.name}: {error}") from error


def _lookup_tables(signatures: list[Signature]) -> list:
    """Lookup tables and other resources, which the root must own to be saved."""
    resource = tf.saved_model.experimental.TrackableResource
    return [
        part
        for signature in signatures
        for part in tf.train.TrackableView(signature.model).descendants()
        if isinstance(part, resource)
    ]


def count_operators(path: Path) -> dict[str, int]:
    """Counts the operators in the functions of a SavedModel; loops count once."""
    content = (path / "saved_model.pb").read_bytes()
    counts: Counter[str] = Counter()
    for meta_graph in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        for function in meta_graph.graph_def.library.function:
            if not function.signature.name.startswith(_BOOKKEEPING):
                counts.update(node.op for node in function.node_def)
    return {name: n for name, n in counts.items() if name not in _SILENT_OPERATORS}
