"""Square windows on a map, as pure functions: cut out, put back, moved round the edges.

Legend: B batch, R rows, S columns, w the side of a window, T = w² its places, L windows
on a map, D width.
"""

import numpy as np
from keras import ops


def window_partition(inputs, window):
    """Cuts a map into windows side by side.

    Args:
        inputs: (B, R, S, D), R and S multiples of w.
        window: w.

    Returns:
        (B·L, T, D), row by row of windows, and row by row in each.
    """
    _, rows, columns, dim = ops.shape(inputs)
    cut = (-1, rows // window, window, columns // window, window, dim)
    windows = ops.transpose(ops.reshape(inputs, cut), (0, 1, 3, 2, 4, 5))
    return ops.reshape(windows, (-1, window * window, dim))


def window_merge(windows, window, size):
    """Puts windows back where `window_partition` took them from.

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
    """Moves a map up and to the left; what leaves comes in at the other end.

    By slices: LiteRT has no built-in operator for `roll` with an open batch.

    Args:
        inputs: (B, R, S, D).
        shift: Rows and columns to move by; negative for down and to the right.

    Returns:
        (B, R, S, D).
    """
    for axis in (1, 2):
        by = shift % inputs.shape[axis]
        if by:
            first, rest = ops.split(inputs, [by], axis=axis)
            inputs = ops.concatenate([rest, first], axis=axis)
    return inputs


def shifted_window_mask(size, window, shift):
    """Which places of a window on a rolled map were neighbours before.

    Args:
        size: (R, S).
        window: w.
        shift: Rows and columns that the map was rolled by, less than w.

    Returns:
        Boolean NumPy array, (L, T, T).

    Reference:
        Liu et al. 2021, section 3.2 and figure 4 (arXiv:2103.14030).
    """
    rows, columns = size
    # What came round an edge is of another region than what it came to.
    below = np.arange(rows) >= rows - shift
    right = np.arange(columns) >= columns - shift
    region = 2 * below[:, None] + right  # (R, S)
    tiles = region.reshape(rows // window, window, columns // window, window)
    tiles = tiles.transpose(0, 2, 1, 3).reshape(-1, window * window)
    return tiles[:, :, None] == tiles[:, None, :]


def relative_position_rows(window, largest):
    """Which row of a table of relative positions each pair of places has.

    Args:
        window: w.
        largest: Side of the window that the table was made for, w or more: it has a
            row for each of its (2 · largest - 1)² distances.

    Returns:
        int32 NumPy array, (T, T).

    Reference:
        Liu et al. 2021, equation 4 (arXiv:2103.14030).
    """
    side = np.arange(window, dtype="int32")
    places = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    rows, columns = np.moveaxis(places[:, None] - places + largest - 1, -1, 0)
    return rows * (2 * largest - 1) + columns
