"""Dropout with 16 random bits per unit."""

import functools

import keras

from keras_attn.docstrings.descriptions import described_as
from keras_attn.kernels.dropout import RandomDropout, dropout
from keras_attn.kernels.runtime import is_tensorflow


@keras.saving.register_keras_serializable("keras_attn")
@described_as(keras.layers.Dropout)
class Dropout(keras.layers.Dropout):
    """Drops units at random in training, and scales up the others by `1 / (1 - rate)`.

    The same as Keras' layer, but faster on TensorFlow: see
    `keras_attn.kernels.dropout`. On other backends, and with a `noise_shape`, Keras'
    implementation is used.

    Args:
        rate: Probability in [0, 1] of dropping a unit.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (...).

    Returns:
        (...), with the mean of the inputs.

    Reference:
        Srivastava et al. 2014 (Journal of Machine Learning Research 15).
    """

    def call(self, inputs, training=False):
        is_random = training and 0 < self.rate < 1
        if not is_random or self.noise_shape is not None or not is_tensorflow():
            return super().call(inputs, training=training)
        return dropout(inputs, self.rate, self.seed_generator.next())


def make_dropout(layer) -> Dropout:
    """A dropout layer with the `dropout`, `seed` and dtype policy of a layer."""
    return Dropout(
        layer.dropout, seed=layer.seed, dtype=layer.dtype_policy, name="dropout"
    )


def dropout_function(layer, training):
    """A dropout layer as a function of one tensor.

    Args:
        layer: A `Dropout`, or None.
        training: Whether the call is in training.

    Returns:
        A `RandomDropout`, or None if it would change nothing.
    """
    if layer is None or not layer.rate or not training:
        return None
    function = functools.partial(layer, training=True)
    return RandomDropout(function, layer.rate, layer.seed_generator.next)
