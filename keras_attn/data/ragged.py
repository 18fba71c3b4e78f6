"""Rows of token ids of many lengths, kept as one array."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_attn.data.epochs import Epoch, shuffled_indices


def ragged(rows: Sequence[Sequence[int]]) -> tf.RaggedTensor:
    """One int32 tensor of rows of many lengths.

    Not `tf.ragged.constant`, which takes seconds for what takes milliseconds here.
    """
    lengths = np.array([len(row) for row in rows], np.int64)
    flat = [np.asarray(row, np.int32) for row in rows]
    flat = np.concatenate(flat) if flat else np.zeros(0, np.int32)
    return tf.RaggedTensor.from_row_lengths(flat, lengths)


def repeated(value: int, like: tf.RaggedTensor) -> tf.RaggedTensor:
    """The same value in rows of the same lengths."""
    return like.with_flat_values(tf.fill(tf.shape(like.flat_values), value))


def single(value: int, like: tf.RaggedTensor) -> tf.RaggedTensor:
    """The same value once a row."""
    return tf.RaggedTensor.from_tensor(tf.fill([like.nrows(tf.int32), 1], value))


def indices(
    count: int,
    *,
    batch_size: int,
    shuffle_seed: int | None,
    epoch: Epoch,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Batches of the numbers 0 … count-1, to look rows up by.

    A shuffle over the whole set costs eight bytes a row.
    """
    dataset = tf.data.Dataset.range(count)
    if shuffle_seed is not None:
        dataset = shuffled_indices(count, shuffle_seed, epoch)
    return dataset.batch(batch_size, drop_remainder=drop_remainder)
