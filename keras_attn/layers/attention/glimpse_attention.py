"""Attention of a question to the locations of an image, by several glimpses.

Legend: B batch, S locations, D width of the question, E width of a location, U units, C
glimpses.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_fraction, check_positive, check_rank
from keras_attn.layers import recorder
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import dropout_function, make_dropout
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.layers.projection import add_projection
from keras_attn.ops import attention_weights, glimpse_scores


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class GlimpseAttention(BaseLayer):
    """`e_cs = v_cᵀ relu(W [φ_s; q] + b)`, `x_c = Σ_s softmax(e_c)_s φ_s`.

    These are the paper's two 1 × 1 convolutions over the locations, the first of which
    takes the location and the repeated question. `W [φ; q]` is computed as
    `W_φ φ + W_q q`, so that the product with the question is computed once instead of
    at each location. The second convolution has no bias, which the softmax would
    cancel.

    Args:
        units: U, depth of the first convolution.
        num_glimpses: C, depth of the second.
        dropout: Probability in [0, 1) of dropping an input of a convolution. The same
            units of the question are dropped at all locations. Dropout never applies to
            the locations that are averaged.
        kernel_initializer: For the three kernels.
        seed: Seed of the dropout.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        query: The question q, (B, D).
        value: The locations φ, (B, S, E).
        return_attention_scores: Whether to return the probabilities as well.

    Returns:
        The glimpses x, (B, C, E); with `return_attention_scores=True` also the
        probabilities, (B, C, 1, S), float32.

    Raises:
        ValueError: If `query` does not have 2 axes or `value` does not have 3, or an
            argument is out of range.

    Reference:
        Kazemi and Elqursh 2017, "Show, Ask, Attend, and Answer: A Strong Baseline For
        Visual Question Answering", section 3 (arXiv:1704.03162).
    """

    def __init__(
        self,
        units: int,
        num_glimpses: int = 2,
        *,
        dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = check_positive("units", units)
        self.num_glimpses = check_positive("num_glimpses", num_glimpses)
        self.dropout = check_fraction("dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self._drop = make_dropout(self) if dropout else None

    def build(self, query_shape, value_shape):
        units, glimpses = self.units, self.num_glimpses
        self.query = add_projection(self, "query", query_shape, units)
        self.value = add_projection(self, "value", value_shape, units, use_bias=False)
        self.score = add_projection(self, "score", (units,), glimpses, use_bias=False)

    def call(self, query, value, return_attention_scores=False, training=None):
        check_rank("query", query, 2, "(batch, width)")
        check_rank("value", value, 3, "(batch, locations, width)")
        dropout = dropout_function(self._drop, training) or _unchanged
        scores = glimpse_scores(
            self.query.project(dropout(query)),
            self.value.project(dropout(value)),
            self.score.kernel,
            dropout,
        )
        weights = attention_weights(scores)  # (B, C, S)
        with_query_axis = ops.expand_dims(weights, 2)
        recorder.record(self, with_query_axis)
        glimpses = ops.matmul(ops.cast(weights, value.dtype), value)
        return (glimpses, with_query_axis) if return_attention_scores else glimpses


def _unchanged(inputs):
    return inputs
