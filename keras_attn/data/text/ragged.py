"""Rows of token ids of different lengths as one ragged tensor.

Legend: B batch, T length of a row, in tokens.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def to_ragged(rows: Sequence[Sequence[int]]) -> tf.RaggedTensor:
    """Rows of different lengths as one int32 tensor (B, ragged).

    `tf.ragged.constant` takes seconds where this takes milliseconds.
    """
    lengths = np.array([len(row) for row in rows], np.int64)
    flat = [np.asarray(row, np.int32) for row in rows]
    flat = np.concatenate(flat) if flat else np.zeros(0, np.int32)
    return tf.RaggedTensor.from_row_lengths(flat, lengths)


def constant_like(value: int, like: tf.RaggedTensor) -> tf.RaggedTensor:
    """A constant in rows of the same lengths, (B, ragged)."""
    return like.with_flat_values(tf.fill(tf.shape(like.flat_values), value))


def constant_column(value: int, like: tf.RaggedTensor) -> tf.RaggedTensor:
    """A constant once per row, (B, 1)."""
    return tf.RaggedTensor.from_tensor(tf.fill([like.nrows(tf.int32), 1], value))
