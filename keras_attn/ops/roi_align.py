"""RoI align: features at a fixed grid inside boxes, by bilinear interpolation.

Legend: B batch, R boxes, L levels of a pyramid, H and W rows and columns of a map, C
channels, O output rows or columns.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_attn.kernels.gather import gather_rows


def roi_align(
    maps,
    boxes,
    *,
    strides,
    output_size,
    sampling_ratio=2,
    aligned=False,
    levels=None,
):
    """Features at a grid of locations inside each box.

    A box is divided into O × O bins; the feature of a bin is the mean of
    `sampling_ratio`² samples at regular locations inside, each interpolated between the
    four nearest locations of the map. A sample more than one location outside the map
    is 0.

    No gradient flows to the boxes.

    Args:
        maps: Maps (B, H, W, C), a list of L, with known sizes but B.
        boxes: (B, R, 4), `"xyxy"` in pixels.
        strides: Pixels between adjacent locations of each map, a list of L numbers.
        output_size: O, two numbers, rows first.
        sampling_ratio: Number of samples of a bin along each axis.
        aligned: Whether location i of a map lies at i + ½, which is exact, instead of
            at i. If False, a box is at least one location wide and high.
        levels: (B, R) int32, the index of the map of each box. Default: 0.

    Returns:
        (B, R, O, O, C), in the dtype of the maps.

    Reference:
        He et al. 2017, section 3 (arXiv:1703.06870).
    """
    pyramid = Pyramid(maps, levels)
    boxes = ops.stop_gradient(ops.cast(boxes, "float32"))
    scale = pyramid.of_box(1.0 / np.asarray(strides, "float32"))
    left, top, right, bottom = (
        side * scale - (0.5 if aligned else 0.0)
        for side in ops.unstack(boxes, 4, axis=-1)
    )
    width, height = right - left, bottom - top
    if not aligned:
        width, height = ops.maximum(width, 1.0), ops.maximum(height, 1.0)
    sides = []
    for start, length, size, places in (
        (top, height, output_size[0], pyramid.rows),
        (left, width, output_size[1], pyramid.columns),
    ):
        sides.append(_samples(start, length, size, sampling_ratio, places))
    total: Any = 0.0
    for rows, row_weights in sides[0]:
        for columns, column_weights in sides[1]:
            weights = ops.expand_dims(row_weights, 3) * ops.expand_dims(
                column_weights, 2
            )  # (B, R, O, O)
            weights = ops.cast(ops.expand_dims(weights, -1), pyramid.dtype)
            total += weights * pyramid.gather(rows, columns)
    return total


def _samples(start, length, size, sampling_ratio, places):
    """Locations along one axis, and their weights.

    Args:
        start: (B, R), the first side of each box, in locations of its map.
        length: (B, R), its length.
        size: O.
        sampling_ratio: Samples of a bin.
        places: Number of locations of each map along this axis, an array or (B, R).

    Returns:
        For each sample of a bin and for each of its two neighbors, the location (B, R,
        O) int32 and its weight (B, R, O).
    """
    start, length, places = (
        ops.expand_dims(ops.cast(x, "float32"), -1) for x in (start, length, places)
    )
    found = []
    for sample in range(sampling_ratio):
        bins = np.arange(size, dtype="float32") + (sample + 0.5) / sampling_ratio
        at = start + length * (bins / size).astype("float32")  # (B, R, O)
        inside = ops.logical_and(at >= -1.0, at <= places)
        # A side that is NaN is outside, too.
        at = ops.where(inside, ops.clip(at, 0.0, places - 1.0), 0.0)
        low = ops.floor(at)
        fraction = at - low
        mean = ops.where(inside, 1.0 / sampling_ratio, 0.0)
        for place, weight in ((low, 1.0 - fraction), (low + 1.0, fraction)):
            # The last location is its own right neighbor.
            place = ops.cast(ops.minimum(place, places - 1.0), "int32")
            found.append((place, mean * weight))
    return found


class Pyramid:
    """The locations of all maps of a pyramid as one table of rows for each image.

    Args:
        maps: Maps (B, H, W, C), a list of L, with known sizes but B.
        levels: (B, R) int32, the index of the map of each box. Default: 0.

    Attributes:
        rows: H of each box's map, a number or (B, R), like `columns`.
        columns: W of each box's map.
        dtype: Of the maps.
    """

    def __init__(self, maps, levels=None):
        self.levels = levels if len(maps) > 1 else None
        sizes = np.array([x.shape[1:3] for x in maps], "int32")
        counts = sizes.prod(axis=1)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype("int32")
        self.dtype = maps[0].dtype
        channels = maps[0].shape[-1]
        flat = [
            ops.reshape(x, (-1, int(count), channels))
            for x, count in zip(maps, counts, strict=True)
        ]
        # (B, locations, C)
        self._table = flat[0] if len(flat) == 1 else ops.concatenate(flat, axis=1)
        self.rows = self.of_box(sizes[:, 0])
        self.columns = self.of_box(sizes[:, 1])
        self._start = self.of_box(starts)

    def of_box(self, values):
        """The value of each box's map, from an array with one value for each map.

        Returns:
            (B, R), or (1, 1) if there is a single map.
        """
        if self.levels is None:
            return ops.reshape(ops.convert_to_tensor(values[:1]), (1, 1))
        return ops.take(ops.convert_to_tensor(values), self.levels, axis=0)

    def gather(self, rows, columns):
        """Features at rows (B, R, O) and columns (B, R, O): (B, R, O, O, C)."""
        start, width = (
            ops.expand_dims(ops.expand_dims(x, -1), -1)
            for x in (self._start, self.columns)
        )
        places = ops.expand_dims(rows, 3) * width + ops.expand_dims(columns, 2)
        return gather_rows(self._table, places + start)
