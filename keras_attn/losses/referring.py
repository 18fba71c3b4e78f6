"""A loss for the region that a phrase refers to.

Legend: B phrases, R regions of an image, IoU intersection over union.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_share, fits
from keras_attn.checks.configuration import Configured


@keras.saving.register_keras_serializable("keras_attn")
class ReferringCrossEntropy(Configured, keras.losses.Loss):
    """`Σ_r BCE(IoU_r, logit_r)` over the regions of an image, in nats.

    The target of a region is its intersection over union with the box that the phrase
    refers to, or 0 if that is below `min_iou`. Padding has the logit -1e4 and the
    target 0, which adds nothing.

    Args:
        min_iou: The smallest overlap that is a target, in [0, 1].
        reduction: One of Keras' reductions. Default: the mean over the phrases.
        name: Name of the loss.
        dtype: Dtype of the computation. Default: float32, under every policy.

    Call arguments:
        y_true: IoU of each region with the true box, (B, R), in [0, 1]; 0 in padding.
        y_pred: Logits (B, R), such as of `build_vilbert_referring`.
        sample_weight: (B,).

    Returns:
        A scalar, or (B,) with `reduction="none"`.

    Raises:
        ValueError: If `min_iou` is not in [0, 1], or `y_true` and `y_pred` are not
            (B, R) both.

    Example:
        ```python
        import numpy as np
        from keras_attn import losses, ops

        regions = np.array([[[0.0, 0, 4, 4], [2, 2, 8, 8]]])  # The second is meant.
        overlaps = ops.pairwise_iou(regions, np.array([[[2.0, 2, 8, 7]]]))[..., 0]
        losses.ReferringCrossEntropy()(overlaps, np.array([[-4.0, 2.0]]))
        ```

    Reference:
        Lu et al. 2019, section 3.2, "Grounding Referring Expressions"
        (arXiv:1908.02265); the sum over regions and the limit: the authors' code.
    """

    def __init__(
        self,
        min_iou: float = 0.5,
        *,
        reduction="sum_over_batch_size",
        name="referring_cross_entropy",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype or "float32")
        self.min_iou = check_share("min_iou", min_iou)

    def call(self, y_true, y_pred):
        """Computes the loss of each phrase, (B,)."""
        check_overlaps(y_true, y_pred)
        targets = ops.where(y_true >= self.min_iou, y_true, 0.0)
        # BCE of logits z and targets t: max(z, 0) - z t + log(1 + e^-|z|).
        positive = ops.subtract(ops.relu(y_pred), ops.multiply(y_pred, targets))
        losses = ops.add(positive, ops.log1p(ops.exp(-ops.abs(y_pred))))
        return ops.sum(losses, axis=-1)


def check_overlaps(overlaps, logits):
    """Raises unless both are (batch, regions)."""
    shape, wanted = tuple(logits.shape), tuple(overlaps.shape)
    if len(wanted) != 2 or not fits(shape, wanted, empty_axes=(0, 1)):
        raise ValueError(
            "`y_true` and `y_pred` must be (batch, regions), the overlap of each "
            f"region and its logit. Received: y_true.shape={wanted}, "
            f"y_pred.shape={shape}"
        )
