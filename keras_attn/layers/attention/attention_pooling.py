"""Pooling of a map or of a sequence into one vector, by attention to all of it.

Legend: B batch, R rows, S columns, T = R·S positions or the length of a sequence, C
width, N heads, E width of the output.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Activation, Initializer
from keras_attn.checks.arguments import (
    check_positive,
    check_positive_or_none,
    check_rank,
)
from keras_attn.docstrings.descriptions import described_as
from keras_attn.kernels.gelu import get_activation
from keras_attn.layers.attention.multi_head_attention import (
    MultiHeadAttention,
    attention_results,
)
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.blocks.sub_layers import (
    build_now,
    feed_forward,
    head_size,
    layer_norm,
)
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.output_specs import caches_output_specs


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class AttentionPooling(BaseLayer):
    """`MHA(x̄ + p_0; [x̄ + p_0, x_1 + p_1, …, x_T + p_T])`, where `x̄ = mean_t x_t`.

    The mean of a map's positions attends to itself and to all of them. Each of the
    1 + T has a learned vector p.

    Args:
        num_heads: N.
        output_dim: E. Default: C.
        kernel_initializer: For each of the projection kernels.
        embeddings_initializer: For p, (1 + T, C).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, R, S, C); R, S and C must be known.
        return_attention_scores: Whether to return the probabilities as well.

    Returns:
        (B, E). With `return_attention_scores` also the probabilities, (B, N, 1, 1 + T),
        the mean first, then the positions row by row.

    Raises:
        ValueError: If `inputs` does not have 4 axes, R or S is unknown or differs from
            the map that the layer was built with, or C is not a multiple of N.

    Reference:
        Radford et al. 2021, section 2.4 (arXiv:2103.00020), in the authors' code.
    """

    def __init__(
        self,
        num_heads: int,
        output_dim: int | None = None,
        *,
        kernel_initializer: Initializer = "glorot_uniform",
        embeddings_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = check_positive("num_heads", num_heads)
        self.output_dim = check_positive_or_none("output_dim", output_dim)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, inputs_shape):
        check_rank("inputs", inputs_shape, 4, "(batch, rows, columns, width)")
        batch, *sizes, width = inputs_shape
        if None in sizes:
            raise ValueError(
                "The rows and columns of the map must be known, because each position "
                "has a vector; give the `keras.Input` both. "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )
        self._sizes = tuple(sizes)
        count = 1 + sizes[0] * sizes[1]
        self.attention = _new_attention(
            self, (batch, count, width), output_shape=self.output_dim
        )
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(count, width),
            initializer=independent_copy(self.embeddings_initializer, "embeddings"),
        )

    def call(self, inputs, return_attention_scores=False, training=None):
        check_rank("inputs", inputs, 4, "(batch, rows, columns, width)")
        if tuple(inputs.shape[1:3]) != self._sizes:
            raise ValueError(
                f"`inputs` must be maps of {self._sizes[0]} × {self._sizes[1]}, whose "
                "positions the layer has vectors for. "
                f"Received: inputs.shape={tuple(inputs.shape)}"
            )
        rows, columns = self._sizes
        places = ops.reshape(inputs, (-1, rows * columns, inputs.shape[-1]))  # (B,T,C)
        mean = ops.mean(places, axis=1, keepdims=True)
        hidden = ops.concatenate([mean, places], axis=1)  # (B, 1 + T, C)
        hidden = ops.add(hidden, ops.cast(self.embeddings, hidden.dtype))
        attended = attention_results(
            self.attention,
            hidden[:, :1],
            hidden,
            scores=return_attention_scores,
            training=training,
        )
        pooled = attended.output[:, 0]
        return (pooled, attended.scores) if return_attention_scores else pooled


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
@described_as(AttentionPooling)
class ProbePooling(BaseLayer):
    """`y + FFN(norm(y))` with `y = MHA(q; x_1, …, x_T)`, where the query q is learned.

    Args:
        num_heads: N.
        mlp_dim: Width of the hidden layer of the FFN.
        activation: Activation of that layer.
        layer_norm_epsilon: Added to the variance.
        probe_initializer: For the query, (1, C).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, C).

    Returns:
        (B, C). With `return_attention_scores` also the probabilities, (B, N, 1, T).

    Raises:
        ValueError: If `inputs` does not have 3 axes, or C is not a multiple of N.

    Reference:
        Zhai et al. 2022, "Scaling Vision Transformers", section 3.2 (arXiv:2106.04560);
        Lee et al. 2019, "Set Transformer", section 3.2 (arXiv:1810.00825).
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        *,
        activation: Activation = "gelu",
        layer_norm_epsilon: float = 1e-6,
        kernel_initializer: Initializer = "glorot_uniform",
        probe_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = check_positive("num_heads", num_heads)
        self.mlp_dim = check_positive("mlp_dim", mlp_dim)
        self.activation = get_activation(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.probe_initializer = keras.initializers.get(probe_initializer)
        self.seed = None  # Of the FFN's dropout, which it does not have.

    def build(self, inputs_shape):
        check_rank("inputs", inputs_shape, 3, "(batch, length, width)")
        batch, _, width = inputs_shape
        pooled_shape = (batch, 1, width)
        self.attention = _new_attention(self, inputs_shape)
        self.norm = build_now(layer_norm(self, "norm"), pooled_shape)
        self.feed_forward = build_now(feed_forward(self), pooled_shape)
        self.probe = self.add_weight(
            name="probe",
            shape=(1, width),
            initializer=independent_copy(self.probe_initializer, "probe"),
        )

    def call(self, inputs, return_attention_scores=False, training=None):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        probe = ops.cast(self.probe, inputs.dtype)
        shape = (ops.shape(inputs)[0], *self.probe.shape)
        attended = attention_results(
            self.attention,
            ops.broadcast_to(probe, shape),  # (B, 1, C)
            inputs,
            scores=return_attention_scores,
            training=training,
        )
        pooled = attended.output
        pooled = pooled + self.feed_forward(self.norm(pooled), training=training)
        pooled = pooled[:, 0]
        return (pooled, attended.scores) if return_attention_scores else pooled


def _new_attention(layer, shape, **options):
    """Attention of one query to inputs of this shape, (B, S, C); H = C / N."""
    batch, _, width = shape
    attention = MultiHeadAttention(
        layer.num_heads,
        head_size(width, layer.num_heads, None),
        kernel_initializer=independent_copy(layer.kernel_initializer, "attention"),
        dtype=layer.dtype_policy,
        name="attention",
        **options,
    )
    return build_now(attention, (batch, 1, width), shape)
