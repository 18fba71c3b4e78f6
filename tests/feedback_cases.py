"""Completions with padding on either side, and functions that run in every way."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from model_cases import numpy

BACKEND = keras.backend.backend()
# Eager, in a graph of unknown lengths, and compiled by XLA.
every_way = pytest.mark.parametrize("way", ["eager", "graph", "xla"])

# Padding at the right, at the left, on both sides, nowhere, and nothing else.
MASK = np.array(
    [
        [1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1],
        [0, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 0, 0],
    ],
    bool,
)
B, T = MASK.shape


def normal(shape=(B, T), seed=0, scale=1.0):
    """Normal numbers, float32."""
    return np.random.default_rng(seed).normal(0, scale, shape).astype("float32")


def floats(values):
    """A list as an array, float32."""
    return np.array(values, "float32")


def integers(values):
    """A list as an array, int32."""
    return np.array(values, "int32")


def untyped(function) -> Any:
    """A function, for arguments that a type checker refuses."""
    return function


def with_noise(values, mask=MASK):
    """The values, and NaN where the mask is 0."""
    return np.where(mask, values, np.float32("nan"))


def run(function, *inputs, way="eager") -> Any:
    """What a function of tensors returns, as NumPy arrays.

    Args:
        function: From tensors to a tensor or a tuple of them.
        *inputs: Arrays.
        way: See `every_way`. On other backends than TensorFlow everything is eager.
    """
    inputs = [ops.convert_to_tensor(x) for x in inputs]
    if way != "eager" and BACKEND == "tensorflow":
        import tensorflow as tf

        signature = None
        if way == "graph":
            signature = [tf.TensorSpec([None] * len(x.shape), x.dtype) for x in inputs]
        function = tf.function(
            function,
            input_signature=signature,
            jit_compile=way == "xla",
            autograph=False,
        )
    return keras.tree.map_structure(numpy, function(*inputs))


def run_with_gradients(function, *inputs, way="eager") -> tuple[Any, Any]:
    """What a function returns, and the gradients of its first output, or only one.

    Args:
        function: From tensors to a scalar, or a tuple that begins with one.
        *inputs: Arrays of floats.
        way: See `every_way`.
    """
    if BACKEND == "jax":
        import jax

        def scalar(*arrays):
            found = function(*arrays)
            return (found[0] if isinstance(found, tuple) else found), found

        arguments = tuple(range(len(inputs)))
        slopes, found = jax.grad(scalar, arguments, has_aux=True)(
            *map(ops.convert_to_tensor, inputs)
        )
        return keras.tree.map_structure(numpy, (found, list(slopes)))

    import tensorflow as tf

    def both(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            found = function(*arrays)
        first = found[0] if isinstance(found, tuple) else found
        zero = tf.UnconnectedGradients.ZERO
        return found, tape.gradient(first, arrays, unconnected_gradients=zero)

    return run(both, *inputs, way=way)


def slopes_of(function, array, step=1e-4):
    """The gradient of a function of a float64 array, by differences."""
    array = np.array(array, "float64")
    slopes = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        if np.isnan(array[index]):
            continue
        values = []
        for sign in (1, -1):
            moved = array.copy()
            moved[index] += sign * step
            values.append(function(moved))
        slopes[index] = (values[0] - values[1]) / (2 * step)
    return slopes
