"""The encoder and the decoder block of the Transformer.

Legend: B batch, T target length, S source length, N heads, H head size, D width.
"""

import keras
from keras import ops

from keras_attn.checks import check_fraction, check_positive, check_rank
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.feed_forward import FeedForward
from keras_attn.layers.initializers import fork
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.layer_scale import LayerScale
from keras_attn.layers.multi_head_attention import MultiHeadAttention
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.layers.stochastic_depth import StochasticDepth
from keras_attn.ops import banded_mask, merge_masks, token_positions


@caches_output_specs
class _Block(BaseLayer):
    """What both blocks are made of: sub-layers, each with a residual and a norm."""

    def __init__(
        self,
        num_heads,
        mlp_dim,
        *,
        key_dim=None,
        num_key_value_heads=None,
        activation="relu",
        norm_first=False,
        layer_norm_epsilon=1e-5,
        dropout=0.0,
        attention_dropout=0.0,
        mlp_dropout=0.0,
        stochastic_depth=0.0,
        layer_scale=None,
        use_bias=True,
        qkv_bias=None,
        kernel_initializer="glorot_uniform",
        output_initializer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = check_positive("num_heads", num_heads)
        self.mlp_dim = check_positive("mlp_dim", mlp_dim)
        self.key_dim = key_dim
        self.num_key_value_heads = num_key_value_heads
        self.activation = keras.activations.get(activation)
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
        self._residual_dropout = Dropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )
        self._drop_path = StochasticDepth(
            stochastic_depth, seed=seed, dtype=self.dtype_policy, name="drop_path"
        )

    def _new_attention(self, name, width):
        key_dim = self.key_dim
        if key_dim is None:
            if width % self.num_heads:
                raise ValueError(
                    "The width must be a multiple of `num_heads`, or `key_dim` given. "
                    f"Received: width={width}, num_heads={self.num_heads}"
                )
            key_dim = width // self.num_heads
        return MultiHeadAttention(
            self.num_heads,
            key_dim,
            num_key_value_heads=self.num_key_value_heads,
            use_bias=self.use_bias,
            qkv_bias=self.qkv_bias,
            dropout=self.attention_dropout,
            kernel_initializer=fork(self.kernel_initializer, name),
            output_initializer=fork(self.output_initializer, name),
            seed=self.seed,
            dtype=self.dtype_policy,
            name=name,
        )

    def _build_around(self, name, shape):
        """What stands around a sub-layer: its norm, and a scale if there is one."""
        norm = LayerNormalization(
            epsilon=self.layer_norm_epsilon,
            dtype=self.dtype_policy,
            name=f"{name}_norm",
        )
        norm.build(shape)
        setattr(self, f"{name}_norm", norm)
        scale = None
        if self.layer_scale is not None:
            scale = LayerScale(
                self.layer_scale, dtype=self.dtype_policy, name=f"{name}_scale"
            )
            scale.build(shape)
        setattr(self, f"{name}_scale", scale)

    def _build_shared(self, inputs_shape):
        self.feed_forward = FeedForward(
            self.mlp_dim,
            activation=self.activation,
            dropout=self.mlp_dropout,
            use_bias=self.use_bias,
            kernel_initializer=fork(self.kernel_initializer, "feed_forward"),
            output_initializer=fork(self.output_initializer, "feed_forward"),
            seed=self.seed,
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.feed_forward.build(inputs_shape)
        self._build_around("feed_forward", inputs_shape)
        self._residual_dropout.build(inputs_shape)
        self._drop_path.build(inputs_shape)

    def _before(self, inputs, name):
        """What a sub-layer reads."""
        if not self.norm_first:
            return inputs
        return getattr(self, f"{name}_norm")(inputs)

    def _after(self, inputs, outputs, name, training):
        """The residual around a sub-layer, and the norm behind it if post-norm."""
        outputs = self._residual_dropout(outputs, training=training)
        scale = getattr(self, f"{name}_scale")
        if scale is not None:
            outputs = scale(outputs)
        summed = ops.add(inputs, self._drop_path(outputs, training=training))
        return summed if self.norm_first else getattr(self, f"{name}_norm")(summed)

    def _feed_forward(self, inputs, training):
        outputs = self.feed_forward(
            self._before(inputs, "feed_forward"), training=training
        )
        return self._after(inputs, outputs, "feed_forward", training)


@keras.saving.register_keras_serializable("keras_attn")
class TransformerEncoderBlock(_Block):
    """Self-attention, then a feed-forward network, each with a residual and a norm.

    Post-norm, as published: `x = norm(x + f(x))`. Pre-norm: `x = x + f(norm(x))`, and
    the model ends in a norm of its own.

    Args:
        num_heads: N.
        mlp_dim: Width of the feed-forward network's hidden layer.
        key_dim: H. Default: D / N.
        num_key_value_heads: Heads that keys and values have. Default: N.
        activation: Of the feed-forward network.
        norm_first: Pre-norm (True) or post-norm.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of a sub-layer's output.
        attention_dropout: Probability of dropping an attention probability.
        mlp_dropout: Probability of dropping a hidden unit.
        stochastic_depth: Probability of leaving a sub-layer out, for an example.
        layer_scale: First value of a learned factor a channel, for the output of each
            sub-layer. None = there is none.
        use_bias: Whether the projections have biases.
        qkv_bias: Whether those of queries, keys and values have, where that differs
            from all others.
        kernel_initializer: For every kernel.
        output_initializer: For the kernels in front of the residuals, where it
            differs.
        seed: Seed of the dropouts.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True = a real token.
        attention_mask: (T, T), (B, T, T) or (B, N, T, T), True = attend.
        attention_bias: Added to the scores, broadcastable to (B, N, T, T).
        return_attention_scores: Whether to return the probabilities as well.

    Returns:
        (B, T, D), and if asked for (B, N, T, T).

    Raises:
        ValueError: where D is no multiple of N and no `key_dim` is given.

    Masking:
        As in `MultiHeadAttention`.

    Reference:
        Vaswani et al. 2017, section 3.1 (arXiv:1706.03762); pre-norm: Xiong et al.
        2020 (arXiv:2002.04745); `stochastic_depth`, `layer_scale`: see the layers.
    """

    def build(self, inputs_shape):
        self.attention = self._new_attention("attention", inputs_shape[-1])
        self.attention.build(inputs_shape)
        self._build_around("attention", inputs_shape)
        self._build_shared(inputs_shape)

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
        attended, scores = self.attention(
            self._before(inputs, "attention"),
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            return_attention_scores=True,
            training=training,
        )
        hidden = self._after(inputs, attended, "attention", training)
        outputs = self._feed_forward(hidden, training)
        return (outputs, scores) if return_attention_scores else outputs


@keras.saving.register_keras_serializable("keras_attn")
class TransformerDecoderBlock(_Block):
    """Causal self-attention, attention to an encoder, and a feed-forward network.

    A block that is never given `encoder_outputs` has no cross-attention: the block of
    a decoder-only language model.

    Args:
        num_heads: N.
        mlp_dim: Width of the feed-forward network's hidden layer.
        window: How many real tokens a query of the self-attention looks back on, its
            own one included: a band of the causal mask. None = all.
        **kwargs: As for `TransformerEncoderBlock`.

    Call arguments:
        inputs: (B, T, D).
        encoder_outputs: (B, S, E).
        padding_mask: (B, T), True = a real token; with a cache (B, C + T), with a
            `cache_index` (B, C).
        attention_mask: (T, T), (B, T, T) or (B, N, T, T), on top of the causal mask;
            with a cache its last axis is that of `padding_mask`.
        encoder_padding_mask: (B, S), True = a real token.
        cache: Keys and values of earlier positions, a pair of (B, G, C, H), which the
            self-attention attends to before its own.
        cache_index: Where in a copy of the cache the keys and values of `inputs` are
            written, a scalar integer. None leaves the cache alone.
        cross_cache: Keys and values of the encoder, a pair of (B, G, S, H), from an
            earlier call, instead of `encoder_outputs`.
        return_cache: Whether to return keys and values, as `MultiHeadAttention` does.
        return_attention_scores: Whether to return the probabilities as well.

    Returns:
        The outputs, (B, T, D), followed, if asked for, by the probabilities of the
        self-attention (and of the cross-attention), and, if a cache was given or asked
        for, by the keys and values of the self-attention, a pair (and by those of the
        cross-attention).

    Raises:
        ValueError: where D is no multiple of N and no `key_dim` is given, or what the
            block was built to attend to is missing.

    Reference:
        Vaswani et al. 2017, section 3.1 (arXiv:1706.03762); the window: Child et al.
        2019, section 4.2 (arXiv:1904.10509).
    """

    def __init__(self, num_heads, mlp_dim, *, window=None, **kwargs):
        super().__init__(num_heads, mlp_dim, **kwargs)
        self.window = None if window is None else check_positive("window", window)

    def build(self, inputs_shape, encoder_outputs_shape=None):
        self.self_attention = self._new_attention("self_attention", inputs_shape[-1])
        self.self_attention.build(inputs_shape)
        self._build_around("self_attention", inputs_shape)
        self.cross_attention = None
        if encoder_outputs_shape is not None:
            self.cross_attention = self._new_attention(
                "cross_attention", inputs_shape[-1]
            )
            self.cross_attention.build(inputs_shape, encoder_outputs_shape)
            self._build_around("cross_attention", inputs_shape)
        self._build_shared(inputs_shape)

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
        return_cache = return_cache or cache is not None
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        source = cross_cache if encoder_outputs is None else encoder_outputs
        if (self.cross_attention is None) != (source is None):
            raise ValueError(
                "A block attends to an encoder always or never, as in its first call. "
                "Received: encoder_outputs="
                f"{None if source is None else tuple(source.shape)}"
            )
        if self.window is not None:
            band = self._band(inputs, padding_mask, cache, cache_index)
            attention_mask = merge_masks(attention_mask=attention_mask, causal=band)
        attended, self_scores, *cached = self.self_attention(
            self._before(inputs, "self_attention"),
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            use_causal_mask=True,
            cache=cache,
            cache_index=cache_index,
            return_cache=return_cache,
            return_attention_scores=True,
            training=training,
        )
        hidden = self._after(inputs, attended, "self_attention", training)
        scores = [self_scores]
        if self.cross_attention is not None:
            attended, cross_scores, *cross_cached = self.cross_attention(
                self._before(hidden, "cross_attention"),
                encoder_outputs,
                padding_mask=encoder_padding_mask,
                cache=cross_cache,
                return_cache=return_cache,
                return_attention_scores=True,
                training=training,
            )
            hidden = self._after(hidden, attended, "cross_attention", training)
            scores.append(cross_scores)
            cached.extend(cross_cached)
        results = [self._feed_forward(hidden, training)]
        if return_attention_scores:
            results.extend(scores)
        if return_cache:
            results.extend(cached)
        return tuple(results) if len(results) > 1 else results[0]

    def _band(self, inputs, padding_mask, cache, cache_index):
        """What lies within the window, (B, T, S), counted in real tokens."""
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
