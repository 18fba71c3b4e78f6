"""Losses that are a mean over the targets that count, on any number of devices."""

from typing import Any

import keras
from keras import ops

from keras_attn.checks.configuration import Configured
from keras_attn.kernels.replicas import mean_loss


class WeightedMeanLoss(Configured, keras.losses.Loss):
    """`Σ w·loss / Σ w` over the targets of a whole batch.

    Keras' own reduction of this name divides by the weights of each device's part of
    the batch: a target counts more in the part that has fewer of them.

    Args:
        reduction: `"mean_with_sample_weight"`, or any other Keras reduction.
        name: Name of the loss.
        dtype: Dtype of the computation. Default: float32, under every policy. Labels
            are cast to it too, and 16 bits cannot hold every label.
    """

    def __init__(self, *, reduction="mean_with_sample_weight", name=None, dtype=None):
        super().__init__(name=name, reduction=reduction, dtype=dtype or "float32")

    def __call__(self, y_true, y_pred, sample_weight: Any = None):
        """Computes the loss; see the class.

        Args:
            y_true: Labels.
            y_pred: Predictions, of which a Keras mask leaves targets out.
            sample_weight: In the shape of the losses or of their leading axes, or None.
        """
        if self.reduction != "mean_with_sample_weight":
            return super().__call__(y_true, y_pred, sample_weight)
        mask = getattr(y_pred, "_keras_mask", None)
        with keras.name_scope(self.name):
            y_true, y_pred = (
                ops.convert_to_tensor(x, dtype=self.dtype) for x in (y_true, y_pred)
            )
            losses = self.call(y_true, y_pred)
            weights = ops.ones_like(losses)
            for given in (sample_weight, mask):
                if given is not None:
                    weights = ops.multiply(weights, broadcastable(given, losses))
            return mean_loss(ops.sum(losses * weights), ops.sum(weights))


def broadcastable(weights, values):
    """Weights of the leading axes, cast and with axes added to broadcast to values.

    As in Keras, a last axis of one too many is removed.
    """
    weights = ops.cast(weights, values.dtype)
    if len(weights.shape) == len(values.shape) + 1:
        weights = ops.squeeze(weights, -1)
    for _ in range(len(values.shape) - len(weights.shape)):
        weights = ops.expand_dims(weights, -1)
    return weights
