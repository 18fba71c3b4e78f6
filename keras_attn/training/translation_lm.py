"""Translation language modelling: a sentence and its translation, masked as one text.

To fill in a masked word the model may look at the translation, and so learns to put
both languages into one space. Masking itself is that of `masked_lm`.

Legend: B batch, T length, L languages.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.data.epochs import Epoch, batch_seeds
from keras_attn.data.ragged import constant_column, index_batches, to_ragged

# What is packed with the two sentences: a token on either side of each.
_NUM_SPECIAL = 4


def translation_lm_dataset(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    source_language: int,
    target_language: int,
    end_token_id: int,
    pad_token_id: int = 0,
    max_length: int,
    batch_size: int,
    shuffle_seed: int | None = None,
    epoch: Epoch = None,
    drop_remainder: bool = False,
    pad_to_multiple_of: int = 8,
) -> tf.data.Dataset:
    """Batches of pairs, `</s> source </s> </s> target </s>`, to be masked.

    Pass them to `mask_batches`. Positions begin anew with the target, so that a word
    and its translation are at about the same; which language a token is of is told by
    the language ids.

    Args:
        sources: Token ids of the sentences, without special ones.
        targets: Those of their translations, from the same vocabulary.
        source_language: Number of the sources' language.
        target_language: Number of the targets' language.
        end_token_id: Of `</s>`.
        pad_token_id: Fills up rows.
        max_length: Most tokens of a pair, its four special ones included; longer pairs
            are left out, since half a sentence has no translation.
        batch_size: Pairs a batch.
        shuffle_seed: Shuffles, anew each epoch and alike in each run (given the same
            `keras.utils.set_random_seed`). None keeps the order.
        epoch: Number of the epoch whose order is read, or a `tf.Variable` that holds
            it, such as that of `BackupAndResume`. None counts the iterations.
        drop_remainder: Leaves out a last batch of less than `batch_size`.
        pad_to_multiple_of: Lengths are rounded up to a multiple of this (though not
            past `max_length`), so that few shapes are compiled.

    Returns:
        A dataset of known cardinality of dictionaries of `token_ids` int32,
        `padding_mask` int32, 1 = real token, `language_ids` int32 and `position_ids`
        int32, each (B, T); on padding positions are 0 and languages the target's.

    Raises:
        ValueError: if sources and targets are not equally many, or no pair is short
            enough.

    Reference:
        Lample & Conneau 2019, "Cross-lingual Language Model Pretraining", section 3.4
        (arXiv:1901.07291).
    """
    if len(sources) != len(targets):
        raise ValueError(
            "`sources` and `targets` must be equally many. "
            f"Received: {len(sources)} sources, {len(targets)} targets"
        )
    max_length = check_positive("max_length", max_length)
    batch_size = check_positive("batch_size", batch_size)
    multiple = check_positive("pad_to_multiple_of", pad_to_multiple_of)
    kept = [
        (source, target)
        for source, target in zip(sources, targets, strict=True)
        if len(source) + len(target) + _NUM_SPECIAL <= max_length
    ]
    if not kept:
        raise ValueError(
            "`max_length` must leave a pair, with its four special tokens. "
            f"Received: max_length={max_length}, {len(sources)} pairs"
        )
    source_rows = to_ragged([source for source, _ in kept])
    target_rows = to_ragged([target for _, target in kept])

    def batch_of(rows):
        source, target = tf.gather(source_rows, rows), tf.gather(target_rows, rows)
        end = constant_column(end_token_id, source)
        source = tf.concat([end, source, end], axis=1)
        target = tf.concat([end, target, end], axis=1)
        token_ids = tf.concat([source, target], axis=1)
        lengths = tf.cast(token_ids.row_lengths(), tf.int32)
        width = -(-tf.reduce_max(lengths) // multiple) * multiple
        width = tf.minimum(width, max_length)
        places = tf.range(width)[tf.newaxis]
        split = tf.cast(source.row_lengths(), tf.int32)[:, tf.newaxis]
        in_source = places < split
        positions = tf.where(in_source, places, places - split)
        real = tf.sequence_mask(lengths, width)
        shape = tf.stack([-1, width])  # As many rows as there are.
        return {
            "token_ids": token_ids.to_tensor(pad_token_id, shape=shape),
            "padding_mask": tf.cast(real, tf.int32),
            "language_ids": tf.where(in_source, source_language, target_language),
            "position_ids": tf.where(real, positions, 0),
        }

    dataset = index_batches(
        len(kept),
        batch_size=batch_size,
        shuffle_seed=shuffle_seed,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )
    dataset = dataset.map(batch_of, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


def language_probabilities(sizes: Sequence[int], exponent: float = 0.7) -> np.ndarray:
    """How often to read each language: `q_i = p_i^α / Σ_j p_j^α`, `p_i = n_i / Σ n`.

    Args:
        sizes: n, sentences of each language.
        exponent: α: 1 reads languages as often as there is text of them, 0 all as
            often.

    Returns:
        Probabilities, float64 (L,).

    Raises:
        ValueError: for a size that is not above zero, or an α outside [0, 1].

    Reference:
        Lample & Conneau 2019, section 3.1; α = 0.7: section 3.5 (arXiv:1901.07291).
    """
    shares = np.asarray(sizes, np.float64)
    if not shares.size or not (shares > 0).all():
        raise ValueError(
            f"`sizes` must be numbers above zero, at least one. Received: sizes={sizes}"
        )
    if not 0.0 <= exponent <= 1.0:
        raise ValueError(
            f"`exponent` must be in [0, 1]. Received: exponent={exponent!r}"
        )
    weights = (shares / shares.sum()) ** exponent
    return weights / weights.sum()


def sample_languages(
    datasets: Sequence[tf.data.Dataset],
    sizes: Sequence[int],
    *,
    exponent: float = 0.7,
    seed: int,
    epoch: Epoch = None,
) -> tf.data.Dataset:
    """Batches from many datasets, each batch from one, drawn anew; without end.

    Datasets are read again and again: tell `model.fit` the `steps_per_epoch`, or, with
    an `epoch`, end each epoch by `.take(steps)`. All must have the same structure.

    Args:
        datasets: One a language, or a pair of languages.
        sizes: See `language_probabilities`.
        exponent: See `language_probabilities`.
        seed: Of the draws.
        epoch: Number of the epoch whose draws are made, or a `tf.Variable` that holds
            it, such as that of `BackupAndResume`; give it to the datasets too. None
            counts the iterations.

    Returns:
        A dataset of infinite cardinality.

    Raises:
        ValueError: if there are not as many sizes as datasets.
    """
    if len(datasets) != len(sizes):
        raise ValueError(
            "`datasets` and `sizes` must be equally many. "
            f"Received: {len(datasets)} datasets, {len(sizes)} sizes"
        )
    shares = language_probabilities(sizes, exponent)
    logits = tf.math.log(tf.constant(shares[np.newaxis], tf.float32))

    def draw(batch_seed):
        return tf.random.stateless_categorical(logits, 1, batch_seed)[0, 0]

    return tf.data.Dataset.choose_from_datasets(
        [dataset.repeat() for dataset in datasets],
        batch_seeds(seed, epoch).map(draw),
        stop_on_empty_dataset=False,
    )
