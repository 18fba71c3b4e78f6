"""Images with a class for each pixel: folders of images and of masks.

Legend: B batch, H and W pixels, C classes.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_pair, check_positive
from keras_attn.data.images.geometry import (
    IGNORED_LABEL,
    Augmentation,
    fit_into,
    normalization,
)
from keras_attn.data.images.image_files import (
    check_names,
    list_images,
    read_image,
    read_label_image,
)
from keras_attn.data.images.unused_files import unused_files
from keras_attn.data.pipelines.bad_files import FileData, Skipped
from keras_attn.data.pipelines.epochs import Epoch
from keras_attn.data.pipelines.examples import (
    check_batches,
    example_dataset,
    read_or_skip,
)

Color = tuple[int, int, int]


@dataclass(frozen=True)
class SegmentationData(FileData):
    """A set of images with masks.

    Attributes:
        pairs: Paths of each image and its mask.
        class_names: Name of each class.
        values: Mapping from what represents a class in the mask, a number or a color,
            to the class; None if the numbers are the classes.
        void: Values of the mask that become 255, the ignored label.
        channels: 3, or 1 for gray images.
        skipped: What was left out, with reasons. Corrupt files are added when they are
            first read.
        notes: What is in the folders and not in the data set, counted.
    """

    pairs: list[tuple[Path, Path]]
    class_names: list[str]
    values: Mapping[Any, int] | None = None
    void: tuple[int | Color, ...] = ()
    channels: int = 3
    skipped: Skipped = field(default_factory=partial(Skipped, "raise"))
    notes: Sequence[str] = ()
    _lists = ("pairs",)
    _what = "Images and masks"

    @property
    def _names(self) -> list[str]:
        return [image.name for image, _ in self.pairs]

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """An image, uint8 (H, W, channels), and its labels, int32 (H, W).

        Args:
            number: Index of the image in `pairs`.

        Raises:
            ValueError: If a file is corrupt, the sizes differ, or a label is not a
                class; the message names the file.
            FileNotFoundError: If a file is missing.
        """
        image_path, mask_path = self.pairs[number]
        labels = self._read_labels(mask_path)
        image = read_image(image_path, self.channels, size=labels.shape)
        if image.shape[:2] != labels.shape:
            raise ValueError(
                f"The mask of {image_path.name} must have its size, (height, width) = "
                f"{image.shape[:2]}. Received: {str(mask_path)!r} of {labels.shape}"
            )
        return image, labels

    def count_pixels(self) -> np.ndarray:
        """The number of pixels of each class in the masks, int64 (C,).

        Ignored pixels are not counted.

        Raises:
            ValueError: If `read` refuses a mask.
            FileNotFoundError: If a mask is missing.
        """
        counts = np.zeros(IGNORED_LABEL + 1, np.int64)
        for _, path in self.pairs:
            labels = self._read_labels(path).ravel()
            counts += np.bincount(labels, minlength=len(counts))
        return counts[: len(self.class_names)]

    def _read_labels(self, path: Path) -> np.ndarray:
        if self.values is not None:
            return self._look_up(path)
        labels = read_label_image(path, as_colors=False)
        labels[np.isin(labels, self.void)] = IGNORED_LABEL
        count = len(self.class_names)
        is_wrong = ((labels < 0) | (labels >= count)) & (labels != IGNORED_LABEL)
        if is_wrong.any():
            raise ValueError(
                f"{path.name} must have labels from 0 to {count - 1}, or "
                f"{IGNORED_LABEL} to be ignored; name more classes, or pass `void`. "
                f"Received: {str(path)!r} with {np.unique(labels[is_wrong])[:5]}"
            )
        return labels

    def _look_up(self, path: Path) -> np.ndarray:
        """Labels of a mask by its numbers or colors."""
        values: dict[Any, int] = dict.fromkeys(self.void, IGNORED_LABEL)
        values.update(self.values or {})
        is_color = not all(isinstance(value, int) for value in values)
        found = read_label_image(path, as_colors=is_color).astype(np.int64)
        keys = np.array(list(values), np.int64)
        if is_color:
            found, keys = (each @ [65536, 256, 1] for each in (found, keys))
        order = np.argsort(keys)
        keys, labels = keys[order], np.array(list(values.values()), np.int32)[order]
        place = np.searchsorted(keys, found).clip(max=len(keys) - 1)
        is_wrong = keys[place] != found
        if is_wrong.any():
            unknown = [int(value) for value in np.unique(found[is_wrong])[:3]]
            if is_color:
                unknown = [(x >> 16, (x >> 8) & 255, x & 255) for x in unknown]
            raise ValueError(
                f"{path.name} must consist of the {'colors' if is_color else 'values'} "
                "in `palette` and `void`, or on the command line in --classes, where "
                "`ignored 255` is what does not count. "
                f"Received: {str(path)!r} with {unknown}"
            )
        return labels[place]


def read_segmentation(
    image_folder: str | os.PathLike,
    mask_folder: str | os.PathLike,
    class_names: Sequence[str],
    *,
    palette: Sequence[Color] | Mapping[Color, int] | Mapping[int, int] | None = None,
    void: Sequence[int] | Sequence[Color] = (),
    names: Sequence[str] | None = None,
    channels: int = 3,
    on_error: str = "raise",
) -> SegmentationData:
    """Finds the images in one folder and their masks in another, by their names.

    Files are read later, by `segmentation_dataset`.

    Args:
        image_folder: Images `<name>.jpg`, or another format.
        mask_folder: Masks `<name>.png`: gray or palette images whose numbers are the
            classes, or images of colors.
        class_names: The C classes, in the order of their numbers.
        palette: What represents each class, if not its number: a list or an array of
            colors (red, green, blue) in the order of the classes, or a mapping from
            colors or numbers to classes, such as `{0: 0, 255: 1}`.
        void: Numbers or colors of pixels that are ignored: they get the label 255.
            255 itself is always ignored, unless a palette says otherwise.
        names: The images of a split, without suffix; None = all in `image_folder`.
        channels: 3, or 1 for gray images.
        on_error: "raise" refuses a bad file. "skip" leaves the image out; a warning
            counts them, `data.skipped` lists them.

    Returns:
        The data set.

    Raises:
        ValueError: If a folder is missing or empty, an image has no mask and
            `on_error="raise"`, `palette` does not match the classes, or no image is
            left.

    Example:
        Needs folders of images and of label images:

        ```python
        from keras_attn import data

        classes = ["membrane", "cell"]
        cells = data.read_segmentation(
            "isbi/image", "isbi/label", classes, palette={0: 0, 255: 1}
        )
        ```
    """
    skipped = Skipped(on_error)
    class_names = [str(name) for name in class_names]
    check_positive("class_names", len(class_names))
    if len(class_names) > IGNORED_LABEL:
        raise ValueError(
            f"`class_names` must be at most {IGNORED_LABEL} names, because the label "
            f"{IGNORED_LABEL} stands for pixels that are ignored. "
            f"Received: {len(class_names)} names"
        )
    if channels not in (1, 3):
        raise ValueError(f"`channels` must be 1 or 3. Received: channels={channels!r}")
    values = _check_palette(palette, len(class_names), void)
    images = list_images("image_folder", image_folder)
    masks = list_images("mask_folder", mask_folder)
    if names is not None:
        check_names(names, "`names`")
    pairs = []
    for name in images if names is None else names:
        if name in images and name in masks:
            pairs.append((images[name], masks[name]))
            continue
        argument, folder = "image_folder", image_folder
        if name in images:
            argument, folder = "mask_folder", mask_folder
        error = FileNotFoundError(
            f"`{argument}` has no {name}.png, nor another image of this name. "
            f"Received: {argument}={str(folder)!r}"
        )
        skipped.add(name, error)
    if not pairs:
        raise ValueError(
            "`image_folder` and `mask_folder` must have files of the same names. "
            f"Received: image_folder={str(image_folder)!r}, "
            f"mask_folder={str(mask_folder)!r}"
        )
    skipped.report(f"Masks in {str(mask_folder)!r}")
    notes = []
    if names is None:
        used = [path for pair in pairs for path in pair]
        for folder in dict.fromkeys((Path(image_folder), Path(mask_folder))):
            notes += unused_files(folder, used)
    return SegmentationData(
        pairs, class_names, values, tuple(void), channels, skipped, notes
    )


def segmentation_dataset(
    data: SegmentationData,
    *,
    batch_size: int,
    image_size: int | tuple[int, int] | None = None,
    keep_aspect_ratio: bool = True,
    augmentations: Sequence[Augmentation] = (),
    normalize: str | None = None,
    seed: int = 0,
    shuffle: bool = False,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of images and labels, for `model.fit`.

    The order, and the random numbers of each image, are functions of the seed, the
    epoch and the number of the image, for any number of threads.

    Args:
        data: From `read_segmentation`.
        batch_size: B.
        image_size: H and W of the batches, one number or two: images are resized to
            fit (with antialiasing), and labels with them. None keeps the sizes, which
            must then all be the same.
        keep_aspect_ratio: Whether an image keeps its aspect ratio, and is padded at the
            right or at the bottom, with the label 255; otherwise it is stretched.
        augmentations: Functions of an example and a seed, such as
            `ElasticDeformation()`, applied in this order before resizing.
        normalize: "imagenet" subtracts the mean of ImageNet's colors and divides by
            their standard deviation, as torchvision's models expect; "unit" divides by
            255. None keeps 0 to 255.
        seed: Seed of the order and the augmentations.
        shuffle: Whether each epoch has a new random order.
        epoch: Number of the epoch, or a `tf.Variable` that holds it, such as
            `training.BackupAndResume.epoch`. None counts the iterations.
        drop_remainder: Whether the last batch is left out if it is smaller.

    Returns:
        A dataset of float32 images (B, H, W, channels) and int32 labels (B, H, W),
        255 where they are ignored. Its cardinality is known. An image that is left out
        while it is read is replaced by one from the beginning of the epoch:
        `data.check()` finds such images before, so that none counts twice in a
        validation.

    Raises:
        ValueError: If `data` has no images, or an argument is out of range.
        tf.errors.InvalidArgumentError: If `SegmentationData.read` refuses a file,
            unless bad files are skipped. It is raised while the dataset is read, and
            names the file.
    """
    size = None if image_size is None else check_pair("image_size", image_size)
    check_batches(data, batch_size)
    mean, deviation = normalization(normalize, data.channels)

    def finish(example):
        if size is not None:
            example = fit_into(example, size, keep_aspect_ratio, fill=mean)
        return (example["image"] - mean) / deviation, example["labels"]

    return example_dataset(
        partial(_load, data),
        finish,
        len(data),
        data.skipped,
        folder=str(data.pairs[0][0].parent),
        augmentations=augmentations,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def _load(data: SegmentationData, row: tf.Tensor):
    """The example of a row, and whether it could be read."""
    blank = np.zeros((1, 1, data.channels), np.uint8), np.zeros((1, 1), np.int32)
    values, is_valid = read_or_skip(row, data.read, data._names, data.skipped, blank)
    image, labels = values
    image = tf.ensure_shape(image, [None, None, data.channels])
    example = {
        "image": tf.cast(image, tf.float32),
        "labels": tf.ensure_shape(labels, [None, None]),
    }
    return example, is_valid


def _check_palette(palette, count: int, void):
    """A mapping from values of a mask to classes, or None."""
    if palette is None:
        if not all(isinstance(value, int) for value in void):
            raise ValueError(
                f"`void` must be numbers without a `palette`. Received: void={void!r}"
            )
        return None
    if isinstance(palette, np.ndarray):
        palette = [tuple(color) for color in palette.tolist()]
    if not isinstance(palette, Mapping):
        if not len(palette) == len({tuple(color) for color in palette}) == count:
            raise ValueError(
                f"`palette` must have {count} colors, one for each class. "
                f"Received: palette={palette!r}"
            )
        palette = dict(zip(map(tuple, palette), range(count), strict=True))
    values = [*palette, *void]
    is_color = [
        isinstance(value, tuple)
        and len(value) == 3
        and all(isinstance(part, int) and 0 <= part <= 255 for part in value)
        for value in values
    ]
    are_numbers = all(isinstance(value, int) for value in values)
    if not values or not (all(is_color) or are_numbers):
        raise ValueError(
            "`palette` and `void` must consist of colors, three numbers from 0 to 255 "
            f"each, or of numbers. Received: {values[:5]}"
        )
    if not all(
        label in range(count) or label == IGNORED_LABEL for label in palette.values()
    ):
        raise ValueError(
            f"`palette` must map to classes from 0 to {count - 1}, or {IGNORED_LABEL}. "
            f"Received: palette={palette!r}"
        )
    return dict(palette)
