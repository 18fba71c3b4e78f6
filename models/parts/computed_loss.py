"""A loss that a model computes itself, in addition to or instead of `compile`'s."""

import keras
from keras import ops

from keras_attn.kernels.runtime import has_distribution_strategy


def computed_loss(value):
    """A scalar as a Keras loss: divided by the number of training devices.

    Keras divides mean losses among the devices, but not scalars.
    """
    values = ops.expand_dims(value, 0)
    return _Computed(name="computed_loss")(values, values)


def mean_over_devices(value):
    """The mean of a scalar over the devices of `tf.distribute` that train.

    A mean over all words of a batch is the sum over a device's own words, divided by
    the mean of the devices' numbers of words, as `computed_loss`. On JAX the arrays of
    a batch are already those of all devices.
    """
    if not has_distribution_strategy():
        return value
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    return value if replica is None else replica.all_reduce("MEAN", value)


class _Computed(keras.losses.Loss):
    """The mean of values, divided by the number of training devices."""

    def call(self, y_true, y_pred):
        return y_pred
