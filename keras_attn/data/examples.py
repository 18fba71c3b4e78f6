"""A pipeline of examples that are read and augmented one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_attn.data.bad_files import Skipped
from keras_attn.data.epochs import Epoch, epoch_seeds, fold_in, row_indices
from keras_attn.data.geometry import Augmentation, Example, augment


def example_dataset(
    load: Callable[[tf.Tensor], tuple[Example, tf.Tensor]],
    finish: Callable[[Example], Any],
    count: int,
    skipped: Skipped,
    *,
    folder: str = "",
    augmentations: Sequence[Augmentation],
    seed: int,
    shuffle: bool,
    epoch: Epoch,
) -> tf.data.Dataset:
    """Examples in order, or in a random order per epoch.

    If some are left out, the epoch is filled up with examples from its beginning, in
    its own order.

    Args:
        load: Makes the example of a row, and says whether it could be read.
        finish: Gives the augmented example its final form.
        count: Number of rows.
        skipped: Decides whether examples that could not be read are left out.
        folder: Where the files are, for the message if all are bad.
        augmentations: See `geometry`. The seed of a row depends on `seed`, the epoch
            and the number of the row alone.
        seed: Seed of order and augmentations.
        shuffle: Whether the order is random.
        epoch: See `epochs.epoch_seeds`.
    """

    def example_of(row, epoch_seed):
        example, is_valid = load(row)
        return example, fold_in(epoch_seed, row), is_valid

    def augmented(example, seed, _):
        return finish(augment(example, augmentations, seed))

    # The order of the epoch is repeated, not the pipeline, which would begin another
    # epoch where they are counted.
    fills_up = skipped.on_error == "skip"
    rows = row_indices(count, seed if shuffle else None, epoch, repeats=fills_up)
    dataset = tf.data.Dataset.zip(rows, epoch_seeds(seed, epoch))
    dataset = dataset.map(example_of, num_parallel_calls=tf.data.AUTOTUNE)
    if fills_up:
        dataset = without_bad(dataset, count, folder).take(count)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return dataset.map(augmented, num_parallel_calls=tf.data.AUTOTUNE)


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
