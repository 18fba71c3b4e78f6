"""Operators of a traced model that a format has no form of, refused before conversion.

The converters refuse most of what they lack, by name (`RefusedError`). Here is what
they refuse late, with an error of their own, or convert to something else.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from keras_attn.export.errors import LEAVE_OUT, RefusedError
from keras_attn.export.formats import Format
from keras_attn.export.signatures import Signature

_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_TABLES = ("LookupTable", "HashTable", "MutableHashTable", "AnonymousHashTable")
_FOURIER = {"FFT", "IFFT", "FFT2D", "IFFT2D", "FFT3D", "IFFT3D", "IRFFT", "IRFFT2D"}
# Operators that only pass their input on, and those that the converters leave out.
_PLUMBING = {
    *("Placeholder", "Const", "Identity", "Reshape", "Squeeze", "ExpandDims"),
    "Assert",
}
_ASSIGN = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


def check_operators(
    format: Format, signatures: list[Signature], functions: Mapping[str, Any]
) -> None:
    """Raises for operators that a format cannot hold at any shape.

    Args:
        format: The format.
        signatures: The signatures of the model.
        functions: The concrete function of each, by name.

    Raises:
        RefusedError: If there are such operators; with their places and what to do.
    """
    for signature in signatures:
        function = functions[signature.name]
        nodes = list(_nodes(function))
        operations = function.graph.get_operations()
        _refuse(
            [node for node in nodes if node.op in _PYTHON],
            "A file cannot hold a call of Python",
            "Build the layer from operations of TensorFlow or Keras",
            signature,
        )
        if not format.takes_strings:
            strings = {x.name for x in operations if _has_strings(x)}
            _refuse(
                [node for node in nodes if _is_of_strings(node, strings, format)],
                f"{format.title} has no operators for strings or tables",
                LEAVE_OUT,
                signature,
            )
            _refuse_strings(format, signature)
        if not format.takes_complex:
            _refuse(
                [node for node in nodes if node.op in _FOURIER],
                f"{format.title} has a Fourier transform only of real numbers",
                "Use `tf.signal.rfft`, or export a SavedModel",
                signature,
            )
        if not format.shrinks_by_cubic:
            _refuse(
                [x.node_def for x in operations if _shrinks_by_cubic(x)],
                f"{format.title}'s runtime does not shrink images by bicubic "
                "interpolation",
                "Use `bilinear`, or export a SavedModel",
                signature,
            )
        if not format.keeps_state:
            _refuse(
                _changing(function),
                f"{format.title} has no variables that change from call to call",
                "Make the state an input and an output (an RNN: `initial_state=` and "
                "`return_state=True` in place of `stateful=True`), or export a "
                "SavedModel",
                signature,
            )


def _refuse(nodes: list, reason: str, advice: str, signature: Signature) -> None:
    if not nodes:
        return
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(node.op for node in nodes))
    raise RefusedError(
        f"{reason} ({names})",
        tuple(node.name for node in nodes),
        (signature.name,),
        advice=advice,
        at_any_shape=True,
    )


def _refuse_strings(format: Format, signature: Signature) -> None:
    """Raises for strings that only pass through the model."""
    inputs = [
        name for name, spec in signature.inputs.items() if spec.dtype == tf.string
    ]
    if inputs:
        names = ", ".join(f"`{name}`" for name in inputs)
        raise RefusedError(
            f"{format.title} has no strings, which the input {names} takes",
            signatures=(signature.name,),
            advice=LEAVE_OUT,
            at_any_shape=True,
        )


def _nodes(function: Any) -> Iterator[Any]:
    """The nodes of a concrete function, and of those that it calls."""
    graph = function.graph.as_graph_def()
    yield from graph.node
    for inner in graph.library.function:
        yield from inner.node_def


def _has_strings(operation: Any) -> bool:
    tensors = (*operation.inputs, *operation.outputs)
    return any(tensor.dtype == tf.string for tensor in tensors)


def _is_of_strings(node: Any, strings: set[str], format: Format) -> bool:
    """Whether a node computes with strings, or looks something up in a table."""
    types = {name: value.type for name, value in node.attr.items() if value.type}
    is_table = node.op.startswith(_TABLES)
    if is_table and format.has_label_tables:
        keys = types.get("Tin", types.get("key_dtype"))
        values = types.get("Tout", types.get("value_dtype"))
        if (keys, values) == (tf.int64.as_datatype_enum, tf.string.as_datatype_enum):
            return False
    has_strings = node.name in strings or tf.string.as_datatype_enum in types.values()
    return is_table or (has_strings and node.op not in _PLUMBING)


def _shrinks_by_cubic(operation: Any) -> bool:
    """Whether a resizing may give images fewer rows or columns."""
    if operation.type != "ResizeBicubic":
        return False
    before, after = (x.shape[1:3] for x in (operation.inputs[0], operation.outputs[0]))
    return any(
        size is not None and (given is None or size < given)
        for given, size in zip(before, after, strict=True)
    )


def _changing(function: Any) -> list:
    """The operations that change a variable, except the states of random numbers."""
    seeds = {
        inner.name
        for outer, inner in function.graph.captures
        for variable in function.graph.variables
        if outer is variable.handle and "seed_generator_state" in variable.name
    }
    return [
        operation.node_def
        for operation in function.graph.get_operations()
        if operation.type in _ASSIGN and operation.inputs[0].name not in seeds
    ]
