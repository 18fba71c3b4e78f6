"""The encoder block and the decoder block of the Transformer.

    post-norm: x = norm(x + drop(f(x))); pre-norm: x = x + drop(f(norm(x))); f in turn
    attention(x) = concat(head_1 … head_N) W^O + b, head_i = softmax(q_i k_iᵀ / √H) v_i
    in a decoder, the same with keys and values of the encoder's outputs
    FFN(x) = activation(x W1 + b1) W2 + b2

`drop` is dropout, then `layer_scale` and `stochastic_depth`. Queries are (B, N, T, H),
keys and values (B, G, S, H), S = L + T with a cache; masked keys have probability 0.

Both are in this file, of more than 400 lines, because they share their arguments and
sub-layers, which `_Block` has.

Legend: B batch, T target length, S source length, L length of the cache, N heads, G
key/value heads, H head size, D width, E width of the encoder.
"""

from typing import Any

import keras
from keras import ops

from keras_attn.checks.argument_types import Activation, Initializer
from keras_attn.checks.arguments import (
    check_fraction,
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
from keras_attn.layers.blocks.layer_scale import LayerScale
from keras_attn.layers.blocks.stochastic_depth import StochasticDepth
from keras_attn.layers.blocks.sub_layers import (
    build_now,
    feed_forward,
    head_size,
    layer_norm,
)
from keras_attn.layers.dropout import make_dropout
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.ops import banded_mask, merge_masks, token_positions


@caches_output_specs
class _Block(BaseLayer):
    """The arguments and sub-layers that the encoder and the decoder block share."""

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        *,
        key_dim: int | None = None,
        num_key_value_heads: int | None = None,
        activation: Activation = "relu",
        norm_first: bool = False,
        layer_norm_epsilon: float = 1e-5,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        mlp_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        layer_scale: float | None = None,
        use_bias: bool = True,
        qkv_bias: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        output_initializer: Initializer | None = None,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = check_positive("num_heads", num_heads)
        self.mlp_dim = check_positive("mlp_dim", mlp_dim)
        self.key_dim = check_positive_or_none("key_dim", key_dim)
        self.num_key_value_heads = check_positive_or_none(
            "num_key_value_heads", num_key_value_heads
        )
        self.activation = get_activation(activation)
        self.norm_first = norm_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.dropout = check_fraction("dropout", dropout)
        self.attention_dropout = check_fraction("attention_dropout", attention_dropout)
        self.mlp_dropout = check_fraction("mlp_dropout", mlp_dropout)
        self.stochastic_depth = check_fraction("stochastic_depth", stochastic_depth)
        self.layer_scale = layer_scale
        self.use_bias = use_bias
        self.qkv_bias = qkv_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.output_initializer = keras.initializers.get(output_initializer)
        self.seed = seed
        self._residual_dropout = make_dropout(self)
        self._drop_path = StochasticDepth(
            stochastic_depth, seed=seed, dtype=self.dtype_policy, name="drop_path"
        )

    def _new_attention(self, name, *shapes):
        return build_now(
            MultiHeadAttention(
                self.num_heads,
                head_size(shapes[0][-1], self.num_heads, self.key_dim),
                num_key_value_heads=self.num_key_value_heads,
                use_bias=self.use_bias,
                qkv_bias=self.qkv_bias,
                dropout=self.attention_dropout,
                kernel_initializer=independent_copy(self.kernel_initializer, name),
                output_initializer=independent_copy(self.output_initializer, name),
                seed=self.seed,
                dtype=self.dtype_policy,
                name=name,
            ),
            *shapes,
        )

    def _new_norm(self, name, shape):
        return build_now(layer_norm(self, name), shape)

    def _new_scale(self, name, shape) -> Any:
        if self.layer_scale is None:
            return None
        scale = LayerScale(self.layer_scale, dtype=self.dtype_policy, name=name)
        return build_now(scale, shape)

    def _build_feed_forward(self, inputs_shape):
        """Builds the last sub-layer, and the layers that end every branch."""
        self.feed_forward = feed_forward(
            self,
            dropout=self.mlp_dropout,
            use_bias=self.use_bias,
            output_initializer=independent_copy(
                self.output_initializer, "feed_forward"
            ),
        )
        self.feed_forward.build(inputs_shape)
        self.feed_forward_norm = self._new_norm("feed_forward_norm", inputs_shape)
        self.feed_forward_scale = self._new_scale("feed_forward_scale", inputs_shape)
        self._residual_dropout.build(inputs_shape)
        self._drop_path.build(inputs_shape)

    def _pre_norm(self, x, norm):
        """The input of a sub-layer: `norm(x)` in a pre-norm block, otherwise `x`."""
        return norm(x) if self.norm_first else x

    def _add_and_norm(self, x, outputs, norm, scale, training):
        """`norm(x + branch)`, or in a pre-norm block `x + branch`.

        The branch is `stochastic_depth(γ · dropout(outputs))`, with `_drop_path` for
        stochastic depth and `scale` for γ.
        """
        branch = self._residual_dropout(outputs, training=training)
        if scale is not None:
            branch = scale(branch)
        x = x + self._drop_path(branch, training=training)
        return x if self.norm_first else norm(x)

    def _feed(self, x, training):
        """The feed-forward network, the last sub-layer of both blocks."""
        norm, scale = self.feed_forward_norm, self.feed_forward_scale
        outputs = self.feed_forward(self._pre_norm(x, norm), training=training)
        return self._add_and_norm(x, outputs, norm, scale, training)


@keras.saving.register_keras_serializable("keras_attn")
class TransformerEncoderBlock(_Block):
    """Self-attention, then a feed-forward network, each with a residual and a norm.

    Post-norm, as published: `x = norm(x + f(x))`. Pre-norm: `x = x + f(norm(x))`, which
    needs a final norm after the last block. The feed-forward network is
    `FFN(x) = activation(x W1 + b1) W2 + b2`.

    Args:
        num_heads: N.
        mlp_dim: Width of the feed-forward network's hidden layer.
        key_dim: H. Default: D / N.
        num_key_value_heads: Number of key and value heads. Default: N.
        activation: Activation of the feed-forward network's hidden layer.
        norm_first: Pre-norm (True) or post-norm (False).
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of a sub-layer's output.
        attention_dropout: Probability of dropping an attention probability.
        mlp_dropout: Probability of dropping a hidden unit.
        stochastic_depth: Probability of skipping a sub-layer, for each example.
        layer_scale: Initial value of a learned factor per channel of each sub-layer's
            output (`LayerScale`). None = no factor.
        use_bias: Whether the projections have biases.
        qkv_bias: Whether the query, key and value projections have biases. Default:
            `use_bias`.
        kernel_initializer: Initializer of every kernel.
        output_initializer: Initializer of the last kernel before each residual.
            Default: `kernel_initializer`.
        seed: Seed of the dropouts.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True = a real token.
        attention_mask: (T, T), (B, T, T) or (B, N, T, T), True = attend.
        attention_bias: Added to the scores, broadcastable to (B, N, T, T).
        return_attention_scores: Whether to also return the attention probabilities.

    Returns:
        (B, T, D), and with `return_attention_scores` (B, N, T, T).

    Raises:
        ValueError: If D is not a multiple of N and `key_dim` is None.

    Masking:
        As in `MultiHeadAttention`.

    Reference:
        Vaswani et al. 2017, section 3.1 (arXiv:1706.03762); pre-norm: Xiong et al.
        2020 (arXiv:2002.04745); `stochastic_depth`, `layer_scale`: see the layers.
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        *,
        key_dim: int | None = None,
        num_key_value_heads: int | None = None,
        activation: Activation = "relu",
        norm_first: bool = False,
        layer_norm_epsilon: float = 1e-5,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        mlp_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        layer_scale: float | None = None,
        use_bias: bool = True,
        qkv_bias: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        output_initializer: Initializer | None = None,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            mlp_dim,
            key_dim=key_dim,
            num_key_value_heads=num_key_value_heads,
            activation=activation,
            norm_first=norm_first,
            layer_norm_epsilon=layer_norm_epsilon,
            dropout=dropout,
            attention_dropout=attention_dropout,
            mlp_dropout=mlp_dropout,
            stochastic_depth=stochastic_depth,
            layer_scale=layer_scale,
            use_bias=use_bias,
            qkv_bias=qkv_bias,
            kernel_initializer=kernel_initializer,
            output_initializer=output_initializer,
            seed=seed,
            **kwargs,
        )

    def build(self, inputs_shape):
        self.attention = self._new_attention("attention", inputs_shape)
        self.attention_norm = self._new_norm("attention_norm", inputs_shape)
        self.attention_scale = self._new_scale("attention_scale", inputs_shape)
        self._build_feed_forward(inputs_shape)

    def call(
        self,
        inputs,
        *,
        padding_mask=None,
        attention_mask=None,
        attention_bias=None,
        return_attention_scores=False,
        training=None,
    ):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        x, norm, scale = inputs, self.attention_norm, self.attention_scale
        attended = attention_results(
            self.attention,
            self._pre_norm(x, norm),
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            scores=return_attention_scores,
            training=training,
        )
        x = self._add_and_norm(x, attended.output, norm, scale, training)
        x = self._feed(x, training)
        return (x, attended.scores) if return_attention_scores else x


@keras.saving.register_keras_serializable("keras_attn")
@described_as(TransformerEncoderBlock)
class TransformerDecoderBlock(_Block):
    """Causal self-attention, cross-attention, and a feed-forward network.

    A block built without `encoder_outputs` has no cross-attention, as in a decoder-only
    language model.

    Args:
        window: Number of real tokens that a query of the self-attention attends to, its
            own and the preceding ones: a band of the causal mask. None = all.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).
        encoder_outputs: (B, S, E).
        padding_mask: (B, T), True = a real token; with a cache (B, L + T), with a
            `cache_index` (B, L).
        attention_mask: (T, T), (B, T, T) or (B, N, T, T), combined with the causal
            mask; with a cache its last axis is as long as the last axis of
            `padding_mask`.
        encoder_padding_mask: (B, S), True = a real token.
        cache: Keys and values of earlier positions, a pair of (B, G, L, H), which the
            self-attention attends to as well as to its own.
        cache_index: Index along L, a scalar integer, from which on the keys and values
            of `inputs` are written into a copy of the cache. None = the cache is only
            read.
        cross_cache: Keys and values of the encoder's output from an earlier call, a
            pair of (B, G, S, H), in place of `encoder_outputs`.
        return_cache: Whether to return keys and values, as `MultiHeadAttention` does.
        return_attention_scores: Whether to also return the attention probabilities.

    Returns:
        The outputs, (B, T, D). With `return_attention_scores`, then the probabilities
        of the self-attention (and of the cross-attention). With `cache` or
        `return_cache`, then the keys and values of the self-attention, a pair (and a
        pair of the cross-attention).

    Raises:
        ValueError: If D is not a multiple of N and `key_dim` is None, or if
            `encoder_outputs` are given to a block that was built without them, or
            missing for a block that was built with them.

    Reference:
        Vaswani et al. 2017, section 3.1 (arXiv:1706.03762); the window: Child et al.
        2019, section 4.2 (arXiv:1904.10509).
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        *,
        window: int | None = None,
        key_dim: int | None = None,
        num_key_value_heads: int | None = None,
        activation: Activation = "relu",
        norm_first: bool = False,
        layer_norm_epsilon: float = 1e-5,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        mlp_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        layer_scale: float | None = None,
        use_bias: bool = True,
        qkv_bias: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        output_initializer: Initializer | None = None,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            mlp_dim,
            key_dim=key_dim,
            num_key_value_heads=num_key_value_heads,
            activation=activation,
            norm_first=norm_first,
            layer_norm_epsilon=layer_norm_epsilon,
            dropout=dropout,
            attention_dropout=attention_dropout,
            mlp_dropout=mlp_dropout,
            stochastic_depth=stochastic_depth,
            layer_scale=layer_scale,
            use_bias=use_bias,
            qkv_bias=qkv_bias,
            kernel_initializer=kernel_initializer,
            output_initializer=output_initializer,
            seed=seed,
            **kwargs,
        )
        self.window = check_positive_or_none("window", window)

    def build(self, inputs_shape, encoder_outputs_shape=None):
        shape = inputs_shape
        self.self_attention = self._new_attention("self_attention", shape)
        self.self_attention_norm = self._new_norm("self_attention_norm", shape)
        self.self_attention_scale = self._new_scale("self_attention_scale", shape)
        self.cross_attention = None
        if encoder_outputs_shape is not None:
            self.cross_attention = self._new_attention(
                "cross_attention", shape, encoder_outputs_shape
            )
            self.cross_attention_norm = self._new_norm("cross_attention_norm", shape)
            self.cross_attention_scale = self._new_scale("cross_attention_scale", shape)
        self._build_feed_forward(shape)

    def call(
        self,
        inputs,
        encoder_outputs=None,
        *,
        padding_mask=None,
        attention_mask=None,
        encoder_padding_mask=None,
        cache=None,
        cache_index=None,
        cross_cache=None,
        return_cache=False,
        return_attention_scores=False,
        training=None,
    ):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        self._check_source(encoder_outputs, cross_cache)
        if self.window is not None:
            band = self._window_mask(inputs, padding_mask, cache, cache_index)
            # `causal` takes any mask of queries and keys. The band itself is not
            # causal: `use_causal_mask` below masks later keys.
            attention_mask = merge_masks(attention_mask=attention_mask, causal=band)
        return_cache = return_cache or cache is not None
        options = {
            "scores": return_attention_scores,
            "return_cache": return_cache,
            "training": training,
        }
        x = inputs
        norm, scale = self.self_attention_norm, self.self_attention_scale
        self_attended = attention_results(
            self.self_attention,
            self._pre_norm(x, norm),
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            use_causal_mask=True,
            cache=cache,
            cache_index=cache_index,
            **options,
        )
        x = self._add_and_norm(x, self_attended.output, norm, scale, training)
        attended = [self_attended]
        if self.cross_attention is not None:
            norm, scale = self.cross_attention_norm, self.cross_attention_scale
            cross_attended = attention_results(
                self.cross_attention,
                self._pre_norm(x, norm),
                encoder_outputs,
                padding_mask=encoder_padding_mask,
                cache=cross_cache,
                **options,
            )
            x = self._add_and_norm(x, cross_attended.output, norm, scale, training)
            attended.append(cross_attended)
        x = self._feed(x, training)
        results = [x]
        if return_attention_scores:
            results += [each.scores for each in attended]
        if return_cache:
            results += [each.cache for each in attended]
        return tuple(results) if len(results) > 1 else x

    def _check_source(self, encoder_outputs, cross_cache):
        source = cross_cache if encoder_outputs is None else encoder_outputs
        if (self.cross_attention is None) != (source is None):
            raise ValueError(
                "`encoder_outputs` must be given in every call or in none, as in the "
                "first call. Received: encoder_outputs="
                f"{None if source is None else tuple(source.shape)}"
            )

    def _window_mask(self, inputs, padding_mask, cache, cache_index):
        """False for keys before a query's window, (B, T, S), counted in real tokens."""
        if padding_mask is not None:
            keys = token_positions(padding_mask)
        else:
            length = 0 if cache is None else ops.shape(cache[0])[2]
            if cache_index is None:
                length = length + ops.shape(inputs)[1]
            keys = ops.expand_dims(ops.arange(length, dtype="int32"), 0)
        queries = keys
        if cache_index is not None:
            offsets = ops.arange(ops.shape(inputs)[1], dtype="int32")
            queries = ops.take(keys, ops.add(offsets, cache_index), axis=1)
        elif cache is not None:
            queries = keys[:, -ops.shape(inputs)[1] :]
        return banded_mask(queries, keys, self.window)
