"""Resizing as Pillow does it, to the last bit.

Pillow resizes the columns, rounds to 8 bits, resizes the rows and rounds again. Its
weights are integers, multiples of 2⁻²²: so its results are exact, and every
implementation that sums the same integers gives the same pixels.

Legend: B batch, h and w rows and columns, H and W of the result, C channels.
"""

import math
import numbers

import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_choice

_BITS = 22
# A weight is the sum of a multiple of 2⁻¹¹ and a smaller rest, a multiple of 2⁻²². The
# sums of pixels times either are exact in float32, in any order, and each factor has at
# most eleven bits, which TensorFloat-32 keeps too.
_COARSE_BITS = 11


def _cubic(xp, distance):
    near = (1.5 * distance - 2.5) * distance * distance + 1.0
    far = (((distance - 5.0) * distance + 8.0) * distance - 4.0) * -0.5
    return xp.where(distance < 1.0, near, xp.where(distance < 2.0, far, 0.0 * far))


def _triangle(xp, distance):
    return xp.maximum(1.0 - distance, 0.0)


def _lanczos(xp, distance):
    # At 0 the quotient is 0 / 0, and its limit 1.
    angle = xp.maximum(distance, 1e-9) * math.pi
    window = xp.sin(angle) / angle * xp.sin(angle / 3.0) / (angle / 3.0)
    return xp.where(distance < 3.0, window, 0.0 * window)


# The filter as a function of the distance, and where it ends, in pixels.
_FILTERS = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
RESAMPLING = tuple(_FILTERS)
PASSES = ("auto", "columns_first")


def resize_like_pillow(images, size, method="bicubic", window=None, passes="auto"):
    """Resizes images with antialiasing; the pixels are as by `PIL.Image.resize`.

    Where an image gets smaller, the filter is stretched by the same factor, so that
    every pixel of the image counts. Each of the two passes is rounded to integers in
    [0, 255], so their order matters: on photographs by 1 in some values.

    Args:
        images: Integers in [0, 255], float32 (B, h, w, C).
        size: H and W, known or not.
        method: `"bicubic"` (with a = -1/2), `"bilinear"` or `"lanczos"`.
        window: The part of the result to compute: its first row and column, and its
            numbers of rows and columns. Rows and columns outside the result are 0.
            Default: all of it.
        passes: `"columns_first"` is the order of Pillow before version 13. `"auto"` is
            the order since: rows first if an image loses more than twice as many rows
            as columns (python-pillow/Pillow#9549), otherwise columns first.

    Returns:
        Integers in [0, 255], float32, (B, H, W, C) or the window.

    Raises:
        ValueError: If `method` or `passes` is unknown.
    """
    check_choice("method", method, RESAMPLING)
    check_choice("passes", passes, PASSES)
    top, left, rows, columns = window or (0, 0, *size)
    before = [_known(images, axis) for axis in (1, 2)]
    of_rows = _axis_weights(before[0], size[0], top, rows, method)  # (2 * H, h)
    of_columns = _axis_weights(before[1], size[1], left, columns, method)  # (2 * W, w)
    pixels = ops.transpose(images, (0, 3, 1, 2))  # (B, C, h, w)

    def columns_first():
        return _resize_rows(_resize_columns(pixels, of_columns), of_rows)

    def rows_first():
        return _resize_columns(_resize_rows(pixels, of_rows), of_columns)

    is_rows_first = False
    if passes == "auto":
        lost_rows, lost_columns = (
            old - new for old, new in zip(before, size, strict=True)
        )
        is_rows_first = (lost_rows > 0) & (lost_rows > 2 * lost_columns)
    if isinstance(is_rows_first, bool | np.bool_):
        resized = rows_first() if is_rows_first else columns_first()
    else:
        resized = ops.cond(is_rows_first, rows_first, columns_first)
    return ops.transpose(resized, (0, 2, 3, 1))


def _resize_columns(pixels, weights):
    """(B, C, h, w) to (B, C, h, W)."""
    sums = ops.matmul(pixels, ops.transpose(weights))  # (B, C, h, 2 * W)
    return _rounded(*ops.split(sums, 2, axis=3))


def _resize_rows(pixels, weights):
    """(B, C, h, w) to (B, C, H, w)."""
    sums = ops.matmul(weights, pixels)  # (B, C, 2 * H, w)
    return _rounded(*ops.split(sums, 2, axis=2))


def _known(images, axis):
    """The size of an axis, a number where it is known."""
    size = images.shape[axis]
    return ops.shape(images)[axis] if size is None else size


def _rounded(coarse, fine):
    """The nearest integers in [0, 255] of sums, halves upward."""
    whole = ops.floor(coarse + 0.5)
    # Both are multiples of 2⁻²² below 2, whose sum is exact.
    carried = ops.floor((coarse + 0.5 - whole) + fine)
    return ops.clip(whole + carried, 0.0, 255.0)


def _axis_weights(before, after, first, count, method):
    """The weight of each pixel in each of `count` results, (2 * count, before).

    The first `count` rows are the coarse parts of the weights, the others the fine
    ones. The formulas are from Pillow's `precompute_coeffs`, in float64. Where all
    sizes are known, the weights are constants of the graph.
    """
    is_known = all(
        isinstance(n, numbers.Integral) for n in (before, after, first, count)
    )
    xp = np if is_known else ops

    def wide(value):
        return np.float64(value) if is_known else ops.cast(value, "float64")

    kernel, support = _FILTERS[method]
    scale = wide(before) / wide(after)
    stretch = xp.maximum(scale, wide(1.0))
    index = wide(first) + xp.arange(count, dtype="float64")
    is_inside = xp.expand_dims((index >= 0.0) & (index < wide(after)), 1)
    # Outside any weights do, as long as they are numbers.
    index = xp.minimum(xp.maximum(index, 0.0), wide(after) - 1.0)
    centers = xp.expand_dims((index + 0.5) * scale, 1)  # (count, 1)
    begin = xp.maximum(xp.floor(centers - support * stretch + 0.5), 0.0)
    end = xp.minimum(xp.floor(centers + support * stretch + 0.5), wide(before))
    pixels = xp.expand_dims(xp.arange(before, dtype="float64"), 0)  # (1, before)
    distances = xp.abs(pixels - centers + 0.5) * (1.0 / stretch)
    is_near = (pixels >= begin) & (pixels < end)
    weights = kernel(xp, distances)
    weights = xp.where(is_near, weights, 0.0 * weights)
    weights = weights / xp.sum(weights, axis=1, keepdims=True)
    steps = xp.floor(xp.abs(weights) * 2.0**_BITS + 0.5) * xp.sign(weights)
    steps = xp.where(is_inside, steps, 0.0 * steps)
    coarse = xp.floor(steps * 2.0**-_COARSE_BITS + 0.5) * 2.0**_COARSE_BITS
    parts = xp.concatenate([coarse, steps - coarse], axis=0) * 2.0**-_BITS
    return parts.astype("float32") if is_known else ops.cast(parts, "float32")
