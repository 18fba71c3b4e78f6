"""Range checks of indices into tables: token ids, positions, classes.

Compiled graphs do not check them: an index out of range wraps around, is clamped or
returns garbage, depending on the backend. So they are checked where their values are
known, in eager calls and before the runtime of an exported model is called. The latter
works on arrays and needs no Keras, which is therefore imported where it is used.
"""

import inspect
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import keras

# The smallest index and the first that is too large; None = no limit.
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


def check_indices(name: str, values, allowed: IndexRange) -> None:
    """Raises if an index is out of range; symbolic tensors are not checked.

    Args:
        name: Name of the argument, for the message.
        values: A tensor or an array.
        allowed: The smallest index and the first that is too large.

    Raises:
        ValueError: naming the argument, the first wrong index and the allowed range.
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
    # TensorFlow's and JAX' errors for symbolic tensors and for sharded ones.
    except (NotImplementedError, TypeError, ValueError):
        return None


def index_ranges(model: "keras.Model") -> dict[str, IndexRange]:
    """The range of each input that indexes a table, by the name of the input.

    It follows from the layers that consume the input, directly or reshaped: any
    `Embedding`, and layers with an attribute `index_ranges`, a dictionary from the
    arguments of `call` to ranges.

    Args:
        model: A functional model; the ranges of any other are unknown.

    Returns:
        The ranges by input name, without the inputs that index no table.
    """
    inputs = getattr(model, "inputs", ()) or ()
    ranges = {tensor.name: index_range(model, tensor) for tensor in inputs}
    return {name: allowed for name, allowed in ranges.items() if allowed is not None}


def index_range(model: "keras.Model", tensor) -> IndexRange | None:
    """The range of one symbolic tensor of a functional model, or None."""
    allowed: IndexRange | None = None
    for operation, node in _consumers(model, tensor):
        if type(operation).__name__ in _PASS_THROUGH:
            ranges = [index_range(model, output) for output in node.output_tensors]
        else:
            ranges = [_argument_range(operation, node, tensor)]
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


def _argument_range(operation, node, tensor) -> IndexRange | None:
    """The range that an operation allows for its argument `tensor`."""
    import keras

    if isinstance(operation, keras.Model):
        inner = (getattr(operation, "_functional", None) or operation).inputs
        outer = node.input_tensors
        if len(inner) != len(outer):
            return None
        pairs = zip(inner, outer, strict=True)
        return index_range(operation, next(a for a, b in pairs if b is tensor))
    if isinstance(operation, keras.layers.Embedding):
        return (0, operation.input_dim)
    declared = getattr(operation, "index_ranges", {})
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
