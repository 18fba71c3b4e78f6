"""Checks ground-truth boxes before a detector learns from them.

Legend: B batch, M ground-truth boxes with padding, H and W pixels of the images, C
classes.
"""

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_choice, check_pair, check_positive
from keras_attn.ops.boxes import BOX_FORMATS


def check_boxes(
    truth, num_classes: int, image_size, *, bounding_box_format: str = "xyxy"
):
    """Refuses boxes that a detector cannot learn from.

    In `fit` such a box counts as padding. A wrong format, or classes numbered from 1,
    would only show as bad detections.

    A box may extend beyond the border of the image, but not lie outside it.

    Args:
        truth: A dictionary of `boxes` (B, M, 4), `classes` (B, M), -1 = padding, and
            optionally `masks` (B, M, H, W) and `is_crowd` (B, M), which marks boxes
            that are not learned from; or a dataset of batches `(images, truth)`.
        num_classes: C.
        image_size: (H, W) in pixels, one number or two.
        bounding_box_format: Format of the boxes: `"xyxy"` (left, top, right, bottom),
            `"yxyx"` or `"xywh"` in pixels, or `"rel_…"` in fractions of the image.

    Returns:
        The dictionary, unchanged; or the dataset, which checks each batch as it is
        read.

    Raises:
        TypeError: If `truth` is neither.
        ValueError: If an array has a different shape; if a box is not finite, has no
            area or lies outside the image; if a class is outside [-1, C); or if a mask
            has values other than 0 and 1.
        tf.errors.InvalidArgumentError: The same, from a dataset while it is read.

    Example:
        ```python
        import numpy as np
        from keras_attn import data

        truth = {"boxes": np.array([[[2.0, 3, 9, 9]]]), "classes": np.array([[1]])}
        data.check_boxes(truth, num_classes=20, image_size=32)  # The truth, unchanged.
        ```
    """
    check_positive("num_classes", num_classes)
    check_choice("bounding_box_format", bounding_box_format, BOX_FORMATS)
    size = check_pair("image_size", image_size)

    def check(truth):
        arrays = {name: np.asarray(value) for name, value in truth.items()}
        _check_shapes(arrays, size)
        _check_values(arrays, num_classes, size, bounding_box_format)

    if isinstance(truth, tf.data.Dataset):
        return _checked_dataset(truth, check)
    if not isinstance(truth, dict):
        raise TypeError(
            "`truth` must be a dictionary of `boxes` and `classes`, or a dataset of "
            f"`(images, truth)`. Received: truth={type(truth).__name__}"
        )
    _check_names(truth)
    check(truth)
    return truth


def _check_names(truth):
    optional = {"masks", "is_crowd"}
    if not {"boxes", "classes"} <= set(truth) <= {"boxes", "classes", *optional}:
        raise ValueError(
            "`truth` must have the keys `boxes` and `classes`, `masks` for masks, and "
            f"optionally `is_crowd`. Received: keys {sorted(truth)}"
        )


def _checked_dataset(dataset, check):
    spec = dataset.element_spec
    truth = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
    if not isinstance(truth, dict):
        raise TypeError(
            "A dataset must yield pairs (images, dictionary). Received: "
            f"truth.element_spec={spec}"
        )
    _check_names(truth)
    names = sorted(truth)

    def check_arrays(*values):
        check(dict(zip(names, values, strict=True)))
        return values[0]

    def check_batch(*batch):
        values = [batch[1][name] for name in names]
        first = tf.numpy_function(check_arrays, values, values[0].dtype, stateful=False)
        first.set_shape(values[0].shape)
        return (batch[0], {**batch[1], names[0]: first}, *batch[2:])

    return dataset.map(check_batch)


def _check_shapes(truth, size):
    boxes, classes = truth["boxes"], truth["classes"]
    if boxes.ndim != 3 or boxes.shape[-1] != 4 or classes.shape != boxes.shape[:2]:
        raise ValueError(
            "`boxes` must have the shape (batch, boxes, 4) and `classes` "
            f"(batch, boxes). Received: boxes.shape={boxes.shape}, "
            f"classes.shape={classes.shape}"
        )
    if not np.issubdtype(classes.dtype, np.integer):
        raise ValueError(
            f"`classes` must be integers. Received: classes.dtype={classes.dtype}"
        )
    masks = truth.get("masks")
    if masks is not None and masks.shape != (*classes.shape, *size):
        raise ValueError(
            f"`masks` must have the shape {(*classes.shape, *size)}, one mask of the "
            f"image's size for each box. Received: masks.shape={masks.shape}"
        )


def _check_values(truth, num_classes, size, bounding_box_format):
    classes = truth["classes"]
    wrong = (classes < -1) | (classes >= num_classes)
    if wrong.any():
        raise ValueError(
            f"`classes` must be in [0, {num_classes}), or -1 for padding: number them "
            "from 0, without a background. Received: "
            f"{_first(classes, wrong)}"
        )
    boxes = truth["boxes"].astype("float64")
    left, top, right, bottom = np.moveaxis(
        _corners(boxes, size, bounding_box_format), -1, 0
    )
    is_real = classes >= 0
    for what, wrong in (
        ("be finite", ~np.isfinite(boxes).all(axis=-1)),
        (
            f"have a width and a height above zero in the format "
            f"{bounding_box_format!r}",
            (right <= left) | (bottom <= top),
        ),
        (
            f"overlap with the image of {size} pixels, rows first",
            (left >= size[1]) | (top >= size[0]) | (right <= 0) | (bottom <= 0),
        ),
    ):
        if np.any(wrong & is_real):
            raise ValueError(
                f"Each of `boxes` must {what}; a class of -1 marks padding. Received: "
                f"{_first(truth['boxes'], wrong & is_real)}"
            )
    masks = truth.get("masks")
    if masks is not None and masks.dtype != bool:
        wrong = (masks != 0) & (masks != 1)
        if wrong.any():
            raise ValueError(
                "`masks` must be 0 or 1: one mask for each object, not numbers of "
                f"objects. Received: {_first(masks, wrong)}"
            )


def _corners(boxes, size, bounding_box_format):
    """Left, top, right and bottom in pixels."""
    height, width = size
    corners = boxes
    if bounding_box_format.endswith("yxyx"):
        corners = boxes[..., [1, 0, 3, 2]]
    elif bounding_box_format.endswith("xywh"):
        corners = np.concatenate([boxes[..., :2], boxes[..., :2] + boxes[..., 2:]], -1)
    if bounding_box_format.startswith("rel_"):
        corners = corners * [width, height, width, height]
    return corners


def _first(values, wrong):
    """The first wrong value and where it is."""
    place = tuple(int(axis) for axis in np.argwhere(wrong)[0])
    return f"{np.asarray(values[place]).tolist()} at index {place}"
