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
    augmentations: Sequence[Augmentation],
    seed: int,
    shuffle: bool,
    epoch: Epoch,
) -> tf.data.Dataset:
    """Examples in order, or in a random order per epoch.

    If some are left out, the epoch is filled up with examples from its beginning.

    Args:
        load: Makes the example of a row, and says whether it could be read.
        finish: Gives the augmented example its final form.
        count: Number of rows.
        skipped: Decides whether examples that could not be read are left out.
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

    rows = row_indices(count, seed if shuffle else None, epoch)
    dataset = tf.data.Dataset.zip(rows, epoch_seeds(seed, epoch))
    dataset = dataset.map(example_of, num_parallel_calls=tf.data.AUTOTUNE)
    if skipped.on_error == "skip":
        dataset = dataset.filter(_is_valid).repeat().take(count)
    return dataset.map(augmented, num_parallel_calls=tf.data.AUTOTUNE)


def _is_valid(*element):
    return element[-1]
