"""Boxes: formats, areas, overlaps, and the deltas that a detector predicts.

Legend: B batch, N and M boxes, H and W pixels. The format inside the library is
`"xyxy"`: left, top, right, bottom in pixels of the image, where pixel (0, 0) covers
[0, 1) × [0, 1).
"""

import math
from typing import Literal, get_args

from keras import ops

from keras_attn.checks.arguments import check_choice, check_pair

BoxFormat = Literal["xyxy", "yxyx", "xywh", "rel_xyxy", "rel_yxyx", "rel_xywh"]
BOX_FORMATS = get_args(BoxFormat)
# A size changes by no more than this factor, so that no exponential overflows.
_LARGEST_SCALE = math.log(1000.0 / 16.0)
# A box without an area is encoded as if it had this many pixels.
_SMALLEST_SIZE = 1e-6


def convert_boxes(boxes, source, target, image_size=None):
    """Boxes in a different format.

    Unlike `keras.utils.bounding_boxes.convert_format`, this also takes the symbolic
    tensors of a functional model.

    Args:
        boxes: (…, 4), in the format `source`.
        source: One of `BOX_FORMATS`: `"xyxy"` is left, top, right, bottom in pixels;
            `"yxyx"` top, left, bottom, right; `"xywh"` left, top, width, height. With
            `"rel_"` the numbers are fractions of the image's width and height.
        target: One of `BOX_FORMATS`.
        image_size: H and W, one number or two, required if exactly one of the formats
            is relative.

    Returns:
        (…, 4), in the format `target`.

    Raises:
        ValueError: If `source` or `target` is unknown, or `image_size` is required but
            missing.
    """
    for name, value in (("source", source), ("target", target)):
        check_choice(name, value, BOX_FORMATS)
    if source == target:
        return boxes
    is_relative = source.startswith("rel_"), target.startswith("rel_")
    a, b, c, d = ops.unstack(boxes, 4, axis=-1)
    corners = {
        "xyxy": lambda: (a, b, c, d),
        "yxyx": lambda: (b, a, d, c),
        "xywh": lambda: (a, b, a + c, b + d),
    }[source.removeprefix("rel_")]()
    left, top, right, bottom = corners
    if is_relative[0] != is_relative[1]:
        if image_size is None:
            raise ValueError(
                "`image_size` is needed between pixels and fractions of the image; "
                f"pass (height, width). Received: image_size=None, source={source!r}, "
                f"target={target!r}"
            )
        height, width = check_pair("image_size", image_size)
        if is_relative[0]:
            left, right, top, bottom = (
                *(left * width, right * width),
                *(top * height, bottom * height),
            )
        else:
            left, right, top, bottom = (
                *(left / width, right / width),
                *(top / height, bottom / height),
            )
    converted = {
        "xyxy": lambda: (left, top, right, bottom),
        "yxyx": lambda: (top, left, bottom, right),
        "xywh": lambda: (left, top, right - left, bottom - top),
    }[target.removeprefix("rel_")]()
    return ops.stack(converted, axis=-1)


def box_locations(boxes):
    """Boxes and their areas, (…, 5), which ViLBERT embeds.

    Args:
        boxes: (…, 4), left, top, right and bottom as shares of the image's width and
            height, in [0, 1].

    Reference:
        Lu et al. 2019, section 3.1 (arXiv:1908.02265).
    """
    left, top, right, bottom = (boxes[..., index] for index in range(4))
    area = (right - left) * (bottom - top)
    return ops.concatenate([boxes, area[..., None]], axis=-1)


def box_areas(boxes):
    """Areas (…) of boxes (…, 4) in pixels; 0 for a box of negative or unknown size.

    Args:
        boxes: (…, 4), `"xyxy"` in pixels.
    """
    left, top, right, bottom = ops.unstack(boxes, 4, axis=-1)
    return _positive(right - left) * _positive(bottom - top)


def pairwise_iou(boxes, others):
    """Intersection over union of each box with each other box.

    Args:
        boxes: (…, N, 4).
        others: (…, M, 4).

    Returns:
        (…, N, M), in [0, 1]. 0 for a box without an area.
    """
    left, top, right, bottom = (
        ops.expand_dims(side, -1) for side in ops.unstack(boxes, 4, axis=-1)
    )  # (…, N, 1)
    other_left, other_top, other_right, other_bottom = (
        ops.expand_dims(side, -2) for side in ops.unstack(others, 4, axis=-1)
    )  # (…, 1, M)
    width = _positive(ops.minimum(right, other_right) - ops.maximum(left, other_left))
    height = _positive(ops.minimum(bottom, other_bottom) - ops.maximum(top, other_top))
    intersection = width * height
    areas = ops.expand_dims(box_areas(boxes), -1)
    union = areas + ops.expand_dims(box_areas(others), -2) - intersection
    is_overlap = intersection > 0
    return ops.where(is_overlap, intersection / ops.where(is_overlap, union, 1.0), 0.0)


