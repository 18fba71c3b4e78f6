"""Images with boxes, classes and masks of objects, in batches of fixed sizes.

Legend: B batch, M objects of an image with padding, N without, H and W pixels. Boxes
are `"xyxy"`: left, top, right, bottom in pixels, where pixel (0, 0) covers
[0, 1) × [0, 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_pair, check_positive
from keras_attn.data.images.geometry import (
    OF_BOXES,
    Augmentation,
    Example,
    areas,
    fit_into,
    normalization,
)
from keras_attn.data.images.image_files import read_image
from keras_attn.data.images.instance_masks import decode_mask
from keras_attn.data.pipelines.bad_files import FileData, Skipped
from keras_attn.data.pipelines.epochs import Epoch
from keras_attn.data.pipelines.examples import (
    check_batches,
    example_dataset,
    read_or_skip,
)
from keras_attn.files.reading import naming


@dataclass(frozen=True)
class DetectionExample:
    """The annotations of an image.

    Attributes:
        name: Identifies the image in messages, and in `Skipped`.
        image_path: The file.
        boxes: float32 (N, 4).
        classes: int32 (N,), from 0.
        is_crowd: bool (N,), whether a box surrounds a group of objects (COCO's
            `iscrowd`). A crowd is not a target; detections in it are not counted.
        segmentations: For each box a COCO segmentation; None without masks.
        size: (height, width) according to the annotations, or None.
        image_id: The number of the image in its data set.
    """

    name: str
    image_path: Path
    boxes: np.ndarray
    classes: np.ndarray
    is_crowd: np.ndarray
    segmentations: list | None = None
    size: tuple[int, int] | None = None
    image_id: int = 0


@dataclass(frozen=True)
class DetectionData(FileData):
    """A set of images with objects.

    Attributes:
        examples: One per image.
        class_names: Name of each class. Class 0 is the first kind of object: adding a
            background class is left to the model.
        skipped: What was left out, with reasons. Corrupt images are added when they
            are first read.
        category_ids: The data set's own number of each class.
        notes: What is in the folders and not in the data set, counted.
    """

    examples: list[DetectionExample]
    class_names: list[str]
    skipped: Skipped = field(default_factory=partial(Skipped, "raise"))
    category_ids: list[int] | None = None
    notes: Sequence[str] = ()

    def read(self, number: int) -> tuple[np.ndarray, ...]:
        """Image, boxes, classes, crowds and masks of an example.

        Args:
            number: Its index.
        """
        return read_example(self.examples[number], self.has_masks, crowds=True)

    @property
    def has_masks(self) -> bool:
        """Whether every image has masks."""
        return all(each.segmentations is not None for each in self.examples)


def make_example(
    number: int,
    image: tuple[str, Path, tuple[int, int] | None],
    objects: Sequence[tuple[np.ndarray, int, bool, Any]],
    masks: bool = False,
) -> DetectionExample:
    """What a reader found about an image.

    Args:
        number: The image in its data set.
        image: Its name, file, and (height, width) if it is known.
        objects: Box (4,), class, whether it is a crowd, and segmentation, of each.
        masks: Whether to keep the segmentations.
    """
    name, file, size = image
    return DetectionExample(
        name=name,
        image_path=file,
        boxes=np.array([box for box, *_ in objects], np.float32).reshape(-1, 4),
        classes=np.array([each[1] for each in objects], np.int32),
        is_crowd=np.array([each[2] for each in objects], bool),
        segmentations=[each[3] for each in objects] if masks else None,
        size=size,
        image_id=number,
    )


def check_boxes(
    boxes: np.ndarray, size: tuple[int, int] | None, label: str = ""
) -> np.ndarray:
    """Boxes clipped to their image.

    Args:
        boxes: (N, 4).
        size: (height, width); None if it is not known yet.
        label: Where the boxes are, for the message.

    Returns:
        float32 (N, 4).

    Raises:
        ValueError: If a box is not finite or has no area in the image.
    """
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    height, width = size or (2**31, 2**31)
    clipped = boxes.clip(0, [width, height, width, height]).astype(np.float32)
    for box, kept in zip(boxes, clipped, strict=True):
        if not np.isfinite(box).all() or kept[0] >= kept[2] or kept[1] >= kept[3]:
            raise ValueError(
                f"{label and f'{label}: '}A box must be finite, with left < right and "
                "top < bottom inside of "
                f"its image{'' if size is None else f' of {height} x {width} pixels'}. "
                f"Received: left, top, right, bottom = {box.tolist()}"
            )
    return clipped


def is_line(box: np.ndarray) -> bool:
    """Whether a box has no width or no height, as a few have in COCO's own files.

    Nothing can be learned from it, so `on_error` of a reader does not matter.

    Args:
        box: (4,), which need not be finite.
    """
    left, top, right, bottom = box
    return bool(np.isfinite(box).all() and (left == right or top == bottom))


def detection_dataset(
    data: DetectionData,
    *,
    image_size: int | tuple[int, int],
    batch_size: int,
    max_boxes: int | None = None,
    keep_aspect_ratio: bool = True,
    masks: bool = False,
    crowds: bool = False,
    augmentations: Sequence[Augmentation] = (),
    normalize: str | None = None,
    seed: int = 0,
    shuffle: bool = False,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of images and their objects, for `model.fit`.

    The order, and the random numbers of each image, are functions of the seed, the
    epoch and the number of the image, for any number of threads.

    Args:
        data: From `read_voc`, `read_coco` or `read_yolo`.
        image_size: H and W of the batches, one number or two. An image is resized to
            fit (with antialiasing), and boxes and masks with it.
        batch_size: B.
        max_boxes: M. None takes the maximum over the data set. If an image has more
            objects, the largest are kept.
        keep_aspect_ratio: Whether an image keeps its aspect ratio, and is padded at the
            right or at the bottom; otherwise it is stretched.
        masks: Whether to return masks too, which the data set must have.
        crowds: Whether to return crowds too, for evaluation, with `is_crowd`.
        augmentations: Functions of an example and a seed, such as
            `RandomScaleAndCrop(image_size)`, applied in this order before resizing.
        normalize: "imagenet" subtracts the mean of ImageNet's colors and divides by
            their standard deviation, as torchvision's models expect; "unit" divides by
            255. None keeps 0 to 255. The padding of images is 0 in any case; what
            `RandomScaleAndCrop` adds around a smaller image is black, and normalized.
        seed: Seed of the order and the augmentations.
        shuffle: Whether each epoch has a new random order.
        epoch: Number of the epoch, or a `tf.Variable` that holds it, such as
            `training.BackupAndResume.epoch`. None counts the iterations.
        drop_remainder: Whether the last batch is left out if it is smaller.

    Returns:
        A dataset of float32 images (B, H, W, 3) and a dictionary: `boxes` float32
        (B, M, 4), 0 in padding; `classes` int32 (B, M), -1 in padding; `masks` bool
        (B, M, H, W) if asked for; `is_crowd` bool (B, M) if asked for. The real boxes
        come first. Its cardinality is known. An image that is left out while it is read
        is replaced by one from the beginning of the epoch: `data.check()` finds such
        images before, so that none counts twice in a validation.

    Raises:
        ValueError: If `data` has no images, or lacks the masks asked for.
        tf.errors.InvalidArgumentError: If a file is missing or corrupt, or its size or
            objects contradict the annotations, unless `data` was read with
            `on_error="skip"`. It is raised while the dataset is read, and names the
            file.

    Example:
        Needs the folder of Pascal VOC:

        ```python
        from keras_attn import data

        voc = data.read_voc("VOC2012", "train", on_error="skip")
        augmentations = [data.RandomMirror(), data.RandomScaleAndCrop(512)]
        train = data.detection_dataset(
            voc, image_size=512, batch_size=8, augmentations=augmentations, shuffle=True
        )
        ```
    """
    size = check_pair("image_size", image_size)
    check_batches(data, batch_size)
    if masks and not data.has_masks:
        raise ValueError(
            "`data` must have masks if `masks` is True, as COCO's JSON has. "
            "Received: boxes without `segmentations`"
        )
    if max_boxes is None:
        counts = [int((~each.is_crowd | crowds).sum()) for each in data.examples]
        max_boxes = max(1, *counts)
    check_positive("max_boxes", max_boxes)
    mean, deviation = normalization(normalize)

    def load(row):
        return _load(data, row, masks, crowds)

    def finish(example):
        example = fit_into(example, size, keep_aspect_ratio, fill=mean)
        image = (example.pop("image") - mean) / deviation
        return image, pad_objects(example, max_boxes)

    return example_dataset(
        load,
        finish,
        len(data),
        data.skipped,
        folder=str(data.examples[0].image_path.parent),
        augmentations=augmentations,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def _load(data: DetectionData, row: tf.Tensor, masks: bool, crowds: bool):
    """The example of a row, and whether it could be read."""

    def read(row):
        return read_example(data.examples[row], masks, crowds)

    empty = np.zeros((1, 1, 3), np.uint8), np.zeros((0, 4), np.float32)
    no_objects = np.zeros(0, np.int32), np.zeros(0, bool), np.zeros((0, 1, 1), bool)
    values, is_valid = read_or_skip(
        row, read, data._names, data.skipped, (*empty, *no_objects)
    )
    image, boxes, classes, is_crowd, planes = values
    example = {
        "image": tf.cast(tf.ensure_shape(image, [None, None, 3]), tf.float32),
        "boxes": tf.ensure_shape(boxes, [None, 4]),
        "classes": tf.ensure_shape(classes, [None]),
    }
    if masks:
        example["masks"] = tf.ensure_shape(planes, [None, None, None])
    if crowds:
        example["is_crowd"] = tf.ensure_shape(is_crowd, [None])
    return example, is_valid


def read_example(example: DetectionExample, masks: bool, crowds: bool):
    """Reads the image of an example.

    Args:
        example: The example.
        masks: Whether to make the masks.
        crowds: Whether to keep crowds.

    Returns:
        Image, boxes, classes, crowds and masks, as arrays.

    Raises:
        ValueError: If the image is corrupt or contradicts the annotations.
        FileNotFoundError: If the image is missing.
    """
    image = read_image(example.image_path, size=example.size)
    height, width = image.shape[:2]
    if example.size not in (None, (height, width)):
        raise ValueError(
            f"{example.image_path.name} must have the size in its annotations, "
            f"(height, width) = {example.size}. Received: "
            f"{str(example.image_path)!r} of {(height, width)}"
        )
    segmentations = example.segmentations or []
    kept = np.flatnonzero(~example.is_crowd | crowds)
    with naming(example.name):
        boxes = check_boxes(example.boxes[kept], (height, width))
        # No planes at all, rather than one per box, if masks are not asked for.
        planes = np.zeros((len(kept) if masks else 0, height, width), bool)
        for plane, index in zip(planes, kept, strict=False):
            plane[:] = decode_mask(segmentations[index], height, width)
    return image, boxes, example.classes[kept], example.is_crowd[kept], planes


def pad_objects(example: Example, count: int) -> Example:
    """The objects of an example, padded or cut to a fixed number; the largest are kept.

    Args:
        example: See `geometry`; entries that do not belong to boxes are kept.
        count: M.
    """
    largest = tf.argsort(areas(example["boxes"]), direction="DESCENDING", stable=True)
    order = tf.sort(largest[:count])
    padding = tf.maximum(count - tf.shape(order)[0], 0)
    padded = dict(example)
    for name in OF_BOXES:
        if name in example:
            values = tf.gather(example[name], order)
            widths = [[0, padding], *[[0, 0]] * (values.shape.rank - 1)]
            value = -1 if name == "classes" else tf.zeros([], values.dtype)
            values = tf.pad(values, tf.convert_to_tensor(widths), constant_values=value)
            padded[name] = tf.ensure_shape(values, [count, *values.shape[1:]])
    return padded
