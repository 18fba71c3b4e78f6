"""Numbers to predict, scaled for training to mean 0 and deviation 1.

A network that starts near 0 does not reach prices of 240,000 at a learning rate that
suits its weights. It learns `(y - mean) / deviation`; what is saved predicts `y`.
"""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_attn.metrics import PearsonCorrelation, SpearmanCorrelation
from keras_attn.models.checkpoints.saving import can_be_saved
from keras_attn.models.parts.functional import Functional

_LAYER = "label_scale"


@dataclass(frozen=True)
class LabelScale:
    """The mean and the deviation of the labels of a training set.

    Attributes:
        mean: Their mean.
        deviation: Their standard deviation; 1 if all are equal.
    """

    mean: float
    deviation: float

    @classmethod
    def of(cls, labels: np.ndarray) -> "LabelScale":
        """The scale of labels, (N,)."""
        numbers = np.asarray(labels, np.float64)
        deviation = float(numbers.std())
        # Equal labels may deviate by their rounding.
        smallest = float(np.abs(numbers).max()) * np.finfo(np.float32).eps
        is_equal = deviation <= smallest
        return cls(float(numbers.mean()), 1.0 if is_equal else deviation)

    def standardize(self, labels: np.ndarray) -> np.ndarray:
        """Labels of mean 0 and deviation 1, float32."""
        numbers = (np.asarray(labels, np.float64) - self.mean) / self.deviation
        return numbers.astype(np.float32)

    def metrics(self, max_samples: int) -> list[keras.metrics.Metric]:
        """Errors, in the unit of the labels, and correlations of standardized numbers.

        Args:
            max_samples: See `SpearmanCorrelation`.
        """

        def absolute(y_true, y_pred):
            return self.deviation * keras.ops.abs(y_true - y_pred)

        def squared(y_true, y_pred):
            return self.deviation**2 * keras.ops.square(y_true - y_pred)

        return [
            _Mean(absolute, name="mean_absolute_error"),
            _Root(squared, name="root_mean_squared_error"),
            PearsonCorrelation(),
            SpearmanCorrelation(max_samples),
        ]

    def into(self, model: Any) -> Any:
        """A model that predicts in the unit of the labels, from a standardized one."""
        return _rescaled(model, self.deviation, self.mean)

    def out_of(self, model: Any) -> Any:
        """A standardized model, from one that predicts in the unit of the labels."""
        return _rescaled(model, 1 / self.deviation, -self.mean / self.deviation)


class _Mean(keras.metrics.MeanMetricWrapper):
    """The mean over examples, (B, 1) or (B,)."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        true = keras.ops.reshape(keras.ops.cast(y_true, "float32"), (-1,))
        predicted = keras.ops.reshape(keras.ops.cast(y_pred, "float32"), (-1,))
        return super().update_state(true, predicted, sample_weight)


class _Root(_Mean):
    """The root of a mean."""

    def result(self):
        return keras.ops.sqrt(super().result())


def _rescaled(model: Any, scale: float, offset: float) -> Any:
    """A model whose outputs are `scale * output + offset`.

    The last layer of a model with a checkpoint layout takes the numbers into its
    weights, so that other libraries read them too. Any other model gets a layer, which
    replaces an earlier one.
    """
    last = model.layers[-1]
    if holds_scale(model):
        last.kernel.assign(last.kernel * scale)
        last.bias.assign(last.bias * scale + offset)
        return model
    output = model.output
    if last.name == _LAYER:
        scale, offset = scale * last.scale, scale * last.offset + offset
        operation, number, _ = output._keras_history
        output = operation._inbound_nodes[number].input_tensors[0]
    layer = keras.layers.Rescaling(scale, offset, dtype="float32", name=_LAYER)
    return Functional(model.input, layer(output), name=model.name)


def holds_scale(model: Any) -> bool:
    """Whether the last layer of a model with a checkpoint layout takes a scale.

    It is a product with a bias, of numbers that are neither integers nor updated by
    LoRA.
    """
    layer = model.layers[-1]
    return (
        can_be_saved(model)
        and isinstance(layer, keras.layers.Dense)
        and layer.use_bias
        and layer.activation is keras.activations.linear
        and isinstance(layer._kernel, keras.Variable)
    )
