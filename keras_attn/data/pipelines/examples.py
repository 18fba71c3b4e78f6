"""A pipeline of examples that are read and augmented one by one."""

from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, cast

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive
from keras_attn.data.images.geometry import Augmentation, Example, augment
from keras_attn.data.images.image_files import ZippedFile, read_image
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.data.pipelines.epochs import Epoch, epoch_seeds, fold_in, row_indices


def check_batches(data: Sized, batch_size: int, what: str = "images") -> None:
    """Checks that there are examples, and that batches have a size.

    Args:
        data: The data set.
        batch_size: Number of examples in a batch.
        what: What the data set must have.

    Raises:
        ValueError: If the data set is empty or the number is not positive.
    """
    check_positive("batch_size", batch_size)
    if not len(data):
        raise ValueError(f"`data` must have {what}. Received: an empty data set")


def example_dataset(
    load: Callable[[tf.Tensor], tuple[Example, tf.Tensor]],
    finish: Callable[[Example], Any],
    count: int,
    skipped: Skipped,
    *,
    folder: str = "",
    augmentations: Sequence[Augmentation] = (),
    batch_size: int,
    padding_values: Mapping[str, Any] | None = None,
    seed: int,
    shuffle: bool,
    epoch: Epoch,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Batches of examples in order, or in a random order per epoch.

    If some are left out, the epoch is filled up with examples from its beginning, in
    its own order.

    Args:
        load: Makes the example of a row, and says whether it could be read.
        finish: Gives the augmented example its final form.
        count: Number of rows.
        skipped: Decides whether unreadable examples are left out.
        folder: Where the files are, for the message if all are bad.
        augmentations: See `geometry`. The seed of a row depends only on `seed`, the
            epoch and the number of the row.
        batch_size: Number of examples in a batch.
        padding_values: Padding values for examples that differ in length: the entries
            of a dictionary that are not padded with zeros. None means that all have the
            same length.
        seed: Seed of the order and the augmentations.
        shuffle: Whether the order is random.
        epoch: See `epochs.epoch_seeds`.
        drop_remainder: Whether the last batch is left out if it is smaller.
    """

    def make_example(row, epoch_seed):
        example, is_valid = load(row)
        return example, fold_in(epoch_seed, row), is_valid

    def augmented(example, seed, _):
        return finish(augment(example, augmentations, seed))

    # The order of the epoch is repeated, not the pipeline: repeating that would begin a
    # new epoch where epochs are counted.
    fills_up = skipped.on_error == "skip"
    rows = row_indices(count, seed if shuffle else None, epoch, repeats=fills_up)
    dataset = tf.data.Dataset.zip(rows, epoch_seeds(seed, epoch))
    dataset = dataset.map(make_example, num_parallel_calls=tf.data.AUTOTUNE)
    if fills_up:
        dataset = without_bad(dataset, count, folder).take(count)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    dataset = dataset.map(augmented, num_parallel_calls=tf.data.AUTOTUNE)
    if padding_values is None:
        dataset = dataset.batch(batch_size, drop_remainder=drop_remainder)
    else:
        values: Any = dict.fromkeys(cast(dict, dataset.element_spec))
        dataset = dataset.padded_batch(
            batch_size,
            padding_values=values | padding_values,
            drop_remainder=drop_remainder,
        )
    return dataset.prefetch(tf.data.AUTOTUNE)


def read_or_skip(
    row: tf.Tensor,
    read: Callable[[int], tuple],
    names: Sequence[str],
    skipped: Skipped,
    blank: Sequence[np.ndarray],
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The content of a row, and whether it could be read.

    Args:
        row: Number of the row, a scalar.
        read: Returns the arrays of a row; raises `ValueError` or `OSError` for a bad
            file.
        names: The name of each row in messages, and in `skipped`.
        skipped: Raises or collects the errors.
        blank: Arrays of the same dtypes, used in place of a skipped row.

    Returns:
        The arrays as tensors of unknown shapes, and a scalar bool.
    """

    def read_row(row: int):
        try:
            return (*read(row), True)
        except (ValueError, OSError) as error:
            skipped.add_while_reading(names[row], error, len(names))
        return (*blank, False)

    types = [*(tf.as_dtype(array.dtype) for array in blank), tf.bool]
    *tensors, is_valid = tf.numpy_function(read_row, [row], types)
    return tensors, tf.ensure_shape(is_valid, [])


def image_loader(
    paths: Sequence[Path | ZippedFile],
    names: Sequence[str],
    skipped: Skipped,
    channels: int = 3,
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Reads the image of a row, float32 (h, w, channels), and says whether it could.

    Args:
        paths: The file of each row.
        names: Its name in messages, and in `skipped`.
        skipped: Raises or collects the errors.
        channels: 3, or 1 for gray images.
    """

    def read(row):
        return (read_image(paths[row], channels),)

    def load(row):
        blank = (np.zeros((1, 1, channels), np.uint8),)
        (image,), is_valid = read_or_skip(row, read, names, skipped, blank)
        image = tf.ensure_shape(image, [None, None, channels])
        return tf.cast(image, tf.float32), is_valid

    return load


def without_bad(dataset, count, folder):
    """The examples that could be read; an error if none of `count` in a row could."""

    def counted(bad, element):
        bad = tf.where(element[-1], 0, bad + 1)
        message = (
            f"At least one image in {folder} must be readable. Received: {count} bad "
            "ones, which `skipped` lists"
        )
        with tf.control_dependencies([tf.debugging.assert_less(bad, count, message)]):
            return tf.identity(bad), element

    return dataset.scan(0, counted).filter(lambda *element: element[-1])
