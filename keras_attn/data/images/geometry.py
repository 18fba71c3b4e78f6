"""Transforms images together with their boxes and masks.

An *example* is a dictionary of one image and what belongs to it:

- `image`: float32 (h, w, C);
- `boxes`: float32 (N, 4), left, top, right, bottom in pixels, with `classes` int32 (N,)
  and, where asked for, `masks` bool (N, h, w), `is_crowd` and `is_named` bool (N,);
- `labels`: int32 (h, w), the class of each pixel.

An *augmentation* is a function `(example, seed) -> example` that draws its random
numbers only from the seed, int64 (2,). The functions here transform all entries alike,
and drop boxes that have left the image.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import (
    check_choice,
    check_fraction,
    check_pair,
    check_share,
)
from keras_attn.data.pipelines.epochs import fold_in

Example = dict[str, Any]
Augmentation = Callable[[Example, tf.Tensor], Example]

IGNORED_LABEL = 255
_IMAGENET_MEAN = (123.675, 116.28, 103.53)
_IMAGENET_DEVIATION = (58.395, 57.12, 57.375)
# Entries that belong to boxes; their first axis is N.
OF_BOXES = ("boxes", "classes", "masks", "is_crowd", "is_named")


class RandomMirror:
    """Mirrors examples at random, left to right or top to bottom.

    Args:
        horizontal: Probability of exchanging left and right, in [0, 1].
        vertical: Probability of exchanging top and bottom, in [0, 1].
    """

    def __init__(self, horizontal: float = 0.5, vertical: float = 0.0):
        self.horizontal = check_share("horizontal", horizontal)
        self.vertical = check_share("vertical", vertical)

    def __call__(self, example: Example, seed: tf.Tensor) -> Example:
        """Returns the example, mirrored or not."""
        numbers = tf.random.stateless_uniform([2], seed)
        flip_rows = numbers[0] < self.vertical
        flip_columns = numbers[1] < self.horizontal
        height, width = image_size(example)
        mirrored = dict(example)
        for name, first in (("image", 0), ("labels", 0), ("masks", 1)):
            if name in example:
                values = _reversed_if(flip_rows, example[name], first)
                mirrored[name] = _reversed_if(flip_columns, values, first + 1)
        if "boxes" in example:
            left, top, right, bottom = tf.unstack(example["boxes"], axis=-1)
            width, height = tf.cast(width, tf.float32), tf.cast(height, tf.float32)
            left, right = (
                tf.where(flip_columns, width - right, left),
                tf.where(flip_columns, width - left, right),
            )
            top, bottom = (
                tf.where(flip_rows, height - bottom, top),
                tf.where(flip_rows, height - top, bottom),
            )
            mirrored["boxes"] = tf.stack([left, top, right, bottom], axis=-1)
        return mirrored


class RandomScaleAndCrop:
    """Scales examples at random, and crops or pads them to one size.

    At scale 1 the image just fits. A larger image is cropped and a smaller one is
    padded, both at a random position.

    Args:
        image_size: Height and width of the result in pixels, one number or two.
        scale: Minimum and maximum scale; the logarithm of the scale is drawn uniformly.
        min_visible: Boxes are dropped if a smaller share of their area remains.
        fill: Color of the padding in the units of the image, a number or one per
            channel. If it is the `mean` that a reader subtracts, it becomes zero, like
            the padding of images that keep their aspect ratio.

    Raises:
        ValueError: If `scale` is not positive, an argument is out of range, or `fill`
            is not finite; or, when called, if `fill` does not have one number per
            channel.

    Reference:
        Ghiasi et al. 2021, "large scale jittering" with (0.1, 2.0)
        (arXiv:2012.07177).
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        scale: tuple[float, float] = (0.5, 2.0),
        min_visible: float = 0.1,
        fill: float | Sequence[float] = 0.0,
    ):
        self.image_size = check_pair("image_size", image_size)
        self.fill = _check_color("fill", fill)
        self.scale = check_range("scale", scale)
        self.min_visible = check_fraction("min_visible", min_visible)

    def __call__(self, example: Example, seed: tf.Tensor) -> Example:
        """Returns the example at the new size."""
        channels = example["image"].shape[-1]
        if np.ndim(self.fill) and channels not in (None, len(self.fill)):
            raise ValueError(
                f"`fill` must be a number, or one for each of {channels} channels. "
                f"Received: fill={self.fill}"
            )
        numbers = tf.random.stateless_uniform([3], seed)
        low, high = (tf.math.log(float(each)) for each in self.scale)
        jitter = tf.exp(low + numbers[0] * (high - low))
        size = tf.cast(tf.stack(image_size(example)), tf.float32)
        target = tf.constant(self.image_size, tf.float32)
        scale = tf.reduce_min(target / size) * jitter
        # Negative where the image is larger: that much is cut off before its start.
        offset = tf.round(numbers[1:] * (target - scale * size))
        return place(
            example,
            self.image_size,
            tf.stack([scale, scale]),
            offset,
            fill=self.fill,
            min_visible=self.min_visible,
        )


