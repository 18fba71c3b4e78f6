"""Converts between the box dictionaries of keras-cv and `detection_dataset`.

keras-cv, which has eight box formats, is imported only here.

Legend: B batch, M objects of an image with padding, H and W pixels.
"""

from typing import Any

import tensorflow as tf

from keras_attn.checks.arguments import check_positive
from keras_attn.data.images.detection import pad_objects
from keras_attn.data.images.geometry import Example, areas
from keras_attn.extras import requires_extra

_OURS = "xyxy"


def from_keras_cv(
    dataset: tf.data.Dataset, bounding_box_format: str, *, max_boxes: int
) -> tf.data.Dataset:
    """Converts batches in keras-cv's structure to those that a detector trains on.

    Boxes are clipped to their image; a box without area in it is dropped.

    Args:
        dataset: Dictionaries of `images` (B, H, W, C) and `bounding_boxes`, a
            dictionary of `boxes` (B, M', 4) and `classes` (B, M'), ragged or padded by
            -1.
        bounding_box_format: Format of these boxes in keras-cv, such as `"xywh"` or
            `"rel_yxyx"`.
        max_boxes: M. If an image has more objects, the largest are kept.

    Returns:
        The same number of batches, of `images` and a dictionary: `boxes` float32
        (B, M, 4), 0 in padding; `classes` int32 (B, M), -1 in padding.

    Raises:
        ImportError: If the extra `vision` is not installed.
        TypeError: If the batches have a different structure.
        ValueError: If keras-cv does not know the format.

    Example:
        Needs the extra `vision`:

        ```python
        import keras_cv
        from keras_attn import data

        shapes = data.Shapes().dataset("detection", 8, batch_size=4)
        mosaic = keras_cv.layers.Mosaic(bounding_box_format="xywh")
        train = data.to_keras_cv(shapes, "xywh").map(mosaic)
        train = data.from_keras_cv(train, "xywh", max_boxes=40)
        ```
    """
    check_positive("max_boxes", max_boxes)
    bounding_box = _bounding_box()
    spec: Any = dataset.element_spec
    if not (
        isinstance(spec, dict)
        and {"images", "bounding_boxes"} <= set(spec)
        and isinstance(spec["bounding_boxes"], dict)
        and {"boxes", "classes"} <= set(spec["bounding_boxes"])
    ):
        raise TypeError(
            "`dataset` must yield dictionaries of `images` and `bounding_boxes`, and "
            "these must have `boxes` and `classes`, as keras-cv's layers take them. "
            f"Received: dataset.element_spec={spec}"
        )

    def pad(boxes, classes) -> Example:
        is_real = (classes >= 0) & (areas(boxes) > 0)
        example = {"boxes": boxes, "classes": classes}
        kept = {key: tf.boolean_mask(each, is_real) for key, each in example.items()}
        return pad_objects(kept, max_boxes)

    def convert(batch):
        images = batch["images"]
        dense = bounding_box.to_dense(batch["bounding_boxes"])
        boxes = bounding_box.convert_format(
            dense["boxes"], source=bounding_box_format, target=_OURS, images=images
        )
        height, width = tf.unstack(tf.shape(images)[1:3])
        limits = tf.cast(tf.stack([width, height] * 2), tf.float32)
        boxes = tf.clip_by_value(boxes, 0.0, limits)
        targets = tf.map_fn(
            lambda each: pad(*each),
            (boxes, tf.cast(dense["classes"], tf.int32)),
            fn_output_signature={
                "boxes": tf.TensorSpec([max_boxes, 4], tf.float32),
                "classes": tf.TensorSpec([max_boxes], tf.int32),
            },
        )
        return images, targets

    return dataset.map(convert)


def to_keras_cv(dataset: tf.data.Dataset, bounding_box_format: str) -> tf.data.Dataset:
    """The batches of `detection_dataset` as keras-cv's layers take them.

    Random layers of keras-cv have random states of their own, so a resumed run does not
    see the data that it would have seen without the interruption. They do not support
    object masks.

    Args:
        dataset: Batches of `detection_dataset` or `Shapes`.
        bounding_box_format: Format of keras-cv, such as `"xywh"` or `"rel_yxyx"`.

    Returns:
        Dictionaries of `images` and `bounding_boxes`: `boxes` float32 (B, M, 4) and
        `classes` float32 (B, M), both -1 in padding.

    Raises:
        ImportError: If the extra `vision` is not installed.
        ValueError: If keras-cv does not know the format.
    """
    bounding_box = _bounding_box()

    def convert(images, targets):
        boxes = bounding_box.convert_format(
            targets["boxes"], source=_OURS, target=bounding_box_format, images=images
        )
        is_real = targets["classes"][..., None] >= 0
        return {
            "images": images,
            "bounding_boxes": {
                "boxes": tf.where(is_real, boxes, -1.0),
                "classes": tf.cast(targets["classes"], tf.float32),
            },
        }

    return dataset.map(convert)


def _bounding_box() -> Any:
    with requires_extra("vision", "keras-cv's format of boxes"):
        from keras_cv import bounding_box
    return bounding_box
