"""Attention masks: boolean, True = attend.

Legend: B batch, T query length, S key length, N heads.
"""

from keras import ops


def causal_mask(query_length, key_length, offset=0):
    """What query t may see when it must not look ahead: keys 0 … t + offset.

    Args:
        query_length: T.
        key_length: S.
        offset: Position of the first query among the keys.

    Returns:
        Boolean mask, (T, S).
    """
    query_position = ops.expand_dims(ops.arange(query_length, dtype="int32"), 1)
    key_position = ops.expand_dims(ops.arange(key_length, dtype="int32"), 0)
    last_visible = ops.add(query_position, ops.cast(offset, "int32"))
    return ops.less_equal(key_position, last_visible)


def banded_mask(query_positions, key_positions, window):
    """What a query sees that looks back no further than `window` tokens.

    Args:
        query_positions: (B, T).
        key_positions: (B, S).
        window: How many tokens it sees, its own one included.

    Returns:
        Boolean mask, (B, T, S); it does not keep a query from looking ahead.
    """
    distance = ops.subtract(
        ops.expand_dims(query_positions, 2), ops.expand_dims(key_positions, 1)
    )
    return ops.less(distance, window)


def both_masks(first, second):
    """What both masks show; a mask that is None shows everything."""
    if first is None or second is None:
        return second if first is None else first
    return ops.logical_and(ops.cast(first, "bool"), ops.cast(second, "bool"))


def merge_masks(*, padding_mask=None, attention_mask=None, causal=None):
    """All that hides a key, as one mask for scores in heads.

    Args:
        padding_mask: (B, S), True = a real key.
        attention_mask: (T, S), (B, T, S) or (B, N, T, S), True = attend.
        causal: (T, S) or (B, T, S), True = attend.

    Returns:
        Boolean mask of rank 4, broadcastable to (B, N, T, S), or None.
    """
    masks = []
    if padding_mask is not None:
        # One axis at a time: `mask[:, None, None, :]` is a strided slice, which
        # LiteRT has no built-in operator for once two axes are unknown.
        row = ops.expand_dims(ops.cast(padding_mask, "bool"), 1)
        masks.append(ops.expand_dims(row, 1))
    if attention_mask is not None:
        mask = ops.cast(attention_mask, "bool")
        if len(mask.shape) == 2:
            mask = ops.expand_dims(mask, 0)
        masks.append(ops.expand_dims(mask, 1) if len(mask.shape) == 3 else mask)
    if causal is not None:
        if len(causal.shape) == 2:
            causal = ops.expand_dims(causal, 0)
        masks.append(ops.expand_dims(causal, 1))
    if not masks:
        return None
    merged = masks[0]
    for mask in masks[1:]:
        merged = ops.logical_and(merged, mask)
    return merged
