"""RoI pooling: the largest feature in each bin of a box.

Legend: B batch, R boxes, H and W rows and columns of a map, C channels, O output rows
or columns.
"""

import numpy as np
from keras import ops

from keras_attn.kernels.gather import gather_rows
from keras_attn.ops.roi_align import Pyramid

_FARTHEST = 2.0**20


def roi_pool(maps, boxes, *, strides, output_size, levels=None):
    """The largest feature in each of O × O bins of each box.

    The sides of a box are rounded to locations of the map, and the sides of bins
    outwards to whole locations, so neighboring bins may share locations. A bin without
    locations is 0. A side is limited to at most 2^20 locations from the map.

    A bin may have as many rows and columns as the map. The maximum over a bin is the
    maximum of four windows whose sides are powers of two, and the maxima over all such
    windows are computed once for all boxes. They take as much memory as the maps times
    the product of the logarithms of H and W to base 2, which is a lot for large maps.

    No gradient flows to the boxes.

    Args:
        maps: As in `roi_align`, like all other arguments.
        boxes: (B, R, 4), `"xyxy"` in pixels.
        strides: Pixels between adjacent locations of each map.
        output_size: O, two numbers, rows first.
        levels: (B, R) int32, the index of the map of each box. Default: 0.

    Returns:
        (B, R, O, O, C), in the dtype of the maps.

    Reference:
        Girshick 2015, section 2.1 (arXiv:1504.08083).
    """
    windows, row_powers, column_powers = _window_maxima(maps)
    # The index of a window's map among the maps of all levels and powers.
    count = row_powers * column_powers
    base = None if levels is None else levels * count
    origin = Pyramid(maps, levels)
    boxes = ops.stop_gradient(ops.cast(boxes, "float32"))
    scale = origin.of_box(1.0 / np.asarray(strides, "float32"))
    left, top, right, bottom = (
        _round(side * scale) for side in ops.unstack(boxes, 4, axis=-1)
    )
    rows = _bins(top, bottom, output_size[0], origin.rows, row_powers)
    columns = _bins(left, right, output_size[1], origin.columns, column_powers)
    row_starts, row_power, has_rows = rows
    column_starts, column_power, has_columns = columns
    # (B, R, O, O): which map of window maxima.
    power = ops.expand_dims(row_power, 3) * column_powers + ops.expand_dims(
        column_power, 2
    )
    if base is not None:
        power = power + ops.expand_dims(ops.expand_dims(base, -1), -1)
    table = _Windows(windows)
    total = None
    for row in row_starts:
        for column in column_starts:
            found = table.gather_from(power, row, column)
            total = found if total is None else ops.maximum(total, found)
    is_filled = ops.logical_and(
        ops.expand_dims(has_rows, 3), ops.expand_dims(has_columns, 2)
    )
    return ops.where(ops.expand_dims(is_filled, -1), total, ops.zeros_like(total))


def _round(x):
    """Rounded to integers, halves away from zero, as in the published code."""
    # So that no product overflows for a box beyond this; 0 for NaN.
    x = ops.clip(ops.where(x == x, x, 0.0), -_FARTHEST, _FARTHEST)
    return ops.sign(x) * ops.floor(ops.abs(x) + 0.5)


def _bins(start, end, size, places, powers):
    """The bins of boxes along one axis.

    Args:
        start: (B, R), the first location of each box.
        end: (B, R), its last location.
        size: O.
        places: Number of locations of the maps, (B, R).
        powers: Number of powers of two that a window's side may be.

    Returns:
        The first locations of the two windows that cover a bin, each (B, R, O) int32;
        the power of two of their length, (B, R, O) int32; and whether the bin has
        locations, (B, R, O) bool.
    """
    start, end, places = (
        ops.expand_dims(ops.cast(x, "int32"), -1) for x in (start, end, places)
    )
    # Integers, because the rounding of a fraction would depend on the compiler.
    pixels = ops.maximum(end - start + 1, 1)
    bins = np.arange(size, dtype="int32")
    first = ops.floor_divide(bins * pixels, size)
    last = ops.floor_divide((bins + 1) * pixels + size - 1, size)
    first, last = (ops.clip(x + start, 0, places) for x in (first, last))
    length = last - first
    power, window = ops.zeros_like(length), ops.ones_like(length)
    for exponent in range(1, powers):
        power = power + ops.cast(length >= 2**exponent, "int32")
    for exponent in range(1, powers):
        window = ops.where(power == exponent, 2**exponent, window)
    starts = [ops.clip(x, 0, places - 1) for x in (first, last - window)]
    return starts, power, length > 0


def _window_maxima(maps):
    """Maxima over all windows whose sides are powers of two.

    Args:
        maps: Maps (B, H, W, C).

    Returns:
        A list with one map for each given map, each power of the rows and each power of
        the columns, and the numbers of both powers. Location (i, j) is the maximum over
        the window that starts there; windows end with the map.
    """
    sizes = np.array([x.shape[1:3] for x in maps])
    powers = [int(np.log2(side)) + 1 for side in sizes.max(axis=0)]
    windows = []
    for rows in maps:
        for row_power in range(powers[0]):
            if row_power:
                rows = _doubled(rows, 2 ** (row_power - 1), axis=1)
            columns = rows
            for column_power in range(powers[1]):
                if column_power:
                    columns = _doubled(columns, 2 ** (column_power - 1), axis=2)
                windows.append(columns)
    return windows, *powers


def _doubled(maxima, length, axis):
    """Maxima over windows twice as long along an axis."""
    size = maxima.shape[axis]
    if length >= size:
        return maxima
    first, rest = ops.split(maxima, [size - length], axis=axis)
    _, shifted = ops.split(maxima, [length], axis=axis)
    return ops.concatenate([ops.maximum(first, shifted), rest], axis=axis)


class _Windows(Pyramid):
    """Maps to gather from, where each bin has a map of its own."""

    def __init__(self, maps):
        super().__init__(maps)
        sizes = np.array([x.shape[1:3] for x in maps], "int32")
        self._starts = np.concatenate([[0], np.cumsum(sizes.prod(axis=1))[:-1]])
        self._widths = sizes[:, 1]

    def gather_from(self, index, rows, columns):
        """Features at rows and columns (B, R, O) of the maps `index` (B, R, O, O)."""
        start, width = (
            ops.take(ops.convert_to_tensor(x.astype("int32")), index, axis=0)
            for x in (self._starts, self._widths)
        )
        places = ops.expand_dims(rows, 3) * width + ops.expand_dims(columns, 2)
        return gather_rows(self._table, places + start)
