"""A loss that a model computes itself, in addition to or instead of `compile`'s."""

import keras
from keras import ops


def computed_loss(value):
    """A scalar as a Keras loss: divided by the number of training devices.

    Keras divides mean losses among the devices, but not scalars.
    """
    values = ops.expand_dims(value, 0)
    return _Computed(name="computed_loss")(values, values)


class _Computed(keras.losses.Loss):
    """The mean of values, divided by the number of training devices."""

    def call(self, y_true, y_pred):
        return y_pred
