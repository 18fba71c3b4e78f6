"""Attention masks: boolean, True = attend.

Legend: B batch, T query length, S key length, N heads, W columns of an image.
"""

from keras import ops


def causal_mask(query_length, key_length, offset=0):
    """Query t attends to the keys 0 … t + offset.

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


def sliding_window_mask(query_length, key_length, window, offset=0):
    """Query t attends to the keys less than `window` positions before or after it.

    Args:
        query_length: T.
        key_length: S.
        window: Number of keys on either side, the query's own included.
        offset: Position of the first query among the keys.

    Returns:
        Boolean mask, (T, S).

    Reference:
        Beltagy et al. 2020, "Longformer", section 3.1 (arXiv:2004.05150).
    """
    query_position = ops.expand_dims(ops.arange(query_length, dtype="int32"), 1)
    query_position = ops.add(query_position, ops.cast(offset, "int32"))
    key_position = ops.expand_dims(ops.arange(key_length, dtype="int32"), 0)
    distance = ops.absolute(ops.subtract(query_position, key_position))
    return ops.less(distance, window)


def banded_mask(query_positions, key_positions, window):
    """A query attends to the last `window` keys up to its own position.

    Args:
        query_positions: (B, T).
        key_positions: (B, S).
        window: Number of keys, the query's own included.

    Returns:
        Boolean mask, (B, T, S). It is not causal: later keys are True.
    """
    distance = ops.subtract(
        ops.expand_dims(query_positions, 2), ops.expand_dims(key_positions, 1)
    )
    return ops.less(distance, window)


def document_mask(document_ids):
    """A token attends to tokens of its own document.

    Args:
        document_ids: Which document a token is of, integers (B, T).

    Returns:
        Boolean mask, (B, T, T). It is not causal.
    """
    return ops.equal(ops.expand_dims(document_ids, 2), ops.expand_dims(document_ids, 1))


def column_mask(widths, num_columns):
    """True for the first `widths[b]` columns of image b; the others are padding.

    Args:
        widths: Number of real columns of each image, integers (B,).
        num_columns: W, columns with padding.

    Returns:
        Boolean mask, (B, W).
    """
    columns = ops.expand_dims(ops.arange(num_columns, dtype="int32"), 0)
    return ops.less(columns, ops.expand_dims(ops.cast(widths, "int32"), 1))


def both_masks(first, second):
    """True where both masks are True; a mask that is None is True everywhere.

    Args:
        first: A mask, or None.
        second: A mask of the same shape, or None.
    """
    if first is None or second is None:
        return second if first is None else first
    return ops.logical_and(ops.cast(first, "bool"), ops.cast(second, "bool"))


def merge_masks(*, padding_mask=None, attention_mask=None, causal=None, per_head=True):
    """The conjunction of all masks, ready to broadcast to the scores.

    Args:
        padding_mask: (B, S), True = a real key.
        attention_mask: (T, S), (B, T, S) or, per head, (B, N, T, S), True = attend.
        causal: (T, S) or (B, T, S), True = attend: a causal mask, or any other mask of
            queries and keys.
        per_head: Whether the scores have heads.

    Returns:
        Boolean mask, broadcastable to (B, N, T, S), or without heads to (B, T, S); None
        without a mask.
    """
    if padding_mask is not None:
        padding_mask = ops.expand_dims(ops.cast(padding_mask, "bool"), 1)  # (B, 1, S)
    merged = None
    for mask in (padding_mask, attention_mask, causal):
        if mask is not None:
            merged = both_masks(merged, _broadcastable(mask, 4 if per_head else 3))
    return merged


def _broadcastable(mask, rank):
    """(T, S) -> (1, T, S) and, for rank 4, (B, T, S) -> (B, 1, T, S), as booleans."""
    mask = ops.cast(mask, "bool")
    # One axis at a time: `mask[:, None, None, :]` is a strided slice, for which LiteRT
    # has no built-in operator once two axes are unknown.
    if len(mask.shape) == 2:
        mask = ops.expand_dims(mask, 0)
    return ops.expand_dims(mask, 1) if len(mask.shape) < rank else mask
