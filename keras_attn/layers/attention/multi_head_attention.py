"""Multi-head attention.

Legend: B batch, T query length, S key length, N heads, G key/value heads,
H key size of a head, V value size of a head, D width.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_fraction, check_positive, check_rank
from keras_attn.layers import recorder
from keras_attn.layers.attention.attention_checks import (
    check_attention_mask,
    check_cache,
    check_padding_mask,
)
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import dropout_function, dropout_of
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.layers.projection import add_projection
from keras_attn.ops import (
    both_masks,
    merge_masks,
    scaled_dot_product_attention,
    with_cache,
)


class Attended(NamedTuple):
    """The results of attention by name.

    A call with `return_attention_scores=True` returns the fields in this order, so
    `Attended(*layer(…, return_attention_scores=True))` names them.

    Attributes:
        output: (B, T, D).
        scores: The probabilities, (B, N, T, S); None if they were not requested.
        cache: Keys and values, a pair; None if they were not requested.
    """

    output: Any
    scores: Any = None
    cache: Any = None

    def asked_for(self, *, scores: bool, cache: bool):
        """What a call returns: the output, in a tuple with whatever was requested."""
        results = [self.output]
        if scores:
            results.append(self.scores)
        if cache:
            results.append(self.cache)
        return tuple(results) if len(results) > 1 else self.output


def attend(layer, *inputs, scores: bool, return_cache=False, **options) -> Attended:
    """The results of a call of a `MultiHeadAttention` by name.

    Args:
        layer: The layer.
        *inputs: Its query, value and key.
        scores: Whether to return the probabilities.
        return_cache: Whether to return keys and values, as with a `cache` it does.
        **options: Further arguments of the call.
    """
    options |= {"return_attention_scores": scores, "return_cache": return_cache}
    results = layer(*inputs, **options)
    has_cache = return_cache or options.get("cache") is not None
    if not scores and not has_cache:
        return Attended(results)
    return Attended(
        results[0], results[1] if scores else None, results[-1] if has_cache else None
    )


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class MultiHeadAttention(BaseLayer):
    """`concat(head_1 … head_N) W^O`, `head_i = softmax(q_i k_iᵀ / √H) v_i`.

    The first call fixes self- or cross-attention. With only a query it is
    self-attention, and the three input projections share one fused kernel: one large
    product is faster than three. With a value it is cross-attention, with separate
    kernels.

    Args:
        num_heads: N.
        key_dim: H, the size of each head's queries and keys.
        value_dim: V, the size of each head's values. Default: `key_dim`.
        num_key_value_heads: G; each is shared by N/G consecutive query heads. 1 is
            multi-query attention. Default: `num_heads`.
        output_dim: Width of the output. Default: the width of the query.
        use_bias: Whether the projections have biases.
        qkv_bias: Whether the projections of queries, keys and values have biases.
            Default: `use_bias`.
        dropout: Probability in [0, 1) of dropping an attention probability.
        kernel_initializer: For each of the projection kernels.
        output_initializer: For the kernel of the output projection. Default:
            `kernel_initializer`.
        bias_initializer: For the biases.
        seed: Seed of the dropout.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        query: (B, T, Dq).
        value: (B, S, Dv). None = self-attention.
        key: (B, S, Dk). Default: `value`.
        padding_mask: (B, S), True = a real key.
        attention_mask: (T, S), (B, T, S) or (B, N, T, S), True = attend.
        attention_bias: Added to the scores, (B, N, T, S) or 1 along any axis.
        use_causal_mask: Whether query t attends to the keys 0 … t only.
        cache: Keys and values of earlier calls, a pair of (B, G, L, H) and
            (B, G, L, V). Self-attention attends to them and to the keys of this call,
            which follow them in the masks and the probabilities: S = L + T.
            Cross-attention takes a cache, the projected output of an encoder, instead
            of a `value`.
        cache_index: Position, a scalar integer, at which the keys and values of this
            call are written into a copy of `cache`. The call attends only to that copy,
            S = L. With `use_causal_mask` no query attends to later positions, so the
            unwritten rest of the cache may have any finite values. TensorFlow has no
            gradient through the write. The models' generation leaves it None: there
            `decoding.loop` writes the cache, at the slot that the state `cache_index`
            names.
        return_cache: Whether to return the keys and values.
        return_attention_scores: Whether to return the probabilities.

    Returns:
        The output, (B, T, output_dim). With `return_attention_scores` also the
        probabilities, (B, N, T, S). With `cache` or `return_cache` also a pair of keys
        and values: the ones of this call; with `cache_index` the copy of the cache that
        they were written into; in cross-attention all that were attended to.

    Raises:
        ValueError: If an input does not have 3 axes, a mask has the wrong shape,
            `num_heads` is not a multiple of `num_key_value_heads`, or mutually
            exclusive arguments are given.

    Masking:
        The Keras mask of the value (in self-attention, of the query) is used as a
        `padding_mask`. A query whose keys are all masked gets heads of zeros.

    Example:
        ```python
        layer = MultiHeadAttention(num_heads=12, key_dim=64)
        outputs = layer(sequence, padding_mask=mask)
        ```

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need", section 3.2
        (arXiv:1706.03762); grouped heads: Ainslie et al. 2023 (arXiv:2305.13245).
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        value_dim: int | None = None,
        num_key_value_heads: int | None = None,
        output_dim: int | None = None,
        use_bias: bool = True,
        qkv_bias: bool | None = None,
        dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        output_initializer: Initializer | None = None,
        bias_initializer: Initializer = "zeros",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = check_positive("num_heads", num_heads)
        self.key_dim = check_positive("key_dim", key_dim)
        self.value_dim = check_positive(
            "value_dim", key_dim if value_dim is None else value_dim
        )
        self.num_key_value_heads = check_positive(
            "num_key_value_heads",
            num_heads if num_key_value_heads is None else num_key_value_heads,
        )
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`. Received: "
                f"num_heads={num_heads}, num_key_value_heads={num_key_value_heads}"
            )
        if output_dim is not None:
            check_positive("output_dim", output_dim)
        self.output_dim = output_dim
        self.use_bias = use_bias
        self.qkv_bias = qkv_bias
        self.dropout = check_fraction("dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.output_initializer = keras.initializers.get(output_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = seed
        self._dropout = dropout_of(self) if dropout else None

    @property
    def projection_dims(self):
        """Widths of the projected query, key and value, all heads together."""
        return (
            self.num_heads * self.key_dim,
            self.num_key_value_heads * self.key_dim,
            self.num_key_value_heads * self.value_dim,
        )

    def build(self, query_shape, value_shape=None, key_shape=None):
        self.is_self_attention = value_shape is None
        q_dim, k_dim, v_dim = self.projection_dims
        options = {
            "use_bias": self.use_bias if self.qkv_bias is None else self.qkv_bias,
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
        }
        if value_shape is None:
            parts = {"query": q_dim, "key": k_dim, "value": v_dim}
            self.query_key_value = add_projection(
                self, "query_key_value", query_shape, parts, **options
            )
        else:
            key_shape = value_shape if key_shape is None else key_shape
            self.query = add_projection(self, "query", query_shape, q_dim, **options)
            self.key = add_projection(self, "key", key_shape, k_dim, **options)
            self.value = add_projection(self, "value", value_shape, v_dim, **options)
        options |= {"use_bias": self.use_bias}
        if self.output_initializer is not None:
            options["kernel_initializer"] = self.output_initializer
        heads_shape = (self.num_heads * self.value_dim,)
        output_dim = self.output_dim or query_shape[-1]
        self.output_projection = add_projection(
            self, "output", heads_shape, output_dim, **options
        )

    def call(
        self,
        query,
        value=None,
        key=None,
        *,
        padding_mask=None,
        attention_mask=None,
        attention_bias=None,
        use_causal_mask=False,
        cache=None,
        cache_index=None,
        return_cache=False,
        return_attention_scores=False,
        training=None,
        mask=None,
        query_mask=None,
        value_mask=None,
    ):
        self._check_call(query, value, key, cache, cache_index)
        queries, keys, values = self._project_inputs(query, value, key)
        # Without a cache: the call's own keys and values. With a cache: the cache, as
        # `earlier`, and the call's own; or with a `cache_index` the cache after the
        # write.
        attended_to = with_cache(keys, values, cache, cache_index, self.compute_dtype)
        key_length = attended_to.static_length
        self._check_masks(
            query, key_length, padding_mask, attention_mask, attention_bias
        )
        if cache is None:  # Keras masks do not cover cached keys.
            # If a call has a single tensor, Keras names its mask `mask`; if it has
            # several, Keras names each mask `<argument>_mask`.
            own_mask = query_mask if mask is None else mask
            keras_mask = own_mask if value is None else value_mask
            padding_mask = both_masks(padding_mask, keras_mask)
        causal = None
        # Queries of a cache do not begin with its first key.
        is_causal = use_causal_mask and cache is None
        if use_causal_mask and cache is not None:
            causal = attended_to.causal_mask(ops.shape(query)[1])
        heads, weights = scaled_dot_product_attention(
            queries,
            attended_to.keys,
            attended_to.values,
            cache=attended_to.earlier,
            mask=merge_masks(attention_mask=attention_mask, causal=causal),
            padding_mask=padding_mask,
            is_causal=is_causal,
            bias=attention_bias,
            dropout=dropout_function(self._dropout, training),
            return_weights=return_attention_scores or recorder.is_recording(),
        )
        if weights is not None:
            recorder.record(self, weights)
        output = self.output_projection.merge_heads(heads)
        # `updated`: the copy of the cache after a write, the cache in cross-attention
        # to it, otherwise only the call's own keys and values.
        return Attended(output, weights, attended_to.updated).asked_for(
            scores=return_attention_scores, cache=return_cache or cache is not None
        )

    def _project_inputs(self, query, value, key):
        """Queries (B, N, T, H), keys (B, G, S, H) and values (B, G, S, V).

        Keys and values are None in cross-attention to a cache.
        """
        heads, groups = self.num_heads, self.num_key_value_heads
        if self.is_self_attention:
            return self.query_key_value.heads(query, (heads, groups, groups))
        (queries,) = self.query.heads(query, (heads,))
        if value is None:
            return queries, None, None
        (keys,) = self.key.heads(value if key is None else key, (groups,))
        (values,) = self.value.heads(value, (groups,))
        return queries, keys, values

    def _check_call(self, query, value, key, cache, cache_index):
        check_rank("query", query, 3, "(batch, query length, width)")
        for name, tensor in (("value", value), ("key", key)):
            if tensor is not None:
                check_rank(name, tensor, 3, "(batch, key length, width)")
        if key is not None and value is None:
            raise ValueError("`key` needs a `value`. Received: value=None")
        if cache_index is not None and cache is None:
            raise ValueError("`cache_index` needs a `cache`. Received: cache=None")
        is_cache_the_value = (
            not self.is_self_attention and cache is not None and cache_index is None
        )
        if self.is_self_attention == (value is not None or is_cache_the_value):
            kind, first_call = "cross-attention", "a `value`"
            if self.is_self_attention:
                kind, first_call = "self-attention", "no `value`"
            raise ValueError(
                f"This layer was built for {kind}: its first call had {first_call}. "
                "Call it the same way again, or create a second layer. Received: "
                f"value={'None' if value is None else tuple(value.shape)}"
            )
        if is_cache_the_value and value is not None:
            raise ValueError(
                "A `cache` without a `cache_index` replaces `value`; pass one of them. "
                f"Received: value={tuple(value.shape)}"
            )
        if cache is not None:
            sizes = (self.key_dim, self.value_dim)
            check_cache(cache, query.shape[0], self.num_key_value_heads, sizes)

    def _check_masks(
        self, query, key_length, padding_mask, attention_mask, attention_bias
    ):
        batch, query_length, _ = query.shape
        scores_shape = (batch, self.num_heads, query_length, key_length)
        check_padding_mask("padding_mask", padding_mask, batch, key_length)
        check_attention_mask("attention_mask", attention_mask, scores_shape)
        check_attention_mask("attention_bias", attention_bias, scores_shape, ranks=(4,))
