"""Masks of objects: from the grid inside a box to the pixels of the image.

Legend: B batch, K or N boxes, h and w rows and columns of a mask, H and W of the image.
"""

import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_pair

# Maximum number of pixels in the masks that are pasted at once: 64 MiB of float32.
_MOST_PIXELS = 2**24


def paste_masks(
    masks, boxes, image_size, threshold: float | None = 0.5, *, aligned=True
):
    """Masks of boxes as masks of the image, by bilinear interpolation.

    A mask is surrounded by zeros, and stretched so that its own locations fill the box.
    A pixel gets the value at its center, which is half a pixel to the right of and
    below its index: x in the image is `(x - left) / (right - left) · w` in the mask.
    This is the inverse of how a model with `aligned_masks=True` cuts its targets.

    Args:
        masks: (B, K, h, w), probabilities.
        boxes: (B, K, 4), `"xyxy"` in pixels.
        image_size: H and W, one number or two.
        threshold: Probability above which a pixel belongs to the object. None = return
            the probabilities.
        aligned: Whether the sides of boxes are used exactly. False = a box is cut down
            to whole pixels, including the last one, as in torchvision, whose models cut
            their targets half a pixel too far left and up (`aligned_masks=False`).

    Returns:
        (B, K, H, W), bool, or float32 without a threshold. 0 outside the box, and for
        boxes that have no area or are NaN.

    Reference:
        He et al. 2017, section 3.1 (arXiv:1703.06870).
    """
    height, width = check_pair("image_size", image_size)
    masks, boxes = ops.cast(masks, "float32"), ops.cast(boxes, "float32")
    left, top, right, bottom = ops.unstack(boxes, 4, axis=-1)
    rows, columns = masks.shape[-2:]
    weights = _exact_weights if aligned else _whole_pixel_weights
    row_weights = weights(top, bottom, rows, height)
    column_weights = weights(left, right, columns, width)
    pasted = ops.matmul(
        ops.matmul(row_weights, masks), ops.swapaxes(column_weights, -1, -2)
    )
    return pasted if threshold is None else pasted > threshold


def masks_in_image(masks, boxes, image_size, aligned=True) -> np.ndarray:
    """The masks of one image; masks of boxes are pasted by `paste_masks`.

    Args:
        masks: (N, h, w) probabilities, or (N, H, W) bool, which are returned as such.
        boxes: (N, 4), `"xyxy"` in pixels.
        image_size: H and W.
        aligned: See `paste_masks`.

    Returns:
        bool (N, H, W).
    """
    if masks.dtype == bool and masks.shape[1:] == tuple(image_size):
        return masks
    pasted = np.zeros((len(masks), *image_size), bool)
    step = max(1, _MOST_PIXELS // (image_size[0] * image_size[1]))
    for start in range(0, len(masks), step):
        rows = slice(start, start + step)
        found = paste_masks(
            masks[None, rows], boxes[None, rows], image_size, aligned=aligned
        )
        pasted[rows] = ops.convert_to_numpy(found)[0]
    return pasted


def _exact_weights(start, end, size, pixels):
    """How much of each location of a mask is in each pixel, along one axis.

    Args:
        start: (B, K), the first side of each box.
        end: (B, K), its last side.
        size: Locations of the mask.
        pixels: Pixels of the image.

    Returns:
        (B, K, pixels, size).
    """
    length = end - start
    is_box = ops.logical_and(length > 0, ops.isfinite(length))
    start, end, length, is_box = (
        ops.expand_dims(x, -1)
        for x in (start, end, ops.where(is_box, length, 1.0), is_box)
    )
    pixel = ops.arange(pixels, dtype="float32")
    inside = ops.logical_and(pixel >= ops.floor(start), pixel < ops.ceil(end))
    at = (pixel + 0.5 - start) * (size / length) + 0.5
    return _interpolation(at, ops.logical_and(inside, is_box), size)


def _whole_pixel_weights(start, end, size, pixels):
    """As `_exact_weights`, for boxes cut down to whole pixels."""
    center, half = (start + end) / 2, (end - start) / 2 * (size + 2) / size
    # Whole pixels, towards zero.
    first, last = ops.trunc(center - half), ops.trunc(center + half)
    length = ops.expand_dims(ops.maximum(last - first + 1, 1.0), -1)
    offset = ops.arange(pixels, dtype="float32") - ops.expand_dims(first, -1)
    inside = ops.logical_and(offset >= 0, offset < length)
    at = (offset + 0.5) * ((size + 2) / length) - 0.5
    return _interpolation(at, inside, size)


def _interpolation(at, inside, size):
    """Weights (B, K, pixels, size) of a mask's locations with a zero on either side.

    Args:
        at: (B, K, pixels), where each pixel is; the first location of the mask is at 1.
        inside: (B, K, pixels), whether it is in the box.
        size: Locations of the mask.
    """
    at = ops.expand_dims(ops.clip(at, 0.0, size + 1.0), -1)
    places = ops.arange(1, size + 1, dtype="float32")
    weights = ops.relu(1.0 - ops.abs(at - places))
    return ops.where(ops.expand_dims(inside, -1), weights, 0.0)