class RandomColors:
    """Changes brightness, contrast, saturation and hue of images at random.

    Args:
        brightness: Maximum change, as a share of 255.
        contrast: Maximum change of the factor 1.
        saturation: Maximum change of the factor 1.
        hue: Maximum change, as a share of the color wheel, at most 0.5.

    Raises:
        ValueError: If a change is outside [0, 1).
    """

    def __init__(
        self,
        brightness: float = 0.1,
        contrast: float = 0.2,
        saturation: float = 0.2,
        hue: float = 0.02,
    ):
        self.brightness = check_fraction("brightness", brightness)
        self.contrast = check_fraction("contrast", contrast)
        self.saturation = check_fraction("saturation", saturation)
        self.hue = check_fraction("hue", hue)

    def __call__(self, example: Example, seed: tf.Tensor) -> Example:
        """Returns the example with a changed image, values in [0, 255]."""
        numbers = tf.random.stateless_uniform([4], seed, -1.0, 1.0)
        image = example["image"] / 255.0
        image = tf.image.adjust_brightness(image, numbers[0] * self.brightness)
        image = tf.image.adjust_contrast(image, 1 + numbers[1] * self.contrast)
        if example["image"].shape[-1] == 3:
            image = tf.clip_by_value(image, 0.0, 1.0)
            saturation = 1 + numbers[2] * self.saturation
            image = tf.image.adjust_saturation(image, saturation)
            image = tf.image.adjust_hue(image, numbers[3] * self.hue / 2)
        return {**example, "image": 255.0 * tf.clip_by_value(image, 0.0, 1.0)}


def augment(
    example: Example, augmentations: Sequence[Augmentation], seed: tf.Tensor
) -> Example:
    """Applies augmentations in turn, each with a seed of its own."""
    for number, augmentation in enumerate(augmentations):
        example = augmentation(example, fold_in(seed, number))
    return example


def fit_into(
    example: Example, size: tuple[int, int], keep_aspect_ratio: bool, fill: Any = 0.0
) -> Example:
    """Resizes an example to a fixed size.

    Args:
        example: See the module.
        size: Height and width of the result.
        keep_aspect_ratio: Whether to pad at the right or at the bottom instead of
            stretching.
        fill: Value of the padding, a number or one per channel.
    """
    if tuple(example["image"].shape[:2]) == tuple(size):  # Known, and the same.
        return example
    scale = fitting_scale(image_size(example), size, keep_aspect_ratio)
    return place(example, size, scale, tf.zeros(2), fill=fill)


def fitting_scale(source: Any, size: tuple[int, int], keep_aspect_ratio: bool) -> Any:
    """The vertical and the horizontal scale of `fit_into`, float32 (2,).

    Args:
        source: Height and width of the image.
        size: Height and width of the result.
        keep_aspect_ratio: See `fit_into`.
    """
    source = tf.cast(tf.stack(source), tf.float32)
    scale = tf.constant(size, tf.float32) / source
    if keep_aspect_ratio:
        # Sides are whole pixels; the exact scale differs a little between them.
        fitted = tf.round(source * tf.reduce_min(scale))
        scale = tf.maximum(fitted, 1.0) / source
    return scale


