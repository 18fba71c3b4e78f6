"""Cross-entropy with label smoothing that leaves padding out.

Legend: B batch, T length, V vocabulary.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_fraction, check_token_id
from keras_attn.losses.weighted_mean import WeightedMeanLoss, broadcastable


@keras.saving.register_keras_serializable("keras_attn")
def smoothed_cross_entropy(
    labels, predictions, *, label_smoothing=0.0, pad_token_id=None, from_logits=True
):
    """`-(1-ε) log p(y) - ε Σ_k u(k) log p(k)`, for each target.

    u is uniform over all V classes, the true class included: its share is
    `1 - ε + ε/V`, and every other class has `ε/V`. With a `pad_token_id`, u is uniform
    over the other V - 1 classes and 0 on padding, which should not become more likely.

    Args:
        labels: Class indices, (B, T) or any other rank, in [0, V) even where their
            weight is 0.
        predictions: One rank more, (B, T, V).
        label_smoothing: ε.
        pad_token_id: Class that gets no share of ε.
        from_logits: Whether predictions are logits or probabilities.

    Returns:
        The loss in nats, with the shape of the labels and the dtype of the predictions.

    Raises:
        ValueError: If `predictions` do not have one axis more than `labels`.

    Reference:
        Szegedy et al. 2016, section 7 (arXiv:1512.00567), used by Vaswani et al. 2017,
        section 5.4 (arXiv:1706.03762).
    """
    if len(predictions.shape) != len(labels.shape) + 1:
        raise ValueError(
            "Predictions must have one axis more than the labels, the classes. "
            f"Received: labels.shape={tuple(labels.shape)}, "
            f"predictions.shape={tuple(predictions.shape)}"
        )
    labels = ops.cast(labels, "int32")
    if not from_logits:
        # Log-probabilities are logits whose log-sum-exp is 0.
        predictions = ops.log(ops.clip(predictions, keras.config.epsilon(), 1.0))
    hard = ops.sparse_categorical_crossentropy(labels, predictions, from_logits=True)
    if not label_smoothing:
        return hard
    # With log p = z - lse(z), the loss is hard + ε (z_y - Σ_k u(k) z_k). So the softmax
    # in `hard` is the only operation on V classes that needs a gradient kernel.
    index = ops.expand_dims(labels, -1)
    of_label = ops.squeeze(ops.take_along_axis(predictions, index, axis=-1), -1)
    num_classes = predictions.shape[-1]
    total = ops.sum(predictions, axis=-1)
    if pad_token_id is not None:
        num_classes -= 1
        total = total - predictions[..., pad_token_id]
    return hard + label_smoothing * (of_label - total / num_classes)


@keras.saving.register_keras_serializable("keras_attn")
class SmoothedCrossEntropy(WeightedMeanLoss):
    """Mean of `smoothed_cross_entropy` over the real targets, in nats per token.

    `Σ w·loss / Σ w`, where w is the sample weight (1 by default), and 0 on padding. So
    the loss of a batch does not depend on how much padding it has. Keras' default,
    `reduction="sum_over_batch_size"`, divides by all B·T targets, also those of weight
    0, which lowers the effective learning rate of padded batches; the models of this
    library scale the weights so that Keras' losses are the same mean. `model.fit` logs
    the mean over batches of these means; `Perplexity` averages over tokens.

    Args:
        label_smoothing: ε, a probability in [0, 1).
        pad_token_id: Label that is ignored, and class that gets no share of ε. None if
            nothing is padded or if padding has sample weight 0.
        from_logits: Whether predictions are logits or probabilities.
        reduction: `"mean_with_sample_weight"`, or any other Keras reduction.
        name: Name of the loss.
        dtype: Dtype of the computation. Default: float32, under every policy.

    Call arguments:
        y_true: Class indices in [0, V), (B, T) or any other rank.
        y_pred: (B, T, V).
        sample_weight: (B, T), or (B,) with one weight per row.

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
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.label_smoothing = check_fraction("label_smoothing", label_smoothing)
        self.pad_token_id = check_token_id("pad_token_id", pad_token_id)
        self.from_logits = from_logits

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Computes the loss without padding; see the class."""
        weights = real_weights(y_true, sample_weight, self.pad_token_id)
        return super().__call__(y_true, y_pred, weights)

    def call(self, y_true, y_pred):
        """Computes the loss of each target."""
        return smoothed_cross_entropy(
            y_true,
            y_pred,
            label_smoothing=self.label_smoothing,
            pad_token_id=self.pad_token_id,
            from_logits=self.from_logits,
        )


def real_weights(labels, sample_weight, pad_token_id):
    """Sample weights that are 0 where the label is padding, in float32.

    Args:
        labels: (B, T), or any other rank.
        sample_weight: Of the same rank, of the leading axes only, or None.
        pad_token_id: Label that is padding, or None.

    Returns:
        Weights in the shape of the labels; without a `pad_token_id`, `sample_weight`
        unchanged.
    """
    if pad_token_id is None:
        return sample_weight
    real = ops.cast(ops.not_equal(labels, pad_token_id), "float32")
    if sample_weight is None:
        return real
    return ops.multiply(real, broadcastable(sample_weight, real))
