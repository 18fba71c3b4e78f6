"""Perplexity: the number of tokens a language model is undecided between, on average.

Legend: B batch, T length, V vocabulary.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_token_id
from keras_attn.checks.configuration import Configured
from keras_attn.losses.cross_entropy import (
    broadcastable,
    real_weights,
    smoothed_cross_entropy,
)


@keras.saving.register_keras_serializable("keras_attn")
class Perplexity(Configured, keras.metrics.Metric):
    """`exp(-Σ w log p(y) / Σ w)` over all targets since the last reset.

    The mean is taken over the tokens of the epoch: a mean of per-batch perplexities
    would depend on how the tokens are batched. Labels are never smoothed, so that
    perplexities are comparable between models that were trained with any loss. Pass it
    to `compile` in `weighted_metrics` to use sample weights; those in `metrics` do not
    get them.

    Args:
        from_logits: Whether predictions are logits or probabilities.
        pad_token_id: Label that is ignored. None if nothing is padded or if padding has
            sample weight 0.
        name: Name of the metric.
        dtype: Dtype of the sums. Default: float32, under every policy.

    Call arguments:
        y_true: Class indices in [0, V), (B, T) or any other rank.
        y_pred: (B, T, V).
        sample_weight: (B, T), or (B,) with one weight per row. Multiplied by the Keras
            mask of the predictions, if they have one.

    Returns:
        A scalar: 1 at best, V for uniform predictions, and 1 before the first target.

    Raises:
        ValueError: If `y_pred` does not have one axis more than `y_true`.
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
                weights = ops.multiply(weights, broadcastable(given, losses))
        self.total.assign_add(ops.cast(ops.sum(losses * weights), self.dtype))
        self.count.assign_add(ops.cast(ops.sum(weights), self.dtype))

    def result(self):
        """Returns the perplexity of the targets so far."""
        return ops.exp(ops.divide_no_nan(self.total.value, self.count.value))
