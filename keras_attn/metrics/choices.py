"""Accuracy of choices, each among several texts or images.

Legend: G choices in a batch.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_several
from keras_attn.checks.configuration import Configured
from keras_attn.losses.choices import by_choice


@keras.saving.register_keras_serializable("keras_attn")
class ChoiceAccuracy(Configured, keras.metrics.MeanMetricWrapper):
    """Share of the choices whose right option has the largest score.

    Args:
        num_options: N.
        name: Name of the metric.
        dtype: Dtype of the sums. Default: float32, under every policy.

    Call arguments:
        y_true: As of `ChoiceCrossEntropy`.
        y_pred: As of `ChoiceCrossEntropy`.
        sample_weight: As of `ChoiceCrossEntropy`.

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: As `ChoiceCrossEntropy`.
    """

    def __init__(self, num_options: int = 4, name="choice_accuracy", dtype=None):
        super().__init__(_is_right, name=name, dtype=dtype or "float32")
        self.num_options = check_several("num_options", num_options)

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts the choices of a batch; see the class."""
        return super().update_state(
            *by_choice(y_true, y_pred, sample_weight, self.num_options)
        )


def _is_right(y_true, y_pred):
    """1 for each choice that is right, (G,)."""
    best = ops.argmax(y_pred, axis=-1)
    return ops.cast(ops.equal(ops.cast(y_true, best.dtype), best), "float32")