def clip_boxes(boxes, image_size):
    """Boxes (…, 4) cut off at the borders of an image.

    Args:
        boxes: `"xyxy"` in pixels.
        image_size: H and W, one number or two.
    """
    height, width = check_pair("image_size", image_size)
    left, top, right, bottom = ops.unstack(boxes, 4, axis=-1)
    return ops.stack(
        [
            *(ops.clip(left, 0.0, width), ops.clip(top, 0.0, height)),
            *(ops.clip(right, 0.0, width), ops.clip(bottom, 0.0, height)),
        ],
        axis=-1,
    )


def has_area(boxes, smallest=0.0):
    """Whether boxes (…, 4) are wider and higher than `smallest` pixels; False for NaN.

    Returns:
        (…), bool.
    """
    left, top, right, bottom = ops.unstack(boxes, 4, axis=-1)
    return ops.logical_and(right - left > smallest, bottom - top > smallest)


def encode_boxes(boxes, anchors, weights=(1.0, 1.0, 1.0, 1.0)):
    """Deltas that move anchors onto boxes.

    `(w_x (x - x_a) / w_a, w_y (y - y_a) / h_a, w_w log(w / w_a), w_h log(h / h_a))`,
    where (x, y) is a center.

    Args:
        boxes: (…, 4).
        anchors: (…, 4).
        weights: Factors of the four deltas, which scale their losses.

    Returns:
        (…, 4).

    Reference:
        Girshick et al. 2014, appendix C (arXiv:1311.2524).
    """
    x, y, width, height = _center_and_size(boxes)
    anchor_x, anchor_y, anchor_width, anchor_height = _center_and_size(anchors)
    anchor_width, anchor_height, width, height = (
        ops.maximum(size, _SMALLEST_SIZE)
        for size in (anchor_width, anchor_height, width, height)
    )
    deltas = (
        (x - anchor_x) / anchor_width,
        (y - anchor_y) / anchor_height,
        ops.log(width / anchor_width),
        ops.log(height / anchor_height),
    )
    return ops.stack(
        [weight * delta for weight, delta in zip(weights, deltas, strict=True)], axis=-1
    )


def decode_boxes(deltas, anchors, weights=(1.0, 1.0, 1.0, 1.0)):
    """Anchors moved by deltas: the inverse of `encode_boxes`.

    A width or height grows by a factor of at most 1000 / 16.

    Args:
        deltas: (…, 4).
        anchors: (…, 4).
        weights: As in `encode_boxes`.

    Returns:
        (…, 4), not clipped.
    """
    x, y, width, height = _center_and_size(anchors)
    move_x, move_y, scale_x, scale_y = (
        delta / weight
        for delta, weight in zip(ops.unstack(deltas, 4, axis=-1), weights, strict=True)
    )
    x, y = move_x * width + x, move_y * height + y
    half_width = 0.5 * ops.exp(ops.minimum(scale_x, _LARGEST_SCALE)) * width
    half_height = 0.5 * ops.exp(ops.minimum(scale_y, _LARGEST_SCALE)) * height
    return ops.stack(
        [x - half_width, y - half_height, x + half_width, y + half_height], axis=-1
    )


def decode_clipped(deltas, anchors, image_size, weights=(1.0, 1.0, 1.0, 1.0)):
    """As `decode_boxes`, cut off at the borders of an image.

    Args:
        deltas: (…, 4).
        anchors: (…, 4).
        image_size: H and W, one number or two.
        weights: As in `encode_boxes`.

    Returns:
        (…, 4).
    """
    return clip_boxes(decode_boxes(deltas, anchors, weights), image_size)


def _positive(size):
    # `maximum` by itself would return NaN for NaN.
    return ops.where(size > 0, size, ops.zeros_like(size))


def _center_and_size(boxes):
    left, top, right, bottom = ops.unstack(boxes, 4, axis=-1)
    width, height = right - left, bottom - top
    return left + 0.5 * width, top + 0.5 * height, width, height


def pyramid_levels(
    boxes, strides, canonical_size: float = 224, canonical_level: int = 4
):
    """The pyramid level that the features of each box are read from.

    `⌊k + log2(√(w h) / s)⌋`, where k is `canonical_level` and s `canonical_size`, minus
    the level of the first map, clipped to the levels of the pyramid.

    Args:
        boxes: (B, R, 4), in pixels.
        strides: Pixels between adjacent locations of each map, powers of two.
        canonical_size: √(w h) of a box that reads the map with stride 2^k.
        canonical_level: k.

    Returns:
        (B, R) int32, indices of maps.

    Reference:
        Lin et al. 2017, equation 1 (arXiv:1612.03144).
    """
    first = round(math.log2(strides[0]))
    size = ops.sqrt(ops.maximum(box_areas(boxes), _SMALLEST_SIZE))
    # A margin against rounding, as in torchvision.
    level = ops.log(size / canonical_size) / math.log(2.0) + canonical_level + 1e-6
    level = ops.clip(ops.floor(level) - first, 0, len(strides) - 1)
    return ops.cast(level, "int32")
