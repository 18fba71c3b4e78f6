"""Key/value caches of incremental decoding.

Legend: B batch, G key/value heads, T new positions, L length of the cache, S keys that
are attended to, H and V sizes of a head.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_attn.ops.masks import both_masks, causal_mask, sliding_window_mask


class CachedKeysAndValues(NamedTuple):
    """The keys and values that one call attends to.

    Attributes:
        keys: (B, G, S, H).
        values: (B, G, S, V).
        earlier: A pair of cached keys and values, attended to before `keys` and
            `values` and kept apart from them, or None.
        offset: Position of the first query among all keys.
        returned: The pair that the call returns: the cache after a write, or only the
            new keys and values; see `with_cache`.
    """

    keys: Any
    values: Any
    earlier: tuple[Any, Any] | None
    offset: Any
    returned: tuple[Any, Any]

    @property
    def static_length(self) -> int | None:
        """Number of keys, or None if it is unknown."""
        earlier = 0 if self.earlier is None else self.earlier[0].shape[2]
        new = self.keys.shape[2]
        return None if earlier is None or new is None else earlier + new

    def mask_by_position(self, query, is_causal=False, window=None):
        """Mask of the queries over all keys by their distance, (T, S), or None.

        Args:
            query: The queries, (B, T, D).
            is_causal: Whether a query attends to no later key.
            window: As for `sliding_window_mask`, or None.
        """
        if not is_causal and window is None:
            return None
        key_length = ops.shape(self.keys)[2]
        if self.earlier is not None:
            key_length = ops.shape(self.earlier[0])[2] + key_length
        lengths, causal, near = (ops.shape(query)[1], key_length), None, None
        if is_causal:
            causal = causal_mask(*lengths, self.offset)
        if window is not None:
            near = sliding_window_mask(*lengths, window, self.offset)
        return both_masks(causal, near)


def with_cache(keys, values, cache, cache_index, dtype) -> CachedKeysAndValues:
    """Combines a call's keys and values with a cache.

    Args:
        keys: (B, G, T, H), or None to attend to the cache only.
        values: (B, G, T, V), or None.
        cache: A pair of (B, G, L, H) and (B, G, L, V), or None. Its precision may be
            different from `dtype`.
        cache_index: Where to write `keys` and `values` into a copy of the cache,
            `cache[:, :, cache_index : cache_index + T]`, or None to append them after
            it.
        dtype: Compute dtype of the attention.

    Returns:
        The keys and values to attend to, and those to return: with a `cache_index` the
        copy that the new keys and values were written into, without `keys` the cache as
        it is, otherwise the new keys and values themselves.
    """
    if cache is None:
        return CachedKeysAndValues(keys, values, None, 0, (keys, values))
    if cache_index is not None:
        start = (0, 0, cache_index, 0)
        cache = tuple(
            ops.slice_update(old, start, ops.cast(new, old.dtype))
            for old, new in zip(cache, (keys, values), strict=True)
        )
    cached_keys, cached_values = (ops.cast(part, dtype) for part in cache)
    if keys is None or cache_index is not None:
        offset = 0 if cache_index is None else cache_index
        return CachedKeysAndValues(
            cached_keys, cached_values, None, offset, tuple(cache)
        )
    offset = ops.shape(cached_keys)[2]
    earlier = (cached_keys, cached_values)
    return CachedKeysAndValues(keys, values, earlier, offset, (keys, values))
