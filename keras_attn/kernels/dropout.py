"""Dropout with 16 random bits per unit on TensorFlow.

On a CPU most of dropout's cost is drawing random numbers. On TensorFlow Keras draws one
float per unit: twice as many bits as needed, and in bfloat16 so coarse that a rate of
0.1 drops 10.2 % of the units. Here two units share one 32-bit integer, and the rate is
exact to 1/65,536 in every precision.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_attn.kernels.runtime import is_tensorflow


class RandomDropout(NamedTuple):
    """The dropout of a layer in training, for a tensor or for blocks of it.

    Attributes:
        function: Drops units of a tensor.
        rate: Probability of dropping a unit.
        next_seed: Returns two integers, the seed of the next call.
    """

    function: Callable[..., Any]
    rate: float
    next_seed: Callable[[], Any]

    def __call__(self, inputs):
        """Returns the inputs without the units that it drops."""
        return self.function(inputs)


def dropout(inputs, rate, seed):
    """Sets each unit to zero with probability `rate`, and scales up the others.

    Args:
        inputs: (...).
        rate: Probability in (0, 1).
        seed: Two integers, as `keras.random.SeedGenerator.next` returns them.

    Returns:
        (...), with the mean of the inputs.
    """
    if not is_tensorflow():
        import jax

        is_kept = jax.random.bernoulli(seed, 1 - rate, inputs.shape)
        return ops.where(is_kept, inputs / (1 - rate), ops.zeros_like(inputs))
    import tensorflow as tf

    shape = tf.shape(inputs)
    size = tf.reduce_prod(shape)
    pairs = tf.random.stateless_uniform(
        tf.reshape((size + 1) // 2, [1]),
        ops.cast(seed, "int32"),
        minval=None,  # pyright: ignore[reportArgumentType]
        dtype=tf.uint32,
        alg="philox",
    )
    random = tf.reshape(tf.bitcast(pairs, tf.int16), [-1])[:size]
    # How many of the 65,536 values drop a unit: at most all but one, because the scale
    # divides by the number of the remaining values.
    dropping = min(round(65_536 * rate), 65_535)
    is_kept = random >= tf.constant(dropping - 32_768, tf.int16)
    scale = tf.constant(65_536 / (65_536 - dropping), inputs.dtype)
    return inputs * tf.reshape(tf.cast(is_kept, inputs.dtype) * scale, shape)


def fold_in(seed, index):
    """Derives a seed for an index, such as the number of a block.

    The second integer counts the calls of a generator, so the first one must differ.

    Args:
        seed: Two integers, as `keras.random.SeedGenerator.next` returns them.
        index: A scalar integer, from 0.
    """
    # Spread over the integers: the first seeds of two generators may be neighbors.
    spread = ops.convert_to_tensor(2_654_435_761, "uint32")
    step = ops.multiply(ops.cast(ops.add(index, 1), "uint32"), spread)
    seed = ops.cast(seed, "uint32")
    return ops.stack([ops.add(seed[0], step), seed[1]])
