"""Images in a folder per class.

Legend: B batch, h and w pixels of a file, H and W pixels of an input, C channels.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_attn.data.images.geometry import Augmentation
from keras_attn.data.images.image_files import (
    check_folder,
    find_pictures,
    is_hidden,
    is_picture,
    read_image,
)
from keras_attn.data.images.unused_files import unused_files
from keras_attn.data.pipelines.bad_files import FileData, Skipped
from keras_attn.data.pipelines.class_names import check_class_names
from keras_attn.data.pipelines.epochs import Epoch
from keras_attn.data.pipelines.examples import (
    check_batches,
    example_dataset,
    image_loader,
)
from keras_attn.files.reading import shown


@dataclass(frozen=True)
class ImageClassData(FileData):
    """N images with a class each.

    Attributes:
        paths: The files.
        classes: The class of each, int32 (N,).
        class_names: Name of each class.
        skipped: What was left out, with reasons: files that are not images, and images
            outside the folders of the classes. Corrupt files are added when they are
            first read.
        notes: What is in the folder and not in the data set, counted.
    """

    paths: list[Path]
    classes: np.ndarray
    class_names: list[str]
    skipped: Skipped = field(default_factory=partial(Skipped, "raise"))
    notes: Sequence[str] = ()
    _lists = ("paths", "classes")

    @property
    def _names(self) -> list[str]:
        return list(map(str, self.paths))

    def read(self, number: int) -> np.ndarray:
        """An image, uint8 (h, w, 3).

        Args:
            number: Its index.
        """
        return read_image(self.paths[number])


def read_image_classes(
    folder: str | os.PathLike,
    class_names: Sequence[str] | None = None,
    *,
    on_error: str = "raise",
) -> ImageClassData:
    """Finds the images in a folder that has a subfolder per class.

    Files are read later, by `image_class_dataset`. Folders inside the folders of the
    classes are searched, too, except hidden ones: names that begin with a dot,
    `__MACOSX`, `@eaDir`. Files that are not images, and images beside the folders,
    which have no class, are listed as `skipped`. `data.notes` counts the files that are
    not used.

    Args:
        folder: The folder, such as one with `cat/1.jpg` and `dog/a.png`.
        class_names: The classes, in the order of their numbers. None takes the names of
            the subfolders, sorted: pass the names of the training images to read other
            images.
        on_error: "raise" refuses a bad file. "skip" leaves it out; a warning counts
            them, `data.skipped` lists them.

    Returns:
        The data set, sorted by class and path.

    Raises:
        ValueError: If the folder does not exist or has no subfolders, a class has no
            image, a subfolder is not a class, or two differ only in upper case or
            blanks. The message names the folder.

    Example:
        Needs a folder of photos, with a folder for each class:

        ```python
        from keras_attn import data

        train = data.read_image_classes("flowers/train")
        validation = data.read_image_classes("flowers/val", train.class_names)
        ```
    """
    root = check_folder("folder", folder)
    folders = sorted(
        path for path in root.iterdir() if path.is_dir() and not is_hidden(path.name)
    )
    if not folders:
        raise ValueError(
            "`folder` must have a subfolder per class, with its images. "
            f"Received: folder={str(root)!r}, without subfolders"
        )
    names = [path.name for path in folders]
    names = names if class_names is None else [str(name) for name in class_names]
    paths: list[Path] = []
    classes: list[int] = []
    skipped = Skipped(on_error)
    for path in sorted(root.iterdir()):
        if path.is_file() and is_picture(path.name):
            reason = f"{path.name} must be in the folder of its class"
            skipped.note(str(path), f"{reason}. Received: {str(path)!r}")
    for each in folders:
        if each.name not in names:
            raise ValueError(
                f"Each subfolder must be one of the classes {shown(names)}. "
                f"Received: {str(each)!r}"
            )
        pictures, others = find_pictures("folder", each)
        found = [path for path in pictures if isinstance(path, Path)]
        paths += found
        classes += [names.index(each.name)] * len(found)
        for path, reason in others.items():
            skipped.note(path, reason)
    check_class_names(names, f"The subfolders of {str(root)!r}")
    notes = unused_files(root, paths)
    deeper = sum(len(path.relative_to(root).parts) > 2 for path in paths)
    if deeper:
        notes.append(f"in subfolders of their class: {deeper:,} images")
    numbers = np.array(classes, np.int32)
    return ImageClassData(paths, numbers, names, skipped, notes)


def image_class_dataset(
    data: ImageClassData,
    preprocessing: Callable[[Any], Any],
    *,
    batch_size: int,
    channels: int = 3,
    augmentations: Sequence[Augmentation] = (),
    seed: int = 0,
    shuffle: bool = False,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of images and classes, for `model.fit`.

    The order, and the random numbers of each image, are functions of the seed, the
    epoch and the number of the image, for any number of threads.

    Args:
        data: From `read_image_classes`.
        preprocessing: From images (1, h, w, C), float32 from 0 to 255, to inputs (1, H,
            W, C), such as `models.image_preprocessing(model)`. Images are upright
            before.
        batch_size: B.
        channels: C, 3, or 1 for gray images.
        augmentations: Functions of an example and a seed, such as `RandomMirror()`,
            applied in this order before the preprocessing.
        seed: Seed of the order and the augmentations.
        shuffle: Whether each epoch has a new random order.
        epoch: Number of the epoch, or a `tf.Variable` that holds it, such as
            `training.BackupAndResume.epoch`. None counts the iterations.
        drop_remainder: Whether the last batch is left out if it is smaller.

    Returns:
        A dataset of float32 images (B, H, W, C) and int32 classes (B,). Its cardinality
        is known. An image that is left out while it is read is replaced by one from the
        beginning of the epoch.

    Raises:
        ValueError: If `data` has no images, or an argument is out of range.
        tf.errors.InvalidArgumentError: If a file is bad, unless bad files are skipped.
            It is raised while the dataset is read, and names the file.
    """
    check_batches(data, batch_size)
    if channels not in (1, 3):
        raise ValueError(f"`channels` must be 1 or 3. Received: channels={channels!r}")
    classes = tf.constant(data.classes, tf.int32)
    load_image = image_loader(data.paths, data._names, data.skipped, channels)

    def load(row):
        image, is_valid = load_image(row)
        return {"image": image, "class": tf.gather(classes, row)}, is_valid

    def finish(example):
        return preprocessing(example["image"][None])[0], example["class"]

    return example_dataset(
        load,
        finish,
        len(data),
        data.skipped,
        folder=str(data.paths[0].parent),
        augmentations=augmentations,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )
