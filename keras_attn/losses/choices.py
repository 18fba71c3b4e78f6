"""A loss for a choice among options that a model scores one by one.

The options of a choice are consecutive rows of a batch: four answers to a question, or
the right caption of an image and three wrong ones. So the model that scores one pair
learns to choose, and a batch may have any number of choices.

Legend: G choices, N options of each, G·N rows.
"""

from typing import Any

import keras
from keras import ops

from keras_attn.checks.arguments import check_several
from keras_attn.losses.cross_entropy import real_weights
from keras_attn.losses.weighted_mean import WeightedMeanLoss

_IGNORED = -1


@keras.saving.register_keras_serializable("keras_attn")
class ChoiceCrossEntropy(WeightedMeanLoss):
    """`-log softmax(scores of the N options)` of the right option, in nats.

    `Σ w·loss / Σ w`, where w is the sample weight (1 by default), and 0 where the label
    is -1. A batch without labels has the loss 0.

    Args:
        num_options: N.
        reduction: `"mean_with_sample_weight"`, or any other Keras reduction.
        name: Name of the loss.
        dtype: Dtype of the computation. Default: float32, under every policy.

    Call arguments:
        y_true: Index of the right option of each choice, (G,), in [0, N), or -1 for a
            choice that does not count. Or (G·N,), the same for all rows of a choice, as
            arrays and several devices need, which divide inputs and labels alike.
        y_pred: Scores, (G·N, 1) or (G·N,), the options of a choice one after another.
        sample_weight: (G,) or (G·N,), as the labels.

    Returns:
        A scalar, or (G,) with `reduction="none"`.

    Raises:
        ValueError: If `num_options` is not an integer of at least 2; or the scores are
            not N for each label, where these numbers are known.

    Example:
        ```python
        import numpy as np
        from keras_attn import losses

        scores = np.array([[2.0], [0], [0], [1], [0], [0], [3], [1]])  # Two times four.
        losses.ChoiceCrossEntropy(num_options=4)(np.array([0, 2]), scores)  # 0.35
        ```

    Reference:
        Lu et al. 2019, section 3.2, "Visual Commonsense Reasoning" and "Caption-Based
        Image Retrieval" (arXiv:1908.02265).
    """

    def __init__(
        self,
        num_options: int = 4,
        *,
        reduction="mean_with_sample_weight",
        name="choice_cross_entropy",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.num_options = check_several("num_options", num_options)

    def __call__(self, y_true, y_pred, sample_weight: Any = None):
        """Computes the loss of the choices that count; see the class."""
        return super().__call__(
            *by_choice(y_true, y_pred, sample_weight, self.num_options)
        )

    def call(self, y_true, y_pred):
        """Computes the loss of each choice, (G,); `y_pred` is (G, N)."""
        labels = ops.maximum(ops.cast(y_true, "int32"), 0)
        return ops.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)


def by_choice(labels, scores, weights, num_options):
    """Labels (G,), scores (G, N), and weights (G,) that are 0 where a label is -1."""
    labels, scores = ops.convert_to_tensor(labels), ops.convert_to_tensor(scores)
    rows, count = scores.shape[0], labels.shape[0]
    is_flat = len(labels.shape) == 1 and (
        len(scores.shape) == 1 or tuple(scores.shape[1:]) == (1,)
    )
    is_known = rows is not None and count is not None
    if not is_flat or (
        is_known and (rows % num_options or count not in (rows // num_options, rows))
    ):
        raise ValueError(
            f"The scores must be (G * {num_options}, 1), `num_options` consecutive "
            f"rows for each choice, and the labels (G,) or (G * {num_options},). "
            f"Received: y_true.shape={tuple(labels.shape)}, "
            f"y_pred.shape={tuple(scores.shape)}"
        )
    scores = ops.reshape(scores, (-1, num_options))
    choices = ops.shape(scores)[0]

    def of_choices(values):
        return ops.reshape(values, (choices, -1))[:, 0]

    labels = of_choices(labels)
    if weights is not None:
        weights = of_choices(ops.convert_to_tensor(weights))
    return labels, scores, real_weights(labels, weights, _IGNORED)
