"""Checks of masks and caches, shared by the attention layers.

Legend: B batch, T query length, S key length, N heads, G key/value heads, H and V sizes
of a head.
"""

import keras

from keras_attn.checks.arguments import check_matches, check_rank
from keras_attn.checks.indices import known_values

_AXES_BY_RANK = {
    2: "(query length, key length)",
    3: "(batch, query length, key length)",
    4: "(batch, heads, query length, key length)",
}


def check_padding_mask(name: str, mask, batch, key_length) -> None:
    """Raises unless a padding mask has the shape (B, S), and is True or False.

    Args:
        name: Name of the argument, for the message.
        mask: A tensor, or None.
        batch: B, or None if unknown.
        key_length: S, or None if unknown.

    Raises:
        ValueError: If it does not. The message names the argument, its shape and the
            expected shape.
    """
    if mask is not None:
        check_rank(name, mask, 2, "(batch, key length)")
        check_matches(name, mask.shape, (batch, key_length), "(batch, key length)")
        check_is_mask(name, mask)


def check_is_mask(name: str, mask) -> None:
    """Raises for a mask that is added to scores, such as one of 0 and -1e9.

    Cast to booleans, such a mask would have the opposite meaning. Floats of 0 and 1 are
    a valid mask, as in Keras, so only the values can distinguish the two, and symbolic
    tensors are not checked.

    Args:
        name: Name of the argument, for the message.
        mask: A tensor, or None.

    Raises:
        ValueError: If a value is neither 0 nor 1. The message names the argument and
            the first such value.
    """
    if mask is None or not keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(mask.dtype)
    ):
        return
    values = known_values(mask)
    if values is None:
        return
    others = values[(values != 0) & (values != 1)]
    if others.size:
        raise ValueError(
            f"`{name}` must be True or 1 where to attend, and False or 0 elsewhere; it "
            f"is not added to the scores. Pass `{name} > -1` for a mask of 0 and large "
            "negative numbers; `MultiHeadAttention` takes any numbers to add as "
            f"`attention_bias`. Received: {name} with the value {others.flat[0]}"
        )


def check_attention_mask(name: str, mask, scores_shape, ranks=(2, 3, 4)) -> None:
    """Raises unless a mask or bias broadcasts to the scores.

    Args:
        name: Name of the argument, for the message.
        mask: A tensor, or None.
        scores_shape: (B, N, T, S), or (B, T, S) of a layer without heads; None for an
            unknown axis.
        ranks: Allowed ranks: 2 for (T, S), 3 for (B, T, S), 4 for (B, N, T, S).

    Raises:
        ValueError: If it does not. The message names the argument, its shape and the
            expected shape.
    """
    if mask is None:
        return
    rank = len(mask.shape)
    if rank not in ranks:
        check_rank(name, mask, max(ranks), _AXES_BY_RANK[max(ranks)])
    batch, *_, queries, keys = scores_shape
    expected = {2: (queries, keys), 3: (batch, queries, keys), 4: scores_shape}[rank]
    check_matches(name, mask.shape, expected, _AXES_BY_RANK[rank])
    if name != "attention_bias":
        check_is_mask(name, mask)


def check_cache(cache, batch, num_key_value_heads, head_sizes) -> None:
    """Raises unless a cache is a pair of keys and values.

    Args:
        cache: A pair of (B, G, S, H) and (B, G, S, V).
        batch: B, or None if unknown.
        num_key_value_heads: G.
        head_sizes: H and V.

    Raises:
        ValueError: If it is not. The message names the part of the cache, its shape and
            the expected shape.
    """
    axes = "(batch, key/value heads, length, size of a head)"
    if not isinstance(cache, tuple | list) or len(cache) != 2:
        received = tuple(getattr(cache, "shape", ())) or type(cache).__name__
        raise ValueError(
            f"`cache` must be a pair, keys and values, each {axes}. "
            f"Received: cache={received}"
        )
    for index, size in enumerate(head_sizes):
        name, part = f"cache[{index}]", cache[index]
        check_rank(name, part, 4, axes)
        expected = (batch, num_key_value_heads, None, size)
        check_matches(name, part.shape, expected, axes)
