"""Test cases of layers, and helpers for the tests that run them.

Sizes are distinct primes, so that each axis is identified by its size and swapped axes
are noticed. The last axis of attention scores must be a length: T, S, KNOWN or CACHE.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

B, T, S = 2, 5, 7  # Batch, and the lengths of queries and keys.
D, E, F = 11, 13, 17  # Widths of queries, values and keys.
HEADS, KEY_DIM, VALUE_DIM = 3, 19, 23
UNITS = 29
CACHE = 41  # Length of a cache.
REAL = 3  # Positions before the padding, of T or of S.
TARGETS = 3  # Targets of a query stream.
KNOWN = S + T  # Memory and inputs.
# Integers that index no table.
NUMBERS = ("num_proposals", "classes", "query_positions", "key_positions")
UNKNOWN = (B, T, S, KNOWN, 2 * T)  # Input sizes that a model need not know.
LENGTHS = (*UNKNOWN, KNOWN + T, 1 + T, 1 + S)  # The same of outputs.

# Options of a block, none of them at its default.
BLOCK_OPTIONS: dict[str, Any] = {
    "activation": "relu",
    "layer_norm_epsilon": 1e-3,
    "dropout": 0.1,
    "attention_dropout": 0.2,
    "kernel_initializer": "he_normal",
    "seed": 3,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, and one way to call it.

    Args:
        make: Creates the layer.
        inputs: Shapes of the tensors that it is called with, by argument.
        static: The other arguments of the call.
        hides: Whether what a padding mask masks has an effect without the mask alone.
        causal_over: An argument whose later positions must not influence earlier
            outputs.
        ids_below: Upper bound of `inputs` if they are ids.
        stays_float32: Whether outputs are float32 in mixed precision too.
        ranks: Whether outputs are sorted or selected by scores, so that rounding
            decides among equal ones.
        pixels: Whether `inputs` are images as they are in files, from 0 to 255.
    """

    make: Callable[[], keras.layers.Layer]
    inputs: dict
    static: dict = dataclasses.field(default_factory=dict)
    hides: bool = True
    causal_over: str | None = None
    ids_below: int | None = None
    stays_float32: bool = False
    ranks: bool = False
    pixels: bool = False

    @property
    def padding(self):
        """Maps a padding mask to the inputs it masks: features of each position."""
        return {
            mask: hidden
            for mask, shape in self.inputs.items()
            if mask.endswith("padding_mask")
            and self.hides
            and (hidden := tuple(self._features_at(shape)))
        }

    def _features_at(self, positions):
        for name, shape in self.inputs.items():
            is_list = isinstance(shape, list)
            if not is_list and shape[:-1] == positions and name != "same_segment":
                yield name


def tensors(case, seed=0) -> dict[str, Any]:
    """The inputs of a case as arrays: real keys first, then padding."""
    rng = np.random.default_rng(seed)

    def draw(name, shape):
        if isinstance(shape, list):
            return [draw(name, part) for part in shape]
        if name.endswith("padding_mask"):
            return np.broadcast_to(np.arange(shape[-1]) < REAL, shape).copy()
        if name == "attention_mask":
            # The diagonal is True, so that no row is empty.
            return rng.random(shape) < 0.5 + np.eye(*shape[-2:])
        if name == "same_segment":
            return rng.random(shape) < 0.5
        if name == "permutation_mask":
            turn = rng.permuted(np.tile(np.arange(T), (B, 1)), axis=1)
            return turn[:, :, None] > turn[:, None]
        if name == "target_mapping":
            return np.tile(np.eye(T, dtype="float32")[1 : TARGETS + 1], (B, 1, 1))
        if name == "places":
            ranks = np.tile(np.arange(shape[1], dtype="int32"), (shape[0], 1))
            return rng.permuted(ranks, axis=1)
        if name == "hidden":
            return rng.random(shape) < 0.5
        if name in ("boxes", "proposals"):
            corners = rng.uniform(0, 40, (*shape[:-1], 2))
            sizes = rng.uniform(5, 40, corners.shape)
            return np.concatenate([corners, corners + sizes], -1).astype("float32")
        if name == "num_proposals":
            return np.arange(11, 11 + shape[0], dtype="int32")
        if name == "widths":
            return rng.integers(0, S, shape).astype("int32")
        if name == "classes":
            return rng.integers(-1, E - 1, shape).astype("int32")
        if is_ids(case, name):
            below = case.ids_below or E
            return rng.integers(0, below, shape).astype("int32")
        if case.pixels:
            return rng.integers(0, 256, shape).astype("float32")
        return rng.uniform(-1, 1, shape).astype("float32")

    return {name: draw(name, shape) for name, shape in case.inputs.items()}


