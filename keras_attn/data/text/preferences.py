"""Human preferences: pairs of a better and a worse completion, and rankings of several.

Legend: B pairs, G rankings, K answers of each, T tokens of a row.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive, check_same_length
from keras_attn.data.pipelines.epochs import Epoch, batches_of_rows
from keras_attn.data.text.completion_rows import FlatRows, Row, check_lengths, make_row

_LARGEST = float(np.finfo(np.float32).max)


def preference_dataset(
    prompts: Sequence[Sequence[int]],
    chosen: Sequence[Sequence[int]],
    rejected: Sequence[Sequence[int]],
    *,
    max_length: int,
    batch_size: int,
    end_token_id: int | None,
    pad_to_multiple_of: int | None = None,
    pad_token_id: int = 0,
    shuffle_seed: int | None = None,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of pairs for `DPO.fit`: of two consecutive rows the first is the better.

    Args:
        prompts: Token ids of each prompt; see `completion_dataset`.
        chosen: Token ids of the better completion of each.
        rejected: Token ids of the worse one.
        max_length: T; see `completion_dataset`.
        batch_size: B.
        end_token_id: Token after every completion. None adds none.
        pad_to_multiple_of: See `completion_dataset`.
        pad_token_id: Token of the padding, which is at the right.
        shuffle_seed: Shuffles the pairs; see `completion_dataset`.
        epoch: Epoch whose order is read; see `completion_dataset`.
        drop_remainder: Drops a last batch of fewer than `batch_size` pairs.

    Returns:
        A dataset of known cardinality of `(inputs, labels, sample_weight)`, each (2·B,
        T), as of `completion_dataset`.

    Raises:
        ValueError: If pairs are missing, or different numbers of prompts and
            completions; if a row, which is named, is a text instead of ids, has an
            empty completion, a prompt of more than `max_length` tokens, or two
            completions that are equal as far as they are read.
    """
    batch_size = check_positive("batch_size", batch_size)
    max_tokens = check_lengths(max_length, pad_to_multiple_of) + 1
    if not check_same_length(prompts=prompts, chosen=chosen, rejected=rejected):
        raise ValueError(
            "`prompts`, `chosen` and `rejected` must not be empty. Received: 0 prompts"
        )
    rows: list[Row] = []
    for number, (prompt, *pair) in enumerate(
        zip(prompts, chosen, rejected, strict=True)
    ):
        better, worse = (
            make_row(
                prompt,
                completion,
                end_token_id=end_token_id,
                max_tokens=max_tokens,
                label=f"row {number}",
                names=("prompts", name),
            )
            for name, completion in zip(("chosen", "rejected"), pair, strict=True)
        )
        if better.tokens == worse.tokens:
            raise ValueError(
                "`chosen` and `rejected` must differ within `max_length`, or the pair "
                f"says nothing. Received: equal ones in row {number}, "
                f"max_length={max_length}"
            )
        rows += [better, worse]
    flat = FlatRows(rows, max_length, pad_to_multiple_of, pad_token_id)

    def make_batch(pairs):
        both = tf.stack([2 * pairs, 2 * pairs + 1], axis=1)
        return flat.next_tokens(tf.reshape(both, [-1]))

    return batches_of_rows(
        len(prompts),
        make_batch,
        batch_size=batch_size,
        shuffle_seed=shuffle_seed,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def ranking_dataset(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    ratings: Sequence[Sequence[float]],
    *,
    max_length: int,
    batch_size: int,
    end_token_id: int | None,
    num_answers: int | None = None,
    pad_to_multiple_of: int | None = None,
    pad_token_id: int = 0,
    shuffle_seed: int | None = None,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of rankings for a reward model that learns by `RankingLoss(num_answers)`.

    A row is a prompt, one of its answers and the end token; the answers of a ranking
    are consecutive rows. A shorter ranking is filled up with copies of its first answer
    that have weight 0.

    Args:
        prompts: Token ids of each prompt, possibly none.
        answers: For each prompt at least two answers, each its token ids.
        ratings: For each answer a number, larger for the better one. Equal numbers are
            a tie.
        max_length: T, at most the positions of the model. A longer answer is cut.
        batch_size: G.
        end_token_id: Token after every answer. None adds none.
        num_answers: K. Default: the largest number of answers.
        pad_to_multiple_of: See `completion_dataset`.
        pad_token_id: Token of the padding, which is at the right.
        shuffle_seed: Shuffles the rankings; see `completion_dataset`.
        epoch: Epoch whose order is read; see `completion_dataset`.
        drop_remainder: Drops a last batch of fewer than `batch_size` rankings.

    Returns:
        A dataset of known cardinality of `(inputs, ratings, sample_weight)`: inputs are
        `token_ids` and `padding_mask` int32 (G·K, T), 1 = real token; ratings and
        sample weights are float32 (G·K,).

    Raises:
        ValueError: If rankings are missing, or different numbers of prompts, answers
            and ratings; if a ranking, which is named, has one answer, more than K,
            another number of ratings, a rating that is not finite, or nothing but ties;
            if an answer is empty, a text instead of ids, or its prompt leaves no room
            for it.
    """
    batch_size = check_positive("batch_size", batch_size)
    max_tokens = check_lengths(max_length, pad_to_multiple_of)
    if not check_same_length(prompts=prompts, answers=answers, ratings=ratings):
        raise ValueError(
            "`prompts`, `answers` and `ratings` must not be empty. Received: 0 prompts"
        )
    if num_answers is None:
        num_answers = max(len(several) for several in answers)
    num_answers = check_positive("num_answers", num_answers)
    shape = (len(prompts), num_answers)
    values, weights = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    rows: list[Row] = []
    for number, (prompt, several) in enumerate(zip(prompts, answers, strict=True)):
        label = f"row {number}"
        check_ranking(ratings[number], len(several), label)
        if len(several) > num_answers:
            raise ValueError(
                "`answers` must have at most `num_answers` each. "
                f"Received: {len(several)} in {label}, num_answers={num_answers}"
            )
        values[number, : len(several)] = ratings[number]
        weights[number, : len(several)] = 1.0
        ranked = [
            make_row(
                prompt,
                answer,
                end_token_id=end_token_id,
                max_tokens=max_tokens,
                label=f"{label}, answer {index}",
                names=("prompts", "answers"),
            )
            for index, answer in enumerate(several)
        ]
        rows += ranked + ranked[:1] * (num_answers - len(several))
    flat = FlatRows(rows, max_length, pad_to_multiple_of, pad_token_id)
    all_values, all_weights = tf.constant(values), tf.constant(weights)

    def make_batch(rankings):
        of_answers = rankings[:, None] * num_answers + tf.range(
            num_answers, dtype=tf.int64
        )
        return (
            flat.whole(tf.reshape(of_answers, [-1])),
            tf.reshape(tf.gather(all_values, rankings), [-1]),
            tf.reshape(tf.gather(all_weights, rankings), [-1]),
        )

    return batches_of_rows(
        len(prompts),
        make_batch,
        batch_size=batch_size,
        shuffle_seed=shuffle_seed,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def check_ranking(ratings: Iterable[float], num_answers: int, label: str) -> None:
    """Raises if a ranking is not valid, or has only ties.

    Args:
        ratings: One number per answer.
        num_answers: Number of answers.
        label: What and where the ranking is, for the message.

    Raises:
        ValueError: If there are fewer than two answers, another number of ratings, one
            that is not a finite number, or if all are equal.
    """
    ratings = list(ratings)
    if num_answers < 2 or len(ratings) != num_answers:
        raise ValueError(
            "`answers` must be at least two, and `ratings` one for each. Received: "
            f"{num_answers} answers and {len(ratings)} ratings in {label}"
        )
    if not all(-_LARGEST <= rating <= _LARGEST for rating in ratings):
        raise ValueError(
            f"`ratings` must be finite numbers. Received: {ratings} in {label}"
        )
    if len(set(ratings)) == 1:
        raise ValueError(
            "`ratings` must not all be equal, or the ranking says nothing. "
            f"Received: {ratings} in {label}"
        )