def place(
    example: Example,
    size: tuple[int, int],
    scale: tf.Tensor,
    offset: tf.Tensor,
    *,
    fill: Any = 0.0,
    min_visible: float = 0.0,
) -> Example:
    """Scales an example and places it on a canvas.

    Images are interpolated linearly, with antialiasing where they shrink; masks and
    labels take the nearest pixel.

    Args:
        example: See the module.
        size: Height and width of the canvas.
        scale: Vertical and horizontal scale, float32 (2,).
        offset: Row and column of the image's upper left corner on the canvas, float32
            (2,).
        fill: Value of the canvas, a number or one per channel; masks get False,
            labels 255.
        min_visible: Boxes are dropped if a smaller share of their area is on the
            canvas, and always if they have no area there.
    """
    rows, in_rows = _sources(size[0], image_size(example)[0], scale[0], offset[0])
    columns, in_columns = _sources(size[1], image_size(example)[1], scale[1], offset[1])
    is_inside = in_rows[:, None] & in_columns

    def nearest(values, axis, outside):
        taken = tf.gather(tf.gather(values, rows, axis=axis), columns, axis=axis + 1)
        return tf.where(is_inside, taken, outside)

    image = tf.raw_ops.ScaleAndTranslate(
        images=example["image"][None],
        size=size,
        scale=scale,
        translation=offset,
        kernel_type="triangle",
        antialias=True,
    )[0]
    channels = example["image"].shape[-1]
    image = tf.where(is_inside[..., None], image, tf.cast(fill, tf.float32))
    placed = {**example, "image": tf.ensure_shape(image, [*size, channels])}
    if "labels" in example:
        labels = nearest(example["labels"], 0, IGNORED_LABEL)
        placed["labels"] = tf.ensure_shape(labels, size)
    if "masks" in example:
        masks = nearest(example["masks"], 1, False)
        placed["masks"] = tf.ensure_shape(masks, [None, *size])
    if "boxes" not in example:
        return placed
    # (y, x) to (x, y, x, y).
    scales, offsets = (tf.tile(each[::-1], [2]) for each in (scale, offset))
    boxes = example["boxes"] * scales + offsets
    limits = tf.constant([size[1], size[0]] * 2, tf.float32)
    clipped = tf.clip_by_value(boxes, 0.0, limits)
    left = areas(clipped)
    is_kept = (left > 0) & (left >= min_visible * areas(boxes))
    if "masks" in example:
        is_kept &= tf.reduce_any(placed["masks"], axis=[1, 2])
    placed["boxes"] = clipped
    for name in OF_BOXES:
        if name in placed:
            placed[name] = tf.boolean_mask(placed[name], is_kept)
    return placed


def areas(boxes: tf.Tensor) -> tf.Tensor:
    """Areas (N,) of boxes (N, 4); 0 for one of negative size."""
    return tf.reduce_prod(tf.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=-1)


def image_size(example: Example) -> tuple:
    """Height and width: numbers where they are known, else tensors."""
    image = example["image"]
    dynamic = tf.shape(image)
    return tuple(
        dynamic[axis] if image.shape[axis] is None else image.shape[axis]
        for axis in (0, 1)
    )


def normalization(normalize: str | None, channels: int = 3):
    """Mean and standard deviation of each channel, float32 (channels,).

    Args:
        normalize: "imagenet", "unit" for values in [0, 1], or None for no change.
        channels: Number of channels.

    Raises:
        ValueError: If `normalize` is unknown, or is "imagenet" for gray images.
    """
    check_choice("normalize", normalize, (None, "unit", "imagenet"))
    if normalize == "imagenet":
        if channels != 3:
            raise ValueError(
                'For gray images `normalize` must be "unit" or None. '
                f"Received: normalize={normalize!r}, channels={channels}"
            )
        return tf.constant(_IMAGENET_MEAN), tf.constant(_IMAGENET_DEVIATION)
    scale = 255.0 if normalize == "unit" else 1.0
    return tf.zeros(channels), tf.fill([channels], scale)


def check_range(name: str, value) -> tuple[float, float]:
    """Returns a pair of numbers, the smaller one first; raises unless above 0."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or not 0 < value[0] <= value[1]:
        raise ValueError(
            f"`{name}` must be two numbers above 0, the smaller one first. "
            f"Received: {name}={value!r}"
        )
    return float(value[0]), float(value[1])


def _check_color(name: str, value):
    """Returns a finite number, or a list of one for each channel."""
    try:
        color = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        color = np.full(1, np.nan)
    if color.ndim > 1 or not color.size or not np.isfinite(color).all():
        raise ValueError(
            f"`{name}` must be a finite number, or one for each channel. "
            f"Received: {name}={value!r}"
        )
    return color.tolist()


def _reversed_if(is_reversed: tf.Tensor, values: tf.Tensor, axis: int) -> tf.Tensor:
    # With a condition, nothing is computed where it is False.
    return tf.cond(is_reversed, lambda: tf.reverse(values, [axis]), lambda: values)


def _sources(size: int, source_size, scale, offset):
    """The nearest source of each pixel along one axis, and whether there is one."""
    # In the order of `ScaleAndTranslate`, so that both round alike.
    position = (tf.range(size, dtype=tf.float32) + 0.5) / scale - offset / scale
    source_size = tf.cast(source_size, tf.float32)
    is_inside = (position >= 0) & (position <= source_size)
    index = tf.clip_by_value(tf.floor(position), 0.0, source_size - 1)
    return tf.cast(index, tf.int32), is_inside
