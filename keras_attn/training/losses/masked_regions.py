"""The loss of masked regions: the detector's distribution over its classes.

Legend: B batch, R regions, C classes of the detector.
"""

import keras
from keras import ops

from keras_attn.training.losses.weighted_mean import WeightedMeanLoss


@keras.saving.register_keras_serializable("keras_attn")
class MaskedRegionLoss(WeightedMeanLoss):
    """Mean `KL(target || softmax(logits))` over the masked regions, in nats.

    `Σ w·loss / Σ w` over the regions of the whole batch, where w is the sample weight:
    1 for a masked region, else 0. A batch without a masked region has the loss 0.

    Args:
        reduction: `"mean_with_sample_weight"`, or any other Keras reduction.
        name: Name of the loss.
        dtype: Dtype of the computation. Default: float32, under every policy.

    Call arguments:
        y_true: The detector's distribution of each region, (B, R, C), which sums to 1;
            zeros where the weight is 0.
        y_pred: Logits (B, R, C).
        sample_weight: (B, R).

    Returns:
        A scalar, or (B, R) with `reduction="none"`.

    Raises:
        ValueError: If `y_true` and `y_pred` have different shapes.

    Reference:
        Lu et al. 2019, section 2.2, "Training Tasks and Objectives" (arXiv:1908.02265).
        The authors divide by the number of masked regions too, and get NaN without any.
    """

    def __init__(
        self,
        *,
        reduction="mean_with_sample_weight",
        name="masked_region_loss",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true, y_pred):
        """Computes the divergence of each region, (B, R)."""
        found, wanted = tuple(y_pred.shape), tuple(y_true.shape)
        is_equal = len(found) == len(wanted) and all(
            None in pair or pair[0] == pair[1]
            for pair in zip(found, wanted, strict=True)
        )
        if not is_equal:
            raise ValueError(
                "`y_true` must have the shape of the logits, (batch, regions, classes "
                f"of the detector). Received: y_true.shape={wanted}, "
                f"y_pred.shape={found}"
            )
        # Where the target is 0, 0 · log 0 is 0.
        entropy = ops.multiply(y_true, ops.log(ops.where(y_true > 0, y_true, 1.0)))
        cross = ops.multiply(y_true, ops.log_softmax(y_pred, axis=-1))
        return ops.sum(ops.subtract(entropy, cross), axis=-1)
