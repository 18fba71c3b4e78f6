"""Perplexity: how many tokens a language model is, on average, undecided between.

Legend: B batch, T length, V vocabulary.
"""

import keras
from keras import ops

from keras_attn.training.losses import (
    check_token_id,
    real_weights,
    smoothed_cross_entropy,
)


@keras.saving.register_keras_serializable("keras_attn")
class Perplexity(keras.metrics.Metric):
    """`exp(-Σ w log p(y) / Σ w)` over all targets since the last reset.

    The mean is that of the tokens of the epoch: a mean of the batches' perplexities
    would depend on how the tokens fell into batches. No smoothing: a model's
    perplexity is comparable whatever it was fitted by. Given to `compile` among the
    `weighted_metrics`, it gets the sample weights; among the `metrics` it does not.

    Args:
        from_logits: Whether predictions are logits, or probabilities.
        pad_token_id: The target that counts nothing. None = there is no padding, or
            sample weights of 0 say where.
        name: Of the metric.
        dtype: Of the sums. Default: float32, under every policy.

    Call arguments:
        y_true: Whole numbers in [0, V), (B, T), of any rank.
        y_pred: (B, T, V).
        sample_weight: (B, T), or (B,) for all targets of a row. A Keras mask of the
            predictions counts as well.

    Returns:
        A scalar: at best 1, V for a model that knows nothing; 1 before there was any
        target.

    Raises:
        ValueError: unless predictions have one axis more than the labels.
    """

    def __init__(
        self, from_logits=True, *, pad_token_id=None, name="perplexity", dtype=None
    ):
        super().__init__(name=name, dtype=dtype or "float32")
        self.from_logits = from_logits
        self.pad_token_id = check_token_id("pad_token_id", pad_token_id)
        self.total = self.add_variable((), initializer="zeros", name="total")
        self.count = self.add_variable((), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds the targets of a batch; see the class."""
        mask = getattr(y_pred, "_keras_mask", None)
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.cast(y_pred, "float32")
        losses = smoothed_cross_entropy(y_true, y_pred, from_logits=self.from_logits)
        weights = ops.ones_like(losses)
        for given in (mask, real_weights(y_true, sample_weight, self.pad_token_id)):
            if given is not None:
                given = ops.cast(given, losses.dtype)
                for _ in range(len(losses.shape) - len(given.shape)):
                    given = ops.expand_dims(given, -1)
                weights = ops.multiply(weights, given)
        self.total.assign_add(ops.cast(ops.sum(losses * weights), self.dtype))
        self.count.assign_add(ops.cast(ops.sum(weights), self.dtype))

    def result(self):
        """The perplexity of the targets so far."""
        return ops.exp(ops.divide_no_nan(self.total.value, self.count.value))

    def get_config(self):
        """What the constructor takes."""
        return {
            **super().get_config(),
            "from_logits": self.from_logits,
            "pad_token_id": self.pad_token_id,
        }
