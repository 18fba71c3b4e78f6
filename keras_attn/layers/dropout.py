"""Dropout that spends two bytes of chance on a unit."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_attn")
class Dropout(keras.layers.Dropout):
    """Drops units at random while training and scales up the rest: Keras' own, faster.

    Random numbers are most of what dropout costs on a CPU. A float a unit, which Keras
    draws on TensorFlow, is twice what is needed, and in bfloat16 it is so coarse that a
    rate of 0.1 drops 0.102. Here two units share one random integer: the rate is right
    to 1/65,536, in every precision. Other backends and a `noise_shape` get Keras' own.

    Args:
        rate: Probability in [0, 1] of dropping a unit.
        **kwargs: As for `keras.layers.Dropout`.

    Call arguments:
        inputs: (...).

    Returns:
        (...), with a mean of the inputs.

    Reference:
        Srivastava et al. 2014 (Journal of Machine Learning Research 15).
    """

    def call(self, inputs, training=False):
        if not training or not 0 < self.rate < 1:
            return super().call(inputs, training=training)
        if keras.backend.backend() != "tensorflow" or self.noise_shape is not None:
            return super().call(inputs, training=training)
        return _dropout(inputs, self.rate, self.seed_generator.next())


def _dropout(inputs, rate, seed):
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
    chances = tf.reshape(tf.bitcast(pairs, tf.int16), [-1])[:size]
    # Of 65,536 values; all but one, lest nothing be left to scale up.
    dropped = min(round(65_536 * rate), 65_535)
    kept = chances >= tf.constant(dropped - 32_768, tf.int16)
    scale = tf.constant(65_536 / (65_536 - dropped), inputs.dtype)
    return inputs * tf.reshape(tf.cast(kept, inputs.dtype) * scale, shape)
