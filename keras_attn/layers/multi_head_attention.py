"""Multi-head attention.

Legend: B batch, T query length, S key length, N heads, G key/value heads,
H key size of a head, V value size of a head, D width.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_attn.checks import (
    check_fraction,
    check_matches,
    check_positive,
    check_rank,
)
from keras_attn.layers import recorder
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import fork
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.ops import (
    both_masks,
    causal_mask,
    merge_heads,
    merge_masks,
    project,
    scaled_dot_product_attention,
    split_heads,
)


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class MultiHeadAttention(BaseLayer):
    """`concat(head_1 … head_N) W^O`, `head_i = softmax(q_i k_iᵀ / √H) v_i`.

    Called with a query alone the layer is self-attention, and keeps the three input
    projections as one kernel: one large product is faster than three. Called with a
    value, from the first call on, it keeps them apart.

    Args:
        num_heads: N.
        key_dim: H, the size of each head's queries and keys.
        value_dim: V, the size of each head's values. Default: `key_dim`.
        num_key_value_heads: G; each serves N/G consecutive query heads. 1 is
            multi-query attention. Default: `num_heads`.
        output_dim: Width of the output. Default: the width of the query.
        use_bias: Whether the projections have biases.
        qkv_bias: Whether those of queries, keys and values have, where that differs
            from the output's.
        dropout: Probability in [0, 1) of dropping an attention probability.
        kernel_initializer: For the projection kernels, each on its own.
        output_initializer: For the output's kernel, where it differs.
        bias_initializer: For their biases.
        seed: Seed of the dropout.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        query: (B, T, Dq).
        value: (B, S, Dv). None = self-attention.
        key: (B, S, Dk). Default: `value`.
        padding_mask: (B, S), True = a real key.
        attention_mask: (T, S), (B, T, S) or (B, N, T, S), True = attend.
        attention_bias: Added to the scores, (B, N, T, S) or 1 along any axis.
        use_causal_mask: Whether query t sees the keys 0 … t alone.
        cache: Keys and values of earlier calls, a pair of (B, G, C, H) and
            (B, G, C, V). Self-attention attends to them and to this call's own, which
            come after them in the masks and the probabilities: S is C + T there.
            Cross-attention takes a cache instead of a `value`: what an encoder's
            output was projected to once.
        cache_index: Position, a scalar integer, at which this call's keys and values
            are written into a copy of `cache` before it attends to that alone, S = C.
            With `use_causal_mask` nothing after the query's own position is seen, so
            the unwritten rest of the cache may hold anything finite. TensorFlow has
            no gradient through the write.
        return_cache: Whether to return the keys and values.
        return_attention_scores: Whether to return the probabilities.

    Returns:
        The output, (B, T, output_dim), followed by the probabilities, (B, N, T, S),
        if asked for, and, if a cache was given or asked for, by a pair of keys and
        values: this call's own, the copy with them written in where there is a
        `cache_index`, or, in cross-attention, all that it attended to.

    Raises:
        ValueError: for an input that is not of rank 3, a mask of another shape, heads
            that don't divide, or a cache where it can't be used.

    Masking:
        A Keras mask that arrives with the value (or, in self-attention, with the
        query) counts as `padding_mask`. A query that sees nothing gets heads of
        zeros.

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
        num_heads,
        key_dim,
        *,
        value_dim=None,
        num_key_value_heads=None,
        output_dim=None,
        use_bias=True,
        qkv_bias=None,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        output_initializer=None,
        bias_initializer="zeros",
        seed=None,
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
        self._dropout = None
        if dropout:
            self._dropout = Dropout(
                dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
            )

    @property
    def projection_dims(self):
        """Widths of the projected query, key and value, all heads together."""
        return (
            self.num_heads * self.key_dim,
            self.num_key_value_heads * self.key_dim,
            self.num_key_value_heads * self.value_dim,
        )

    def build(self, query_shape, value_shape=None, key_shape=None):
        self.is_fused = value_shape is None
        if value_shape is None:
            self._add_projection(
                "query_key_value", query_shape[-1], self.projection_dims
            )
        else:
            key_shape = value_shape if key_shape is None else key_shape
            widths = (query_shape[-1], key_shape[-1], value_shape[-1])
            names = ("query", "key", "value")
            for name, width, dim in zip(
                names, widths, self.projection_dims, strict=True
            ):
                self._add_projection(name, width, (dim,))
        merged = self.num_heads * self.value_dim
        output_dim = self.output_dim or query_shape[-1]
        self._add_projection("output", merged, (output_dim,))

    def _add_projection(self, name, input_dim, blocks):
        """Adds `<name>_kernel` and `<name>_bias`, each block drawn on its own.

        Glorot's bounds follow from a kernel's own shape, so they are not those of the
        fused one.
        """
        initializer = self.kernel_initializer
        if name == "output" and self.output_initializer is not None:
            initializer = self.output_initializer

        def draw(shape, dtype):
            kernels = [
                fork(initializer, part)((shape[0], block), dtype=dtype)
                for part, block in zip(name.split("_"), blocks, strict=True)
            ]
            return ops.concatenate(kernels, axis=1) if len(kernels) > 1 else kernels[0]

        kernel = self.add_weight(
            name=f"{name}_kernel", shape=(input_dim, sum(blocks)), initializer=draw
        )
        setattr(self, f"{name}_kernel", kernel)
        use_bias = self.use_bias
        if name != "output" and self.qkv_bias is not None:
            use_bias = self.qkv_bias
        bias = None
        if use_bias:
            bias = self.add_weight(
                name=f"{name}_bias",
                shape=(sum(blocks),),
                initializer=fork(self.bias_initializer, f"{name}_bias"),
            )
        setattr(self, f"{name}_bias", bias)

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
        queries, keys, values = self._project_all(query, value, key)
        earlier, keys, values, cached = self._apply_cache(
            keys, values, cache, cache_index
        )
        attended = [keys] if earlier is None else [earlier[0], keys]
        known = [part.shape[2] for part in attended]
        key_length = None if None in known else sum(known)
        shape = (query.shape[0], self.num_heads, query.shape[1], key_length)
        _check_masks(shape, padding_mask, attention_mask, attention_bias)
        if cache is None:  # What is in a cache has no mask of this call's.
            # Keras calls the mask of a lone tensor `mask`, of one among several
            # `query_mask`.
            own_mask = query_mask if mask is None else mask
            implied_mask = own_mask if value is None else value_mask
            padding_mask = both_masks(padding_mask, implied_mask)
        causal = None
        if use_causal_mask:
            *before, own = (ops.shape(part)[2] for part in attended)
            offset = sum(before) if cache_index is None else cache_index
            causal = causal_mask(ops.shape(query)[1], sum(before) + own, offset)
        dropout = None
        if self._dropout is not None and training:
            dropout = functools.partial(self._dropout, training=True)
        heads, weights = scaled_dot_product_attention(
            queries,
            keys,
            values,
            cache=earlier,
            mask=merge_masks(
                padding_mask=padding_mask, attention_mask=attention_mask, causal=causal
            ),
            bias=attention_bias,
            dropout=dropout,
        )
        if recorder.is_recording():
            recorder.record(self, weights)
        results = [self._project("output", merge_heads(heads))]
        if return_attention_scores:
            results.append(weights)
        if return_cache or cache is not None:
            results.append(cached)
        return tuple(results) if len(results) > 1 else results[0]

    def _apply_cache(
        self, keys, values, cache, cache_index
    ) -> tuple[Any, Any, Any, tuple[Any, Any]]:
        """What is attended to, and what is returned as the cache.

        Args:
            keys: (B, G, S, H); None where they are in the cache.
            values: (B, G, S, V); None where they are in the cache.
            cache: As in `call`.
            cache_index: As in `call`.

        Returns:
            A pair of earlier keys and values, or None; keys; values; and the pair of
            keys and values to return.
        """
        if cache is None:
            return None, keys, values, (keys, values)
        if cache_index is not None:
            start = (0, 0, cache_index, 0)
            cache = tuple(
                ops.slice_update(old, start, ops.cast(new, old.dtype))
                for old, new in zip(cache, (keys, values), strict=True)
            )
        # A cache may be kept in another precision than the layer's.
        stored = tuple(ops.cast(part, self.compute_dtype) for part in cache)
        if keys is None or cache_index is not None:
            return None, *stored, tuple(cache)
        return stored, keys, values, (keys, values)

    def _project(self, name, inputs):
        kernel = getattr(self, f"{name}_kernel")
        return project(inputs, kernel, getattr(self, f"{name}_bias"))

    def _project_all(self, query, value, key):
        """Queries (B, N, T, H), keys (B, G, S, H), values (B, G, S, V).

        Cross-attention without a `value`, over a cache, has queries alone.
        """
        groups = self.num_key_value_heads
        heads = (self.num_heads, groups, groups)
        if self.is_fused:
            fused = self._project("query_key_value", query)
            if self.value_dim == self.key_dim and groups == self.num_heads:
                # What is split along the first axis is not copied.
                batch, length, _ = ops.shape(fused)
                parts = ops.reshape(
                    fused, (batch, length, 3, self.num_heads, self.key_dim)
                )
                return ops.unstack(ops.transpose(parts, (2, 0, 3, 1, 4)), 3, axis=0)
            q_dim, k_dim, _ = self.projection_dims
            parts = ops.split(fused, [q_dim, q_dim + k_dim], axis=-1)
        elif value is None:
            queries = self._project("query", query)
            return split_heads(queries, self.num_heads), None, None
        else:
            parts = (
                self._project("query", query),
                self._project("key", value if key is None else key),
                self._project("value", value),
            )
        return tuple(split_heads(part, n) for part, n in zip(parts, heads, strict=True))

    def _check_call(self, query, value, key, cache, cache_index):
        check_rank("query", query, 3, "(batch, query length, width)")
        for name, tensor in (("value", value), ("key", key)):
            if tensor is not None:
                check_rank(name, tensor, 3, "(batch, key length, width)")
        if key is not None and value is None:
            raise ValueError("`key` needs a `value` beside it. Received: value=None")
        replaces_value = not self.is_fused and cache is not None and cache_index is None
        if self.is_fused == (value is not None or replaces_value):
            built = "self-attention" if self.is_fused else "cross-attention"
            raise ValueError(
                f"This layer was built for {built}: its first call had "
                f"{'no `value`' if self.is_fused else 'a `value`'}. Call it the same "
                "way again, or make a second layer. Received: "
                f"value={'None' if value is None else tuple(value.shape)}"
            )
        if replaces_value and value is not None:
            raise ValueError(
                "A `cache` without a `cache_index` takes the place of `value`; leave "
                f"one of them out. Received: value={tuple(value.shape)}"
            )
        if cache_index is not None and cache is None:
            raise ValueError("`cache_index` needs a `cache`. Received: cache=None")
        if cache is None:
            return
        meaning = "(batch, key/value heads, length, size of a head)"
        if not isinstance(cache, tuple | list) or len(cache) != 2:
            found = tuple(getattr(cache, "shape", ())) or type(cache).__name__
            raise ValueError(
                f"`cache` must be a pair, keys and values, each {meaning}. "
                f"Received: cache={found}"
            )
        for index, size in enumerate((self.key_dim, self.value_dim)):
            name, part = f"cache[{index}]", cache[index]
            check_rank(name, part, 4, meaning)
            expected = (query.shape[0], self.num_key_value_heads, None, size)
            check_matches(name, part.shape, expected, meaning)


def _check_masks(shape, padding_mask, attention_mask, attention_bias):
    batch, heads, length, keys = shape
    if padding_mask is not None:
        check_rank("padding_mask", padding_mask, 2, "(batch, key length)")
        check_matches(
            "padding_mask", padding_mask.shape, (batch, keys), "(batch, key length)"
        )
    for name, mask in (
        ("attention_mask", attention_mask),
        ("attention_bias", attention_bias),
    ):
        if mask is None:
            continue
        rank = len(mask.shape)
        expected = {
            2: (length, keys),
            3: (batch, length, keys),
            4: (batch, heads, length, keys),
        }
        if rank not in expected or (name == "attention_bias" and rank != 4):
            check_rank(name, mask, 4, "(batch, heads, query length, key length)")
        meaning = "(batch, heads, query length, key length)"
        check_matches(
            name, mask.shape, expected[rank], meaning if rank == 4 else "of the scores"
        )
