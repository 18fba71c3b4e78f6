"""The ground truth of a detector: checks, and masks cropped to boxes.

Legend: B batch, M ground-truth boxes with padding, S boxes, H and W pixels, h and w
rows and columns of a mask in its box.
"""

import numpy as np
from keras import ops

from keras_attn.checks.indices import known_values
from keras_attn.ops import convert_boxes, roi_align

# Boxes of an image of fewer pixels may all lie in the first one.
_FEW_PIXELS = 8


def check_shapes(truth, has_masks, image_size):
    """Raises if a known size is wrong, before an operation inside the model fails."""
    boxes, classes = truth["boxes"].shape, truth["classes"].shape
    wanted = {"boxes": (*classes[:2], 4), "classes": boxes[:2]}
    if has_masks:
        wanted["masks"] = (*boxes[:2], *image_size)
    for name, expected in wanted.items():
        found = truth[name].shape
        if len(found) != len(expected) or any(
            one is not None and other is not None and one != other
            for one, other in zip(found, expected, strict=True)
        ):
            raise ValueError(
                "`y` must have `boxes` (B, M, 4), `classes` (B, M), counted from 0, "
                "and, for masks, `masks` (B, M, H, W) of the image size, "
                f"{tuple(image_size)}. Received: "
                + ", ".join(
                    f"{each}.shape={tuple(truth[each].shape)}" for each in wanted
                )
            )
    if boxes[1] is None:
        raise ValueError(
            "The number of boxes in `y` must be the same for all batches of a data "
            "set: pass `max_boxes` to `detection_dataset`, or `padded_shapes` to "
            f"`padded_batch`. Received: boxes.shape={tuple(boxes)}"
        )


def with_at_least_one_box(truth, has_masks):
    """The truth, with one box of padding if M is 0: a maximum needs an element."""
    if truth["boxes"].shape[1]:
        return truth
    names = {"boxes", "classes", *(["masks"] if has_masks else [])}
    names |= {"is_crowd"} & set(truth)
    return pad_boxes({name: truth[name] for name in names}, 1)


def pad_boxes(truth, count):
    """The truth with padding after its objects.

    Args:
        truth: Tensors or arrays (B, M, …) by name.
        count: Number of objects to add to each image.
    """
    return {
        name: ops.pad(
            values,
            [(0, count) if axis == 1 else (0, 0) for axis in range(len(values.shape))],
            constant_values=-1 if name == "classes" else 0,
        )
        for name, values in truth.items()
    }


def check_truth(truth, sample_weight, has_masks):
    """Raises unless the truth has the names that the losses need, without weights."""
    names = {"boxes", "classes"} | ({"masks"} if has_masks else set())
    if not isinstance(truth, dict) or not names <= set(truth):
        received = sorted(truth) if isinstance(truth, dict) else type(truth).__name__
        raise ValueError(
            f"`y` must be a dictionary with the keys {sorted(names)}: pass batches "
            f"`(images, truth)`. Received: y={received}"
        )
    if sample_weight is not None:
        raise ValueError(
            "`sample_weight` is not supported by a detector; leave it out. "
            f"Received: sample_weight={type(sample_weight).__name__}"
        )


def check_boxes(truth, bounding_box_format, image_size):
    """Raises if known boxes are turned round, or shares of the image.

    Boxes that are only unusable, without area or outside, count as padding.

    Args:
        truth: `boxes` (B, M, 4) and `classes` (B, M), arrays or not.
        bounding_box_format: What `boxes` are in.
        image_size: H and W.

    Raises:
        ValueError: If a box ends before it begins, or no box in pixels reaches beyond
            the first pixel.
    """
    if not isinstance(truth, dict) or not {"boxes", "classes"} <= set(truth):
        return
    boxes, classes = (known_values(truth[name]) for name in ("boxes", "classes"))
    if boxes is None or classes is None or boxes.shape != (*classes.shape, 4):
        return
    is_real = (classes >= 0) & np.isfinite(boxes).all(-1)
    if not is_real.any():
        return
    corners = np.asarray(
        ops.convert_to_numpy(
            convert_boxes(
                boxes.astype("float32"), bounding_box_format, "xyxy", image_size
            )
        )
    )
    is_turned = is_real & (corners[..., 2:] < corners[..., :2]).any(-1)
    if is_turned.any():
        first = tuple(int(axis) for axis in np.argwhere(is_turned)[0])
        raise ValueError(
            f"`boxes` must be {bounding_box_format!r}, whose right and bottom do not "
            f"lie before left and top. Received: {boxes[first].tolist()} at {first}"
        )
    is_in_pixels = not bounding_box_format.startswith("rel")
    reach = np.abs(boxes[is_real]).max()
    if is_in_pixels and 0 < reach <= 1 and min(image_size) > _FEW_PIXELS:
        raise ValueError(
            f"`boxes` must be {bounding_box_format!r} in pixels of the input: multiply "
            "shares by the width and height, or build the model with another "
            f"`bounding_box_format`. Received: no box beyond {reach:.4g} in images of "
            f"{tuple(image_size)} pixels"
        )


def mask_targets(masks, boxes, matches, size, aligned):
    """Ground-truth masks cropped to boxes, which the mask head learns to predict.

    Location j of w covers the pixels from `left + j / w · (right - left)` on. With
    `aligned`, `ops.paste_masks` is the inverse.

    Args:
        masks: (B, M, H, W); above 0.5 counts as 1.
        boxes: (B, S, 4), `"xyxy"` in pixels.
        matches: (B, S) int32, the index of the object of each box.
        size: h and w.
        aligned: Whether pixel i lies at i + ½, which is exact, or at i, as in
            torchvision.

    Returns:
        (B, S, h, w) float32, from 0 to 1.
    """
    masks = ops.cast(ops.cast(masks, "float32") > 0.5, "float32")
    # The masks of all objects as the levels of a pyramid; each box has one level.
    count = masks.shape[1]
    objects = [ops.expand_dims(masks[:, index], -1) for index in range(count)]
    return roi_align(
        objects,
        boxes,
        strides=[1] * count,
        output_size=size,
        aligned=aligned,
        levels=matches,
    )[..., 0]
