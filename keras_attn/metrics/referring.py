"""Accuracy of phrases that refer to a region of an image.

Legend: B batch.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_share
from keras_attn.checks.configuration import Configured
from keras_attn.losses.referring import check_overlaps


@keras.saving.register_keras_serializable("keras_attn")
class ReferringAccuracy(Configured, keras.metrics.MeanMetricWrapper):
    """Share of the phrases whose best region overlaps the true box enough.

    Args:
        min_iou: The smallest overlap that is right, in [0, 1].
        name: Name of the metric.
        dtype: Dtype of the sums. Default: float32, under every policy.

    Call arguments:
        y_true: As of `ReferringCrossEntropy`.
        y_pred: As of `ReferringCrossEntropy`.
        sample_weight: (B,).

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: As `ReferringCrossEntropy`.

    Reference:
        Lu et al. 2019, section 3.2, "Grounding Referring Expressions"
        (arXiv:1908.02265).
    """

    def __init__(self, min_iou: float = 0.5, name="referring_accuracy", dtype=None):
        self.min_iou = check_share("min_iou", min_iou)
        super().__init__(self._is_right, name=name, dtype=dtype or "float32")

    def _is_right(self, y_true, y_pred):
        """1 for each phrase whose best region is right, (B,)."""
        check_overlaps(y_true, y_pred)
        best = ops.argmax(y_pred, axis=-1, keepdims=True)
        overlap = ops.take_along_axis(y_true, best, axis=-1)[:, 0]
        return ops.cast(overlap >= self.min_iou, "float32")
