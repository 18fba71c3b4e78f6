"""Ranges of indices into tables (token ids, positions, classes), and of lengths.

Compiled graphs do not check them: an index out of range wraps around, is clamped or
returns garbage, depending on the backend. So they are checked where their values are
known: in eager calls, and before the runtime of an exported model is called. The
runtime works on arrays and needs no Keras, so Keras is imported only where it is used.
"""

import inspect
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import keras

# The minimum index and the first one that is too large; None = no limit.
IndexRange = tuple[int, int | None]
# Operations that pass indices through unchanged, by the name of their class.
_PASS_THROUGH = {
    "Cast",
    "Concatenate",
    "ExpandDims",
    "Flip",
    "GetItem",
    "Reshape",
    "Squeeze",
    "StopGradient",
}
# Layers and operations whose output is as long as their input, which may stand between
# tokens and the layer that adds their positions.
_KEEPS_LENGTH = {
    "Add",
    "Cast",
    "Dropout",
    "Embedding",
    "LayerNormalization",
    "Multiply",
    "ReversibleEmbedding",
    "StopGradient",
    "TokenEmbedding",
}


def check_indices(name: str, values, allowed: IndexRange) -> None:
    """Raises if an index is out of range; symbolic tensors are not checked.

    Args:
        name: Name of the argument, for the message.
        values: A tensor or an array.
        allowed: The minimum index and the first one that is too large.

    Raises:
        ValueError: If an index is out of range. The message names the argument, the
            first wrong index and the allowed range.
    """
    array = known_values(values)
    if array is None or array.dtype.kind not in "iu" or not array.size:
        return
    low, high = allowed
    if array.min() >= low and (high is None or array.max() < high):
        return
    wrong = (array < low) if high is None else (array < low) | (array >= high)
    first = tuple(int(axis) for axis in np.argwhere(wrong)[0])
    raise ValueError(
        f"`{name}` must be "
        + (f"at least {low}" if high is None else f"in [{low}, {high})")
        + f", also where it is masked. Received: {int(array[first])} at index {first}"
    )


def known_values(tensor) -> np.ndarray | None:
    """The values of a tensor, or None for a symbolic tensor."""
    if isinstance(tensor, np.ndarray):
        return tensor
    import keras
    from keras import ops

    if isinstance(tensor, keras.KerasTensor):
        return None
    try:
        return np.asarray(ops.convert_to_numpy(tensor))
    # The errors of TensorFlow and JAX for symbolic and for sharded tensors.
    except (NotImplementedError, TypeError, ValueError):
        return None


def index_ranges(model: "keras.Model") -> dict[str, IndexRange]:
    """The range of each input that indexes a table, by the name of the input.

    It follows from the layers that consume the input, directly or reshaped: any
    `Embedding`, and layers with an attribute `index_ranges`, a dictionary from the
    arguments of `call` to ranges.

    Args:
        model: A functional model; for any other model the ranges are unknown.

    Returns:
        The ranges by input name, without the inputs that index no table.
    """
    inputs = getattr(model, "inputs", ()) or ()
    ranges = {tensor.name: index_range(model, tensor) for tensor in inputs}
    return {name: allowed for name, allowed in ranges.items() if allowed is not None}


def index_range(model: "keras.Model", tensor) -> IndexRange | None:
    """The range of one symbolic tensor of a functional model, or None."""
    return _range(model, tensor, "index_ranges", _PASS_THROUGH)


def length_ranges(model: "keras.Model") -> dict[str, IndexRange]:
    """The range of the length of each input, its axis 1, by the name of the input.

    It follows from the layers with an attribute `length_ranges`, a dictionary from the
    arguments of `call` to ranges, that the input reaches through layers that keep its
    length.

    Args:
        model: A functional model; for any other model the ranges are unknown.

    Returns:
        The ranges by input name, without the inputs whose length is free or fixed.
    """
    inputs = getattr(model, "inputs", ()) or ()
    ranges = {tensor.name: length_range(model, tensor) for tensor in inputs}
    return {name: allowed for name, allowed in ranges.items() if allowed is not None}


def length_range(model: "keras.Model", tensor) -> IndexRange | None:
    """The range of the length of one symbolic tensor of a functional model, or None."""
    if len(tensor.shape) < 2 or tensor.shape[1] is not None:
        return None
    return _range(model, tensor, "length_ranges", _KEEPS_LENGTH)


def _range(model, tensor, attribute, passing) -> IndexRange | None:
    """The range allowed by the layers that a tensor reaches.

    Args:
        model: A functional model.
        tensor: One of its symbolic tensors.
        attribute: Name of the layer attribute that holds the allowed range.
        passing: Names of the classes that a tensor passes through.
    """
    allowed: IndexRange | None = None
    for operation, node in _consumers(model, tensor):
        if type(operation).__name__ in passing:
            ranges = [
                _range(model, output, attribute, passing)
                for output in node.output_tensors
            ]
        else:
            ranges = []
        ranges.append(_argument_range(operation, node, tensor, attribute, passing))
        for one in ranges:
            allowed = _intersection(allowed, one)
    return allowed


def _consumers(model, tensor):
    # A sequential model wraps a functional one.
    model = getattr(model, "_functional", None) or model
    for operation in getattr(model, "operations", ()):
        for node in operation._inbound_nodes:
            if any(one is tensor for one in node.input_tensors):
                yield operation, node


def _argument_range(operation, node, tensor, attribute, passing) -> IndexRange | None:
    """The range that an operation allows for its argument `tensor`."""
    import keras

    graph = getattr(operation, "_functional", None) or operation
    # A subclassed model has none.
    inner = getattr(graph, "inputs", None)
    if isinstance(operation, keras.Model) and inner:
        outer = node.input_tensors
        if len(inner) != len(outer):
            return None
        pairs = zip(inner, outer, strict=True)
        own = next(a for a, b in pairs if b is tensor)
        return _range(operation, own, attribute, passing)
    if attribute == "index_ranges" and isinstance(operation, keras.layers.Embedding):
        return (0, operation.input_dim)
    declared = getattr(operation, attribute, {})
    if not declared:
        return None
    arguments = inspect.signature(operation.call).bind(
        *node.arguments.args, **node.arguments.kwargs
    )
    allowed = None
    for name, value in arguments.arguments.items():
        if value is tensor:
            allowed = _intersection(allowed, declared.get(name))
    return allowed


def _intersection(
    one: IndexRange | None, other: IndexRange | None
) -> IndexRange | None:
    if one is None or other is None:
        return one or other
    highs = [high for high in (one[1], other[1]) if high is not None]
    return max(one[0], other[0]), min(highs, default=None)