def far_from_zero(case, inputs, deviation=0.01):
    """The inputs with features whose mean is a thousand times their deviation.

    Args:
        case: The case, for which inputs are ids.
        inputs: From `tensors`.
        deviation: Factor of the features before 10 is added. With 0 every row is
            constant.
    """

    def move(name, value):
        if isinstance(value, list):
            return [move(name, part) for part in value]
        is_order = name in ("noise", "target_mapping", "boxes", "proposals")
        if is_order or is_ids(case, name) or value.dtype != np.float32:
            return value
        return (10 + deviation * value).astype("float32")

    return {name: move(name, value) for name, value in inputs.items()}


def is_ids(case, name):
    """Whether an input of a case holds integers."""
    ids = ("positions", "places", "labels", "indices", "widths", "codes", "token_ids")
    is_one = name == "inputs" and case.ids_below is not None
    return is_one or name in (*ids, *NUMBERS)


def symbols(case, known):
    """The inputs of a case as `keras.Input`s, with known or unknown lengths."""
    if "cache" in case.inputs and keras.config.backend() == "jax":
        known = True  # JAX can't check whether an unknown length fits into the cache.

    def symbol(name, shape):
        if isinstance(shape, list):
            return [symbol(f"{name}_{i}", part) for i, part in enumerate(shape)]
        axes = shape if known else [None if n in UNKNOWN else n for n in shape]
        is_mask = name.endswith(("_mask", "same_segment", "hidden"))
        dtype = "bool" if is_mask else None
        dtype = "int32" if is_ids(case, name) else dtype
        return keras.Input(batch_shape=tuple(axes), dtype=dtype, name=name)

    return {name: symbol(name, shape) for name, shape in case.inputs.items()}


def functional(case, layer, known=False):
    """The layer of a case as a functional model of its inputs."""
    inputs = symbols(case, known)
    return keras.Model(inputs, layer(**inputs, **case.static))


def built(case, seed=1):
    """The layer of a case, called once, with random weights."""
    layer = case.make()
    layer(**tensors(case), **case.static)
    randomize(layer, seed)
    return layer


def randomize(layer, seed=1):
    """Assigns random values to every trainable weight, including biases."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        weight.assign(rng.uniform(-0.5, 0.5, weight.shape))


def built_on(layer, *call):
    """The layer, built by a call with these arguments, with random weights."""
    layer(*call)
    randomize(layer)
    return layer


def normal(*shape, seed=0):
    """A float32 array of samples from N(0, 1)."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def flat(outputs):
    """The tensors of a nested output, as arrays."""
    return [
        np.asarray(ops.convert_to_numpy(ops.cast(output, "float32")))
        for output in keras.tree.flatten(outputs)
    ]


def assert_close(actual, expected, atol=1e-5):
    """Compares nested outputs, tensor by tensor."""
    actual, expected = flat(actual), flat(expected)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=atol)


def gradients(layer, **call) -> dict[str, Any]:
    """The gradient of a fixed random sum of the outputs, for every weight.

    Returns:
        Path of the trainable weight to its gradient as an array, or None.
    """

    def loss(outputs):
        rng = np.random.default_rng(7)
        total = ops.zeros(())
        for output in keras.tree.flatten(outputs):
            factors = rng.normal(size=output.shape).astype("float32")
            total += ops.sum(ops.cast(output, "float32") * factors)
        return total

    variables = layer.trainable_variables
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            total = loss(layer(**call))
        found = tape.gradient(total, [variable.value for variable in variables])
    else:
        import jax

        fixed = [variable.value for variable in layer.non_trainable_variables]
        # One program compiles sooner than each of its operations.
        found = jax.jit(
            jax.grad(
                lambda trained: loss(layer.stateless_call(trained, fixed, **call)[0])
            )
        )([variable.value for variable in variables])
    return {
        variable.path: None if gradient is None else ops.convert_to_numpy(gradient)
        for variable, gradient in zip(variables, found, strict=True)
    }
