"""Shifted windows: partition, merge, cyclic shift, mask and relative positions.

Legend: B batch, R rows, S columns, w window size, T = w² tokens of a window, L windows
of a feature map, D width.
"""

import numpy as np
from keras import ops


def window_partition(inputs, window):
    """Partitions a feature map into non-overlapping windows.

    Args:
        inputs: (B, R, S, D), R and S multiples of w.
        window: w.

    Returns:
        (B·L, T, D): windows, and tokens in each window, in row-major order.
    """
    _, rows, columns, dim = ops.shape(inputs)
    cut = (-1, rows // window, window, columns // window, window, dim)
    windows = ops.transpose(ops.reshape(inputs, cut), (0, 1, 3, 2, 4, 5))
    return ops.reshape(windows, (-1, window * window, dim))


def window_merge(windows, window, size):
    """The inverse of `window_partition`.

    Args:
        windows: (B·L, T, D).
        window: w.
        size: (R, S).

    Returns:
        (B, R, S, D).
    """
    rows, columns = size
    dim = ops.shape(windows)[-1]
    cut = (-1, rows // window, columns // window, window, window, dim)
    tiles = ops.transpose(ops.reshape(windows, cut), (0, 1, 3, 2, 4, 5))
    return ops.reshape(tiles, (-1, rows, columns, dim))


def cyclic_shift(inputs, shift):
    """Rolls a feature map up and to the left.

    Built from slices: LiteRT has no built-in operator for `roll` with an unknown batch.

    Args:
        inputs: (B, R, S, D).
        shift: Number of rows and of columns; negative to roll down and to the right.

    Returns:
        (B, R, S, D).
    """
    for axis in (1, 2):
        steps = shift % inputs.shape[axis]
        if steps:
            first, rest = ops.split(inputs, [steps], axis=axis)
            inputs = ops.concatenate([rest, first], axis=axis)
    return inputs


def shifted_window_mask(size, window, shift):
    """Which tokens of a window were adjacent before the cyclic shift.

    Args:
        size: (R, S).
        window: w.
        shift: Number of rows and columns of the cyclic shift, less than w.

    Returns:
        Boolean NumPy array, (L, T, T), True = attend.

    Reference:
        Liu et al. 2021, section 3.2 and figure 4 (arXiv:2103.14030).
    """
    rows, columns = size
    # Tokens that were rolled around an edge form regions of their own.
    wrapped_rows = np.arange(rows) >= rows - shift
    wrapped_columns = np.arange(columns) >= columns - shift
    region = 2 * wrapped_rows[:, None] + wrapped_columns  # (R, S)
    tiles = region.reshape(rows // window, window, columns // window, window)
    tiles = tiles.transpose(0, 2, 1, 3).reshape(-1, window * window)
    return tiles[:, :, None] == tiles[:, None, :]


def relative_position_rows(window, largest):
    """Row of the relative position table for each pair of tokens in a window.

    Args:
        window: w.
        largest: Window size that the table was made for, at least w. The table has one
            row for each of the (2 · largest - 1)² relative positions.

    Returns:
        int32 NumPy array, (T, T).

    Reference:
        Liu et al. 2021, equation 4 (arXiv:2103.14030).
    """
    side = np.arange(window, dtype="int32")
    tokens = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    rows, columns = np.moveaxis(tokens[:, None] - tokens + largest - 1, -1, 0)
    return rows * (2 * largest - 1) + columns
