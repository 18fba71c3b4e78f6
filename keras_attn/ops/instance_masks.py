"""Masks of objects: from the grid inside a box to the pixels of the image.

Legend: B batch, K boxes, h and w rows and columns of a mask, H and W of the image.
"""

from keras import ops

from keras_attn.checks import check_pair


def paste_masks(masks, boxes, image_size, threshold: float | None = 0.5):
    """Masks of boxes as masks of the image, by bilinear interpolation.

    A mask is surrounded by zeros and its box enlarged accordingly, then cut down to
    whole pixels, as in torchvision.

    Args:
        masks: (B, K, h, w), probabilities.
        boxes: (B, K, 4), `"xyxy"` in pixels.
        image_size: H and W, one number or two.
        threshold: Probability above which a pixel belongs to the object. None: the
            probabilities are returned.

    Returns:
        (B, K, H, W), bool, or float32 without a threshold. 0 outside of the box.

    Reference:
        He et al. 2017, section 3.1 (arXiv:1703.06870).
    """
    height, width = check_pair("image_size", image_size)
    masks, boxes = ops.cast(masks, "float32"), ops.cast(boxes, "float32")
    left, top, right, bottom = ops.unstack(boxes, 4, axis=-1)
    rows, columns = masks.shape[-2:]
    row_weights = _weights(top, bottom, rows, height)
    column_weights = _weights(left, right, columns, width)
    pasted = ops.matmul(
        ops.matmul(row_weights, masks), ops.swapaxes(column_weights, -1, -2)
    )
    return pasted if threshold is None else pasted > threshold


def _weights(start, end, size, pixels):
    """How much of each place of a mask is in each pixel, along one axis.

    Args:
        start: (B, K), the first side of each box.
        end: (B, K), its last side.
        size: Places of the mask.
        pixels: Pixels of the image.

    Returns:
        (B, K, pixels, size).
    """
    center, half = (start + end) / 2, (end - start) / 2 * (size + 2) / size
    # Whole pixels, towards zero.
    first, last = ops.trunc(center - half), ops.trunc(center + half)
    length = ops.expand_dims(ops.maximum(last - first + 1, 1.0), -1)
    offset = ops.arange(pixels, dtype="float32") - ops.expand_dims(first, -1)
    # Places of the mask with a zero on either side: the first of its own is at 1.
    at = ops.clip((offset + 0.5) * ((size + 2) / length) - 0.5, 0.0, size + 1.0)
    inside = ops.logical_and(offset >= 0, offset < length)
    places = ops.arange(1, size + 1, dtype="float32")
    weights = ops.relu(1.0 - ops.abs(ops.expand_dims(at, -1) - places))
    return ops.where(ops.expand_dims(inside, -1), weights, 0.0)
