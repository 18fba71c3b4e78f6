"""Multi-head attention.

Legend: B batch, T query length, S key length, N heads, G key/value heads,
H key size of a head, V value size of a head, D width.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import keras
from keras import ops

from keras_attn.checks.argument_types import Constraint, Initializer, Regularizer
from keras_attn.checks.arguments import check_fraction, check_positive_or_none
from keras_attn.layers import recorder
from keras_attn.layers.attention.folded_axes import FoldedAxes, as_axes
from keras_attn.layers.attention.from_keras import from_keras
from keras_attn.layers.attention.multi_head_checks import (
    check_call,
    check_head_sizes,
    check_heads,
    check_masks,
    check_no_flash_attention,
    check_only_mask,
    check_output_shape,
    mask_of_keys,
)
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import dropout_function, make_dropout
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

    def as_outputs(self, *, scores: bool, cache: bool):
        """The output of a call, in a tuple with what else was requested."""
        results = [self.output]
        if scores:
            results.append(self.scores)
        if cache:
            results.append(self.cache)
        return tuple(results) if len(results) > 1 else self.output


def attention_results(
    layer, *inputs, scores: bool, return_cache=False, **options
) -> Attended:
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

    It takes all that `keras.layers.MultiHeadAttention` takes, and `from_keras` its
    weights. What it does not need is `flash_attention`: attention that needs little
    memory is chosen by the lengths and the device.

    Args:
        num_heads: N.
        key_dim: H, the size of each head's queries and keys.
        value_dim: V, the size of each head's values. Default: `key_dim`.
        dropout: Probability in [0, 1) of dropping an attention probability.
        use_bias: Whether the projections have biases.
        qkv_bias: Whether the projections of queries, keys and values have biases.
            Default: `use_bias`.
        output_shape: Width of the output, or the sizes of several last axes. Default:
            the width of the query.
        attention_axes: Axes that are attended over, one or several, of inputs with
            more than 3 axes; the others count as batch. Several are one sequence, row
            after row, in which a causal mask and a window count. Default: all but the
            first and the last.
        num_key_value_heads: G; each is shared by N/G consecutive query heads. 1 is
            multi-query attention. Default: `num_heads`.
        sliding_window: Number of keys on either side of a query, its own included, that
            the query attends to. Default: all.
        use_gate: Whether the heads are multiplied by `sigmoid(W^G q + b)`, a number for
            each of their outputs (Qiu et al. 2025, arXiv:2505.06708).
        flash_attention: None or False.
        kernel_initializer: For each of the projection kernels.
        output_initializer: For the kernel of the output projection. Default:
            `kernel_initializer`.
        bias_initializer: For the biases.
        kernel_regularizer: For each of the projection kernels.
        bias_regularizer: For each of the biases.
        activity_regularizer: For the outputs of each projection.
        kernel_constraint: For each of the projection kernels.
        bias_constraint: For each of the biases.
        seed: Seed of the dropout.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        query: (B, T, Dq); or with more axes, see `attention_axes`.
        value: (B, S, Dv). None = self-attention.
        key: (B, S, Dk). Default: `value`.
        attention_mask: (T, S), (B, T, S) or (B, N, T, S), True = attend.
        return_attention_scores: Whether to return the probabilities.
        use_causal_mask: Whether query t attends to the keys 0 … t only.
        padding_mask: (B, S), True = a real key.
        attention_bias: Added to the scores, (B, N, T, S) or 1 along any axis.
        cache: Keys and values of earlier calls, a pair of (B, G, L, H) and
            (B, G, L, V). Self-attention attends to them and to the keys of this call,
            which follow them in the masks and the probabilities: S = L + T.
            Cross-attention takes a cache, the projected output of an encoder, instead
            of a `value`.
        cache_index: Index along L, a scalar integer, from which on the keys and values
            of this call are written into a copy of `cache`. The call attends only to
            that copy, S = L. With `use_causal_mask` no query attends to later keys, so
            the unwritten rest of the cache may have any finite values. TensorFlow has
            no gradient through the write. The models' generation leaves it None: there
            `decoding.loop` writes the cache, at the `cache_index` of the state.
        return_cache: Whether to return the keys and values.

    Returns:
        The output, (B, T, output_shape). With `return_attention_scores` also the
        probabilities, (B, N, T, S). With `cache` or `return_cache` also a pair of keys
        and values: the ones of this call; with `cache_index` the copy of the cache that
        they were written into; in cross-attention all that were attended to.

    Raises:
        ValueError: If an input has fewer than 3 axes, or more with an argument that
            Keras' layer does not have; a mask has the wrong shape; `num_heads` is not a
            multiple of `num_key_value_heads`; or mutually exclusive arguments are
            given.

    Masking:
        The Keras masks of the value and the key (in self-attention, of the query) are
        used as a `padding_mask`. A query whose keys are all masked gets heads of zeros.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers

        sequence = np.random.normal(size=(2, 3, 32))
        mask = np.array([[1, 1, 1], [1, 1, 0]])  # 0 = padding.
        layer = layers.MultiHeadAttention(num_heads=4, key_dim=8)
        outputs = layer(sequence, padding_mask=mask, use_causal_mask=True)  # (2, 3, 32)
        ```

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need", section 3.2
        (arXiv:1706.03762); grouped heads: Ainslie et al. 2023 (arXiv:2305.13245).
    """

    argument_attributes = {
        "output_shape": "_output_shape",
        "activity_regularizer": "_activity_regularizer",
    }
    from_keras = classmethod(from_keras)

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        *,
        dropout: float = 0.0,
        use_bias: bool = True,
        qkv_bias: bool | None = None,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        num_key_value_heads: int | None = None,
        sliding_window: int | None = None,
        use_gate: bool = False,
        flash_attention: Literal[False] | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        output_initializer: Initializer | None = None,
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        heads = check_heads(num_heads, num_key_value_heads)
        self.num_heads, self.num_key_value_heads = heads
        self.key_dim, self.value_dim = check_head_sizes(key_dim, value_dim)
        self.dropout = check_fraction("dropout", dropout)
        self.use_bias = use_bias
        self.qkv_bias = qkv_bias
        self._output_shape = check_output_shape(output_shape)
        self.attention_axes = as_axes(attention_axes)
        self.sliding_window = check_positive_or_none("sliding_window", sliding_window)
        self.use_gate = use_gate
        self.flash_attention = check_no_flash_attention(flash_attention)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.output_initializer = keras.initializers.get(output_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # Not Keras' `activity_regularizer`, which is only of the output.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = seed
        self._dropout = make_dropout(self) if dropout else None

    def build(self, query_shape, value_shape=None, key_shape=None):
        self.is_self_attention = value_shape is None
        heads, groups = self.num_heads, self.num_key_value_heads
        q_dim, k_dim = heads * self.key_dim, groups * self.key_dim
        v_dim, heads_dim = groups * self.value_dim, heads * self.value_dim
        qkv_bias = self.use_bias if self.qkv_bias is None else self.qkv_bias
        output_dim = math.prod(self._output_shape or query_shape[-1:])
        if self.is_self_attention:
            parts = {"query": q_dim, "key": k_dim, "value": v_dim}
            self.query_key_value = add_projection(
                self, "query_key_value", query_shape, parts, qkv_bias
            )
        else:
            self.query = add_projection(self, "query", query_shape, q_dim, qkv_bias)
            key_shape = key_shape or value_shape
            self.key = add_projection(self, "key", key_shape, k_dim, qkv_bias)
            self.value = add_projection(self, "value", value_shape, v_dim, qkv_bias)
        if self.use_gate:
            self.gate = add_projection(
                self, "gate", query_shape, heads_dim, qkv_bias, activation="sigmoid"
            )
        self.output_projection = add_projection(
            self,
            "output",
            (heads_dim,),
            output_dim,
            self.use_bias,
            kernel_initializer=self.output_initializer or self.kernel_initializer,
        )

    def call(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        *,
        padding_mask=None,
        attention_bias=None,
        cache=None,
        cache_index=None,
        return_cache=False,
        mask=None,
    ):
        check_call(self, query, value, key, cache, cache_index)
        keras_mask = mask_of_keys(value, mask, query_mask, value_mask, key_mask)
        check_only_mask(query, padding_mask, attention_bias, cache, return_cache)
        folded = FoldedAxes(self.attention_axes, query, value)
        query, value, key = map(folded.fold, (query, value, key))
        attention_mask = folded.fold_mask(attention_mask)
        queries, keys, values = self._project_inputs(query, value, key)
        # Given                 attended to                         `memory.returned`
        # no cache              this call's keys and values (T)     the same
        # a cache               `memory.earlier` (L), then these    only these
        # with a `cache_index`  a copy, these written into it (L)   that copy
        # for cross-attention   the cache                           the cache
        memory = with_cache(keys, values, cache, cache_index, self.compute_dtype)
        check_masks(self, query, memory, padding_mask, attention_mask, attention_bias)
        if cache is None:  # Keras' masks do not cover cached keys.
            padding_mask = both_masks(padding_mask, folded.fold_padding(keras_mask))
        # After a cache of L positions query t is at L + t, where its mask begins.
        is_causal = use_causal_mask and cache is None
        by_position = memory.mask_by_position(
            query, use_causal_mask and not is_causal, self.sliding_window
        )
        heads, weights = scaled_dot_product_attention(
            queries,
            memory.keys,
            memory.values,
            cache=memory.earlier,
            mask=merge_masks(attention_mask=attention_mask, causal=by_position),
            padding_mask=padding_mask,
            is_causal=is_causal,
            bias=attention_bias,
            dropout=dropout_function(self._dropout, training),
            return_weights=return_attention_scores or recorder.is_recording(),
        )
        if self.use_gate:
            heads = ops.multiply(heads, self.gate.heads(query, (self.num_heads,))[0])
        output = self.output_projection.merge_heads(heads)
        recorder.record(self, weights)
        output = folded.unfold(output, self._output_shape)
        weights = folded.unfold_scores(weights)
        return Attended(output, weights, memory.returned).as_outputs(
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
