"""Batches of encoded texts, padded to the longest of each batch.

Legend: N rows, B rows of a batch, T tokens of a row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_attn.data.pipelines.epochs import Epoch, batches_of_rows


def token_batches(
    inputs: Mapping[str, np.ndarray],
    labels: np.ndarray,
    *,
    batch_size: int,
    multiple: int,
    pad_left: bool,
    together: int = 1,
    shuffle_seed: int | None = None,
    epoch: Epoch = None,
) -> tf.data.Dataset:
    """Batches of inputs and labels.

    Args:
        inputs: Arrays (N, T) with a `padding_mask`, 1 = a real token.
        labels: (N,).
        batch_size: Examples per batch.
        multiple: The number of tokens is rounded up to a multiple of this.
        pad_left: Whether the padding is at the left.
        together: Consecutive rows that are one example.
        shuffle_seed: Shuffles the examples. None keeps their order.
        epoch: Epoch whose order is read.

    Returns:
        A dataset of known cardinality of inputs (B, T) and labels (B,).
    """
    tensors = {name: tf.constant(array) for name, array in inputs.items()}
    lengths = tf.constant(np.sum(inputs["padding_mask"], axis=1), tf.int32)
    all_labels = tf.constant(labels)
    longest = inputs["padding_mask"].shape[1]

    def make_batch(examples: Any):
        rows = examples[:, None] * together + tf.range(together, dtype=tf.int64)
        rows = tf.reshape(rows, [-1])
        width = tf.reduce_max(tf.gather(lengths, rows))
        width = tf.minimum(-(-width // multiple) * multiple, longest)
        start = longest - width if pad_left else 0
        found = {
            name: tf.gather(tensor, rows)[:, start : start + width]
            for name, tensor in tensors.items()
        }
        return found, tf.gather(all_labels, rows)

    return batches_of_rows(
        len(labels) // together,
        make_batch,
        batch_size=batch_size,
        shuffle_seed=shuffle_seed,
        epoch=epoch,
        drop_remainder=False,
    )


def get_max_length(source: Any, head: str, options: dict[str, Any]) -> int | None:
    """The most tokens per row that a model takes; None for no limit.

    Args:
        source: The model.
        head: As of `Source.load`.
        options: As of `Source.load`.
    """
    from keras_attn.checks.indices import length_ranges
    from keras_attn.models.parts.keras_state import undone, without_allocating

    with undone(), without_allocating():
        ranges = length_ranges(source.sketch(head, options))
    ends = [end for name, (_, end) in ranges.items() if name != "images" and end]
    return min(ends) - 1 if ends else None
