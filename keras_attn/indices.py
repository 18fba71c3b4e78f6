"""Indices into tables: token ids, positions, classes, and which of them a model takes.

A compiled graph does not check them: outside its table an index wraps around, is
clamped or gives whatever the backend gives. So they are checked where their values
are known, in eager calls and before an artefact's runtime is called.
"""

import inspect

import keras
import numpy as np
from keras import ops

# The least index, and the first that is too large; None = there is no limit.
IndexRange = tuple[int, int | None]
# Operations whose results are indices if their inputs are, by their class's name.
_PASSING = {
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
    """Raises where an index is out of range; symbols of a graph are not looked at.

    Args:
        name: The argument, for the message.
        values: A tensor or an array.
        allowed: The least index and the first that is too large.

    Raises:
        ValueError: naming the argument, the first wrong index and what is allowed.
    """
    array = known_values(values)
    if array is None or array.dtype.kind not in "iu" or not array.size:
        return
    low, high = allowed
    if array.min() >= low and (high is None or array.max() < high):
        return
    wrong = (array < low) if high is None else (array < low) | (array >= high)
    where = tuple(int(axis) for axis in np.argwhere(wrong)[0])
    raise ValueError(
        f"`{name}` must be "
        + (f"at least {low}" if high is None else f"in [{low}, {high})")
        + f", under a mask too. Received: {int(array[where])} at index {where}"
    )


def known_values(tensor) -> np.ndarray | None:
    """A tensor's values, or None for a symbol of a graph that is being traced."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if isinstance(tensor, keras.KerasTensor):
        return None
    try:
        return np.asarray(ops.convert_to_numpy(tensor))
    # TensorFlow's and JAX' errors for a symbol, and for a tensor split over devices.
    except (NotImplementedError, TypeError, ValueError):
        return None


def index_ranges(model: keras.Model) -> dict[str, IndexRange]:
    """The range of each input that indexes a table, by the input's name.

    Read from the layers that take it, directly or reshaped: any `Embedding`, and a
    layer with `index_ranges`, a dictionary by the arguments of its `call`.

    Args:
        model: A functional model; any other has no known ranges.

    Returns:
        A range by input name; an input that indexes nothing is left out.
    """
    ranges = {x.name: index_range(model, x) for x in getattr(model, "inputs", ()) or ()}
    return {name: found for name, found in ranges.items() if found is not None}


def index_range(model: keras.Model, tensor) -> IndexRange | None:
    """The range of one symbolic tensor of a functional model, or None."""
    found: IndexRange | None = None
    for operation, node in _consumers(model, tensor):
        if type(operation).__name__ in _PASSING:
            ranges = [index_range(model, output) for output in node.output_tensors]
        else:
            ranges = [_argument_range(operation, node, tensor)]
        for one in ranges:
            found = _both(found, one)
    return found


def _consumers(model, tensor):
    # A sequential model is a functional one inside.
    model = getattr(model, "_functional", None) or model
    for operation in getattr(model, "operations", ()):
        for node in operation._inbound_nodes:
            if any(one is tensor for one in node.input_tensors):
                yield operation, node


def _argument_range(operation, node, tensor) -> IndexRange | None:
    """The range that an operation allows for the argument that `tensor` is."""
    if isinstance(operation, keras.Model):
        inner = (getattr(operation, "_functional", None) or operation).inputs
        outer = node.input_tensors
        if len(inner) != len(outer):
            return None
        places = zip(inner, outer, strict=True)
        return index_range(operation, next(a for a, b in places if b is tensor))
    if isinstance(operation, keras.layers.Embedding):
        return (0, operation.input_dim)
    declared = getattr(operation, "index_ranges", {})
    if not declared:
        return None
    arguments = inspect.signature(operation.call).bind(
        *node.arguments.args, **node.arguments.kwargs
    )
    found = None
    for name, value in arguments.arguments.items():
        if value is tensor:
            found = _both(found, declared.get(name))
    return found


def _both(one: IndexRange | None, other: IndexRange | None) -> IndexRange | None:
    """What two ranges have in common."""
    if one is None or other is None:
        return one or other
    highs = [high for high in (one[1], other[1]) if high is not None]
    return max(one[0], other[0]), min(highs, default=None)
