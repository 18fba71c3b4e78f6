"""Batches that are looked up by row number, in an order given by seed and epoch."""

from collections.abc import Callable

import tensorflow as tf

from keras_attn.data.pipelines.epochs import Epoch, row_indices


def batches_of_rows(
    num_rows: int,
    make_batch: Callable[[tf.Tensor], object],
    *,
    batch_size: int,
    shuffle_seed: int | None,
    epoch: Epoch,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Batches made from the row numbers 0 … num_rows - 1, prefetched.

    Args:
        num_rows: Number of rows.
        make_batch: Makes a batch from row numbers, int64 (B,).
        batch_size: Rows per batch.
        shuffle_seed: Shuffles the rows in each epoch. None keeps their order.
        epoch: Epoch whose order is read; see `data.epochs`.
        drop_remainder: Drops a last batch of fewer than `batch_size` rows.
    """
    rows = row_indices(num_rows, shuffle_seed, epoch)
    rows = rows.batch(batch_size, drop_remainder=drop_remainder)
    dataset = rows.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)
