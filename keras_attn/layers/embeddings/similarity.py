"""Logits of pairs from the similarity of their embeddings, with a learned temperature.

Legend: P and Q numbers of embeddings, E width.
"""

import math

import keras
from keras import ops

from keras_attn.checks.arguments import check_rank
from keras_attn.checks.configuration import Configured
from keras_attn.layers.base import BaseLayer


@keras.saving.register_keras_serializable("keras_attn")
class ValueRange(Configured, keras.constraints.Constraint):
    """Clips a weight to [minimum, maximum] after each update.

    Args:
        minimum: Smallest value.
        maximum: Largest value.
    """

    def __init__(self, minimum: float, maximum: float):
        self.minimum = minimum
        self.maximum = maximum

    def __call__(self, w):
        return ops.clip(w, self.minimum, self.maximum)


@keras.saving.register_keras_serializable("keras_attn")
class SimilarityLogits(BaseLayer):
    """`exp(s) · x yᵀ + b` of each embedding x with each y; s, and possibly b, learned.

    Called with only x, it returns x unchanged: so it is part of the graph of a model of
    embeddings, which is saved with `logit_scale`, s, and `logit_bias`, b, and whose
    loss calls it with both.

    Args:
        initial_scale: exp(s) at the start, the reciprocal of the temperature.
        max_scale: The optimizer clips s to [0, ln `max_scale`] after each update. None
            = s is not clipped.
        initial_bias: b at the start. None = without b.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: x, (P, E), normalized to length 1 for cosine similarities.
        others: y, (Q, E). None = return x unchanged.

    Returns:
        Logits (P, Q) in float32 under every dtype policy, or x.

    Raises:
        ValueError: If `initial_scale` is not a number above 0, `max_scale` is smaller
            than `initial_scale` or than 1, or an input does not have 2 axes.

    Reference:
        Radford et al. 2021, section 2.5 (arXiv:2103.00020); `initial_bias`: Zhai et al.
        2023, section 3.2 (arXiv:2303.15343).
    """

    def __init__(
        self,
        initial_scale: float = 1 / 0.07,
        *,
        max_scale: float | None = 100.0,
        initial_bias: float | None = None,
        **kwargs,
    ):
        # A softmax or a sigmoid follows.
        super().__init__(**{"dtype": "float32", **kwargs})
        if not initial_scale > 0:
            raise ValueError(
                "`initial_scale` must be a number above 0. "
                f"Received: initial_scale={initial_scale!r}"
            )
        if max_scale is not None and not max_scale >= max(initial_scale, 1):
            raise ValueError(
                "`max_scale` must be at least 1 and at least `initial_scale`, or None. "
                f"Received: max_scale={max_scale!r}, initial_scale={initial_scale!r}"
            )
        self.initial_scale = initial_scale
        self.max_scale = max_scale
        self.initial_bias = initial_bias

    def build(self, inputs_shape, others_shape=None):
        constraint = None
        if self.max_scale is not None:
            constraint = ValueRange(0.0, math.log(self.max_scale))
        self.logit_scale = self._add_scalar(
            "logit_scale", math.log(self.initial_scale), constraint
        )
        self.logit_bias = None
        if self.initial_bias is not None:
            self.logit_bias = self._add_scalar("logit_bias", self.initial_bias)

    def _add_scalar(self, name, value, constraint=None):
        return self.add_weight(
            name=name,
            shape=(),
            initializer=keras.initializers.Constant(value),
            constraint=constraint,
            dtype="float32",
            autocast=False,
        )

    def call(self, inputs, others=None):
        if others is None:
            return inputs
        check_rank("inputs", inputs, 2, "(number, width)")
        check_rank("others", others, 2, "(number, width)")
        similarities = ops.matmul(inputs, ops.transpose(others))
        similarities = ops.cast(similarities, "float32")
        logits = ops.multiply(ops.exp(self.logit_scale), similarities)
        if self.logit_bias is not None:
            logits = ops.add(logits, self.logit_bias)
        return logits
