"""A loss and a metric for a choice among options that a model scores one by one.

The options of a choice are consecutive rows of a batch: four answers to a question, or
the right caption of an image and three wrong ones. So the model that scores one pair
learns to choose, and a batch may have any number of choices.

Legend: G choices, N options of each, G·N rows.
"""

from typing import Any

import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.training.losses.cross_entropy import real_weights

_IGNORED = -1


@keras.saving.register_keras_serializable("keras_attn")
class ChoiceCrossEntropy(keras.losses.Loss):
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
            choice that does not count.
        y_pred: Scores, (G·N, 1) or (G·N,), the options of a choice one after another.
        sample_weight: (G,).

    Returns:
        A scalar, or (G,) with `reduction="none"`.

    Raises:
        ValueError: If `num_options` is not an integer of at least 2; or the scores are
            not N for each label, where these numbers are known.

    Example:
        ```python
        scorer.compile("adamw", ChoiceCrossEntropy(4), metrics=[ChoiceAccuracy(4)])
        scorer.fit(batches)  # Of (inputs of 4 G rows, labels (G,)).
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
        super().__init__(name=name, reduction=reduction, dtype=dtype or "float32")
        self.num_options = _check_num_options(num_options)

    def __call__(self, y_true, y_pred, sample_weight: Any = None):
        """Computes the loss of the choices that count; see the class."""
        y_pred = _by_choice(y_true, y_pred, self.num_options)
        weights = real_weights(y_true, sample_weight, _IGNORED)
        return super().__call__(y_true, y_pred, weights)

    def call(self, y_true, y_pred):
        """Computes the loss of each choice, (G,); `y_pred` is (G, N)."""
        labels = ops.maximum(ops.cast(y_true, "int32"), 0)
        return ops.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)

    def get_config(self):
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "num_options": self.num_options,
            "dtype": self.dtype,
        }


@keras.saving.register_keras_serializable("keras_attn")
class ChoiceAccuracy(keras.metrics.MeanMetricWrapper):
    """Share of the choices whose right option has the largest score.

    Args:
        num_options: N.
        name: Name of the metric.
        dtype: Dtype of the sums. Default: float32, under every policy.

    Call arguments:
        y_true: As of `ChoiceCrossEntropy`.
        y_pred: As of `ChoiceCrossEntropy`.
        sample_weight: (G,).

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: As `ChoiceCrossEntropy`.
    """

    def __init__(self, num_options: int = 4, name="choice_accuracy", dtype=None):
        super().__init__(_is_right, name=name, dtype=dtype or "float32")
        self.num_options = _check_num_options(num_options)

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts the choices of a batch; see the class."""
        y_pred = _by_choice(y_true, y_pred, self.num_options)
        weights = real_weights(y_true, sample_weight, _IGNORED)
        return super().update_state(y_true, y_pred, weights)

    def get_config(self):
        """Returns the arguments of the constructor."""
        return {
            "num_options": self.num_options,
            "name": self.name,
            "dtype": self.dtype,
        }


def _is_right(y_true, y_pred):
    """1 for each choice that is right, (G,)."""
    best = ops.argmax(y_pred, axis=-1)
    return ops.cast(ops.equal(ops.cast(y_true, best.dtype), best), "float32")


def _by_choice(labels, scores, num_options):
    """The scores, (G, N)."""
    rows = scores.shape[0]
    choices = labels.shape[0] if len(labels.shape) == 1 else -1
    is_flat = len(scores.shape) == 1 or tuple(scores.shape[1:]) == (1,)
    if not is_flat or (None not in (rows, choices) and rows != choices * num_options):
        raise ValueError(
            f"The scores must be (G * {num_options}, 1), `num_options` consecutive "
            "rows for each of the labels (G,). Received: "
            f"y_true.shape={tuple(labels.shape)}, y_pred.shape={tuple(scores.shape)}"
        )
    return ops.reshape(scores, (-1, num_options))


def _check_num_options(num_options):
    if check_positive("num_options", num_options) < 2:
        raise ValueError(
            f"`num_options` must be at least 2. Received: num_options={num_options}"
        )
    return num_options
