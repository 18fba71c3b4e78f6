"""Translation language modelling: a sentence and its translation, masked as one text.

To predict a masked word the model can attend to the translation, which aligns the
representations of both languages. Tokens are masked as in `masked_lm`.

Legend: B batch, T length, L languages.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive, check_same_length
from keras_attn.data.pipelines.epochs import Epoch, batch_seeds, batches_of_rows
from keras_attn.data.text.ragged import constant_column, to_ragged

# Special tokens of a pair: one before and one after each sentence.
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
    """Batches of pairs, `</s> source </s> </s> target </s>`, for `mask_batches`.

    Positions restart at the target, so that a word and its translation have similar
    positions; language ids distinguish the languages.

    Args:
        sources: Token ids of the sentences, without special tokens.
        targets: Token ids of their translations, from the same vocabulary.
        source_language: Language id of the sources.
        target_language: Language id of the targets.
        end_token_id: Id of `</s>`.
        pad_token_id: Id of padding.
        max_length: Maximum number of tokens of a pair, including four special ones;
            longer pairs are dropped, since a truncated sentence no longer matches its
            translation.
        batch_size: Pairs per batch.
        shuffle_seed: Shuffles the pairs, as in `causal_lm_dataset`.
        epoch: Epoch whose order is read, or a `tf.Variable` that holds it, such as
            `BackupAndResume.epoch`. None counts the iterations.
        drop_remainder: Drops a last batch of fewer than `batch_size` pairs.
        pad_to_multiple_of: Lengths are rounded up to a multiple of this (but not above
            `max_length`), so that few shapes are compiled.

    Returns:
        A dataset of known cardinality of dictionaries of `token_ids` int32,
        `padding_mask` int32, 1 = real token, `language_ids` int32 and `position_ids`
        int32, each (B, T). Padding has position 0 and the target's language.

    Raises:
        ValueError: If the numbers of sources and targets differ, or no pair is short
            enough.

    Reference:
        Lample & Conneau 2019, "Cross-lingual Language Model Pretraining", section 3.4
        (arXiv:1901.07291).
    """
    check_same_length(sources=sources, targets=targets)
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
            "`max_length` must fit at least one pair and its four special tokens. "
            f"Received: max_length={max_length}, {len(sources)} pairs"
        )
    source_rows = to_ragged([source for source, _ in kept])
    target_rows = to_ragged([target for _, target in kept])

    def make_batch(rows):
        source, target = tf.gather(source_rows, rows), tf.gather(target_rows, rows)
        end = constant_column(end_token_id, source)
        source = tf.concat([end, source, end], axis=1)
        target = tf.concat([end, target, end], axis=1)
        token_ids = tf.concat([source, target], axis=1)
        lengths = tf.cast(token_ids.row_lengths(), tf.int32)
        width = -(-tf.reduce_max(lengths) // multiple) * multiple
        width = tf.minimum(width, max_length)
        columns = tf.range(width)[tf.newaxis]
        split = tf.cast(source.row_lengths(), tf.int32)[:, tf.newaxis]
        in_source = columns < split
        positions = tf.where(in_source, columns, columns - split)
        real = tf.sequence_mask(lengths, width)
        shape = tf.stack([-1, width])  # Any number of rows.
        return {
            "token_ids": token_ids.to_tensor(pad_token_id, shape=shape),
            "padding_mask": tf.cast(real, tf.int32),
            "language_ids": tf.where(in_source, source_language, target_language),
            "position_ids": tf.where(real, positions, 0),
        }

    return batches_of_rows(
        len(kept),
        make_batch,
        batch_size=batch_size,
        shuffle_seed=shuffle_seed,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def language_probabilities(sizes: Sequence[int], exponent: float = 0.7) -> np.ndarray:
    """Sampling rates of languages: `q_i = p_i^α / Σ_j p_j^α`, `p_i = n_i / Σ n`.

    Args:
        sizes: n, the number of sentences of each language.
        exponent: α: 1 samples languages in proportion to their sizes, 0 uniformly.

    Returns:
        Probabilities, float64 (L,).

    Raises:
        ValueError: If a size is not positive, or `exponent` is outside [0, 1].

    Reference:
        Lample & Conneau 2019, section 3.1; α = 0.7: section 3.5 (arXiv:1901.07291).
    """
    shares = np.asarray(sizes, np.float64)
    if not shares.size or not (shares > 0).all():
        raise ValueError(
            f"`sizes` must be one or more positive numbers. Received: sizes={sizes}"
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
    """Infinite dataset of batches, each from a randomly sampled dataset.

    Datasets are repeated: pass `steps_per_epoch` to `model.fit`, or, with an `epoch`,
    end each epoch by `.take(steps)`. All must have the same structure.

    Args:
        datasets: One dataset per language, or per pair of languages.
        sizes: See `language_probabilities`.
        exponent: See `language_probabilities`.
        seed: Seed of the sampling.
        epoch: Epoch whose samples are drawn, or a `tf.Variable` that holds it, such as
            `BackupAndResume.epoch`; pass it to the datasets too. None counts the
            iterations.

    Returns:
        A dataset of infinite cardinality.

    Raises:
        ValueError: If the numbers of sizes and datasets differ.
    """
    check_same_length(datasets=datasets, sizes=sizes)
    rates = language_probabilities(sizes, exponent)
    logits = tf.math.log(tf.constant(rates[np.newaxis], tf.float32))

    def sample(batch_seed):
        return tf.random.stateless_categorical(logits, 1, batch_seed)[0, 0]

    return tf.data.Dataset.choose_from_datasets(
        [dataset.repeat() for dataset in datasets],
        batch_seeds(seed, epoch).map(sample),
        stop_on_empty_dataset=False,
    )
