"""Sparse attention masks of a text that is followed by an image, row by row.

A token of the image attends to all of the text, and to some of the image: to the W
tokens before it (`image_previous_tokens_mask`), to its column (`image_column_mask`) or
to a window around it (`image_window_mask`), never to a token after it. Positions count
the tokens of the image in raster order, from 0: row `p // W`, column `p % W`.

Legend: T query length, S key length, W columns of the image, L length of the text.
"""

from typing import Literal, get_args

from keras import ops

from keras_attn.checks.arguments import check_choice

# How a layer of DALL·E attends to the image.
ImageAttention = Literal["row", "column", "convolutional"]
IMAGE_ATTENTIONS = get_args(ImageAttention)


def image_previous_tokens_mask(query_positions, key_positions, num_columns):
    """A query attends to itself and to the W tokens before it.

    In raster order, so it also reads the end of the row above.

    Args:
        query_positions: (..., T).
        key_positions: (..., S).
        num_columns: W.

    Returns:
        Boolean mask, (..., T, S).

    Reference:
        Ramesh et al. 2021, figure 11 (arXiv:2102.12092).
    """
    query, key = _facing(query_positions, key_positions)
    return ops.logical_and(key <= query, key >= query - num_columns)


def image_column_mask(query_positions, key_positions, num_columns):
    """A query attends to itself and to the tokens above it in its column.

    Args:
        query_positions: (..., T).
        key_positions: (..., S).
        num_columns: W.

    Returns:
        Boolean mask, (..., T, S).

    Reference:
        Ramesh et al. 2021, figure 11 (arXiv:2102.12092).
    """
    query, key = _facing(query_positions, key_positions)
    is_same_column = ops.equal(query % num_columns, key % num_columns)
    return ops.logical_and(key <= query, is_same_column)


def image_window_mask(query_positions, key_positions, num_columns, window_size=11):
    """A query attends to a square around it, up to itself in raster order.

    Args:
        query_positions: (..., T).
        key_positions: (..., S).
        num_columns: W.
        window_size: Rows and columns of the square, an odd number.

    Returns:
        Boolean mask, (..., T, S).

    Raises:
        ValueError: If `window_size` is not an odd positive integer.

    Reference:
        Ramesh et al. 2021, figure 11 (arXiv:2102.12092).
    """
    check_window_size(window_size)
    reach = window_size // 2
    query, key = _facing(query_positions, key_positions)
    column, key_column = query % num_columns, key % num_columns
    # At or before the query, no row is below it.
    is_near = ops.logical_and(
        key // num_columns >= query // num_columns - reach,
        ops.logical_and(key_column >= column - reach, key_column <= column + reach),
    )
    return ops.logical_and(key <= query, is_near)


def text_image_mask(
    kind, query_positions, key_positions, *, text_length, num_columns, window_size=11
):
    """The mask of a text of L tokens and the image after it, in one sequence.

    Text is causal and does not see the image. The image sees all of the text, padding
    included.

    Args:
        kind: `"row"`, `"column"` or `"convolutional"`, the part of the image that the
            image attends to.
        query_positions: Positions in the sequence, from 0, integers (..., T).
        key_positions: The same of the keys, (..., S).
        text_length: L.
        num_columns: W.
        window_size: Rows and columns of the window of `"convolutional"`.

    Returns:
        Boolean mask, (..., T, S).

    Raises:
        ValueError: If `kind` is unknown, or `window_size` is not an odd positive
            integer.

    Reference:
        Ramesh et al. 2021, section 2.2 and figure 11 (arXiv:2102.12092).
    """
    check_choice("kind", kind, IMAGE_ATTENTIONS)
    query = ops.subtract(query_positions, text_length)
    key = ops.subtract(key_positions, text_length)
    if kind == "row":
        in_image = image_previous_tokens_mask(query, key, num_columns)
    elif kind == "column":
        in_image = image_column_mask(query, key, num_columns)
    else:
        in_image = image_window_mask(query, key, num_columns, window_size)
    # Positions in the sequence are compared, not those in the image with 0: LiteRT's
    # converter (TensorFlow 2.21) folds that wrongly where positions are partly
    # constant, as in a step of decoding.
    query, key = _facing(query_positions, key_positions)
    is_text = ops.logical_and(ops.less(key, text_length), key <= query)
    return ops.logical_or(is_text, in_image)


def check_window_size(window_size) -> int:
    """Returns the size; raises a `ValueError` unless it is odd and positive."""
    if not isinstance(window_size, int) or window_size < 1 or window_size % 2 == 0:
        raise ValueError(
            "`window_size` must be an odd positive integer, so that the window has a "
            f"center. Received: window_size={window_size!r}"
        )
    return window_size


def _facing(query, key):
    """The positions as (..., T, 1) and (..., 1, S), which are compared in one pass."""
    return ops.expand_dims(query, -1), ops.expand_dims(key, -2)
