"""Cross-entropy with label smoothing, over the targets that are none of them padding.

Legend: B batch, T length, V vocabulary.
"""

import keras
from keras import ops

from keras_attn.checks import check_fraction


@keras.saving.register_keras_serializable("keras_attn")
def smoothed_cross_entropy(
    labels, predictions, *, label_smoothing=0.0, pad_token_id=None, from_logits=True
):
    """`-(1-ε) log p(y) - ε Σ_k u(k) log p(k)`, for each target.

    u is uniform over all V classes, the target's own included: the target's share is
    `1 - ε + ε/V`, that of every other class `ε/V`. With a `pad_token_id`, u is uniform
    over the other V - 1 classes, and 0 there: nobody wants padding to become likelier.

    Args:
        labels: Whole numbers, (B, T), of any rank; in [0, V), also where they count
            nothing.
        predictions: One rank more, (B, T, V).
        label_smoothing: ε.
        pad_token_id: The class that gets none of ε.
        from_logits: Whether predictions are logits, or probabilities.

    Returns:
        The shape of the labels, in the type of the predictions, in nats.

    Raises:
        ValueError: unless predictions have one axis more than the labels.

    Reference:
        Szegedy et al. 2016, section 7 (arXiv:1512.00567), which Vaswani et al. 2017
        follow, section 5.4 (arXiv:1706.03762).
    """
    if len(predictions.shape) != len(labels.shape) + 1:
        raise ValueError(
            "Predictions must have one axis more than the labels, the classes. "
            f"Received: labels.shape={tuple(labels.shape)}, "
            f"predictions.shape={tuple(predictions.shape)}"
        )
    labels = ops.cast(labels, "int32")
    if not from_logits:
        # Logarithms of probabilities are logits, of which the log-sum-exp is 0.
        predictions = ops.log(ops.clip(predictions, keras.config.epsilon(), 1.0))
    own = ops.sparse_categorical_crossentropy(labels, predictions, from_logits=True)
    if not label_smoothing:
        return own
    # With log p = z - lse(z): the loss is own + ε (z_y - Σ_k u(k) z_k). That needs one
    # softmax, in the kernel of `own`, and nothing else of size V to go back through.
    index = ops.expand_dims(labels, -1)
    of_label = ops.squeeze(ops.take_along_axis(predictions, index, axis=-1), -1)
    num_classes = predictions.shape[-1]
    total = ops.sum(predictions, axis=-1)
    if pad_token_id is not None:
        num_classes -= 1
        total = total - predictions[..., pad_token_id]
    return own + label_smoothing * (of_label - total / num_classes)


@keras.saving.register_keras_serializable("keras_attn")
class SmoothedCrossEntropy(keras.losses.Loss):
    """The mean of `smoothed_cross_entropy` over the real targets, in nats a token.

    `Σ w·loss / Σ w`, where w is the sample weight, 1 without one, and 0 where the
    target is padding. So a batch with much padding counts what its tokens count;
    Keras' own default, `reduction="sum_over_batch_size"`, divides by all B·T targets,
    whatever their weight, and makes the rates of padded batches smaller. `model.fit`
    logs the mean over batches of these means; `Perplexity` is that of the tokens.

    Args:
        label_smoothing: ε, a probability in [0, 1).
        pad_token_id: The target that counts nothing, and the class that gets none of
            ε. None = there is no padding, or sample weights of 0 say where.
        from_logits: Whether predictions are logits, or probabilities.
        reduction: `"mean_with_sample_weight"`, or another of Keras.
        name: Of the loss.
        dtype: Of the computation. Default: float32, under every policy.

    Call arguments:
        y_true: Whole numbers in [0, V), (B, T), of any rank.
        y_pred: (B, T, V).
        sample_weight: (B, T), or (B,) for all targets of a row.

    Returns:
        A scalar, or (B, T) with `reduction="none"`.

    Reference:
        Vaswani et al. 2017, section 5.4 (arXiv:1706.03762).
    """

    def __init__(
        self,
        label_smoothing=0.0,
        *,
        pad_token_id=None,
        from_logits=True,
        reduction="mean_with_sample_weight",
        name="smoothed_cross_entropy",
        dtype=None,
    ):
        # Labels are cast as well, and 16 bits don't tell ids of a vocabulary apart.
        super().__init__(name=name, reduction=reduction, dtype=dtype or "float32")
        self.label_smoothing = check_fraction("label_smoothing", label_smoothing)
        self.pad_token_id = check_token_id("pad_token_id", pad_token_id)
        self.from_logits = from_logits

    def __call__(self, y_true, y_pred, sample_weight=None):
        """The loss, padding left out; see the class."""
        weights = real_weights(y_true, sample_weight, self.pad_token_id)
        return super().__call__(y_true, y_pred, weights)

    def call(self, y_true, y_pred):
        """The loss of each target."""
        return smoothed_cross_entropy(
            y_true,
            y_pred,
            label_smoothing=self.label_smoothing,
            pad_token_id=self.pad_token_id,
            from_logits=self.from_logits,
        )

    def get_config(self):
        """What the constructor takes."""
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "pad_token_id": self.pad_token_id,
            "from_logits": self.from_logits,
            "dtype": self.dtype,
        }


def check_token_id(name, value):
    """Raises unless `value` is None or a token's id; returns it."""
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or value < 0
    ):
        raise ValueError(
            f"`{name}` must be a token's id, a whole number from zero on, or None. "
            f"Received: {name}={value!r}"
        )
    return value


def real_weights(labels, sample_weight, pad_token_id):
    """Sample weights that are 0 where the label is padding, in float32.

    Args:
        labels: (B, T), of any rank.
        sample_weight: Of the same rank, or of its first axes alone, or None.
        pad_token_id: None = there is no padding.

    Returns:
        The shape of the labels; the sample weights as they are without a padding id.
    """
    if pad_token_id is None:
        return sample_weight
    real = ops.cast(ops.not_equal(labels, pad_token_id), "float32")
    if sample_weight is None:
        return real
    sample_weight = ops.cast(sample_weight, "float32")
    for _ in range(len(real.shape) - len(sample_weight.shape)):
        sample_weight = ops.expand_dims(sample_weight, -1)
    return ops.multiply(real, sample_weight)
