"""The loss of masked regions: the detector's distribution over its classes.

Legend: B batch, R regions, C classes of the detector.
"""

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import fits
from keras_attn.checks.indices import known_values
from keras_attn.losses.weighted_mean import WeightedMeanLoss

# How far the sum of a distribution in float16 may be from 1.
_TOLERANCE = 0.01


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
            or zeros where the weight is 0. Sums are checked where values are known: in
            eager calls, and in arrays that a model of this library learns from. A
            compiled graph, such as a data set's, takes what it is given.
        y_pred: Logits (B, R, C).
        sample_weight: (B, R).

    Returns:
        A scalar, or (B, R) with `reduction="none"`.

    Raises:
        ValueError: If `y_true` and `y_pred` have different shapes, or a known
            distribution does not sum to 1.

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
        if not fits(y_pred.shape, y_true.shape, empty_axes=(0, 1, 2)):
            raise ValueError(
                "`y_true` must have the shape of the logits, (batch, regions, classes "
                f"of the detector). Received: y_true.shape={tuple(y_true.shape)}, "
                f"y_pred.shape={tuple(y_pred.shape)}"
            )
        self.check_targets("y_true", y_true)
        # Where the target is 0, 0 · log 0 is 0.
        entropy = ops.multiply(y_true, ops.log(ops.where(y_true > 0, y_true, 1.0)))
        cross = ops.multiply(y_true, ops.log_softmax(y_pred, axis=-1))
        return ops.sum(ops.subtract(entropy, cross), axis=-1)

    def check_targets(self, name: str, targets) -> None:
        """Raises unless known targets are distributions, or zeros.

        Args:
            name: What to call them in the message.
            targets: (B, R, C); symbolic tensors are not checked.

        Raises:
            ValueError: If one is negative or does not sum to 1.
        """
        array = known_values(targets)
        if array is None or not array.size:
            return
        sums = array.sum(axis=-1, dtype="float64")
        is_wrong = (np.abs(sums - 1) > _TOLERANCE) & (sums != 0)
        is_wrong |= array.min(axis=-1) < 0
        if is_wrong.any():
            first = tuple(int(axis) for axis in np.argwhere(is_wrong)[0])
            raise ValueError(
                f"`{name}` must be distributions over the detector's classes, which "
                "sum to 1, or zeros for regions that are not masked. Received: the sum "
                f"{sums[first]:.4g} and the smallest number {array[first].min():.4g} "
                f"at index {first}"
            )
