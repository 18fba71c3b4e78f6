"""A loss that a model computes itself, beside or in place of that of `compile`."""

import keras
from keras import ops


def computed_loss(value):
    """A scalar as a loss of Keras: divided by the number of devices that train.

    Keras divides means of losses among the devices, but not scalars.
    """
    values = ops.expand_dims(value, 0)
    return _Computed(name="computed_loss")(values, values)


class _Computed(keras.losses.Loss):
    """The mean of values, divided by the number of devices that are trained on."""

    def call(self, y_true, y_pred):
        return y_pred
