"""Next-sentence prediction: does the second text follow the first, or is it any other?

Legend: B batch, T length.
"""

import random
from collections.abc import Iterator, Sequence

import tensorflow as tf

from keras_attn.checks import check_fraction, check_positive
from keras_attn.data.epochs import Epoch
from keras_attn.data.ragged import (
    constant_column,
    constant_like,
    index_batches,
    to_ragged,
)

IS_NEXT, IS_RANDOM = 0, 1

# What is packed with the two texts: one token in front, one behind each.
_NUM_SPECIAL = 3


def next_sentence_pairs(
    documents: Sequence[Sequence[Sequence[int]]],
    *,
    max_length: int,
    seed: int,
    random_rate: float = 0.5,
    short_rate: float = 0.1,
) -> Iterator[tuple[list[int], list[int], int]]:
    """Pairs of texts from documents, half of which are neighbours.

    A document is read in stretches of sentences, each as long as a pair may be. A
    stretch is cut between two sentences chosen at random; its rest follows the first
    part, or is read again later where a part of another document takes its place.
    Every sentence comes up in its place once, so a second seed gives other pairs.

    Args:
        documents: Each a sequence of sentences, each a sequence of token ids. At
            least two that are not empty.
        max_length: Most tokens of a pair, its three special ones included; what is too
            long is cut at the longer text, at its start as often as at its end.
        seed: Of what is random.
        random_rate: Share of the pairs that are no neighbours. A stretch of a single
            sentence has no neighbour, so there are somewhat more of these.
        short_rate: Share of the stretches that are shorter, of any length, to make
            less of a difference between training and use.

    Yields:
        The tokens of either text, and 0 where they are neighbours, 1 where not, as in
        Hugging Face's models.

    Raises:
        ValueError: if there are fewer than two documents, or there is no room.

    Reference:
        Devlin et al. 2019, "BERT", section 3.1 and appendix A.2 (arXiv:1810.04805),
        and its published code.
    """
    room = check_positive("max_length", max_length) - _NUM_SPECIAL
    if room < 2:
        raise ValueError(
            "`max_length` must leave room for a token of either text and three special "
            f"ones. Received: max_length={max_length}"
        )
    check_fraction("random_rate", random_rate)
    check_fraction("short_rate", short_rate)
    filled = [[list(text) for text in document if len(text)] for document in documents]
    filled = [document for document in filled if document]
    if len(filled) < 2:
        raise ValueError(
            "`documents` must be at least two that are not empty: the text that does "
            "not follow is of another one. "
            f"Received: {len(documents)} documents, {len(filled)} of them not empty"
        )
    rng = random.Random(seed)
    for number, document in enumerate(filled):
        place = 0
        while place < len(document):
            wanted = rng.randint(2, room) if rng.random() < short_rate else room
            stop, length = place, 0
            while stop < len(document) and length < wanted:
                length += len(document[stop])
                stop += 1
            cut = stop if stop == place + 1 else rng.randrange(place + 1, stop)
            first = _joined(document[place:cut])
            if cut == stop or rng.random() < random_rate:
                second = _elsewhere(filled, number, wanted - len(first), rng)
                label, place = IS_RANDOM, cut
            else:
                second = _joined(document[cut:stop])
                label, place = IS_NEXT, stop
            _shorten(first, second, room, rng)
            yield first, second, label


def next_sentence_dataset(
    documents: Sequence[Sequence[Sequence[int]]],
    *,
    cls_token_id: int,
    separator_token_id: int,
    pad_token_id: int = 0,
    max_length: int,
    batch_size: int,
    seed: int,
    random_rate: float = 0.5,
    short_rate: float = 0.1,
    shuffle: bool = True,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of pairs for `model.fit`: `[CLS] first [SEP] second [SEP]`.

    With `mask_batches` it is the whole of BERT's pre-training.

    Args:
        documents: See `next_sentence_pairs`.
        cls_token_id: Of `[CLS]`.
        separator_token_id: Of `[SEP]`.
        pad_token_id: Of `[PAD]`.
        max_length: T, of every batch, so that one shape is compiled.
        batch_size: Pairs a batch.
        seed: Of the pairs, and of their order.
        random_rate: See `next_sentence_pairs`.
        short_rate: See `next_sentence_pairs`.
        shuffle: Whether the order is random, anew each epoch.
        epoch: Number of the epoch whose order is read, or a `tf.Variable` that holds
            it, such as that of `BackupAndResume`. None counts the iterations.
        drop_remainder: Leaves out a last batch of less than `batch_size`.

    Returns:
        A dataset of known cardinality of `(inputs, labels)`: inputs are `token_ids`
        int32, `padding_mask` int32, 1 = real token, and `segment_ids` int32, 0 up to
        the first `[SEP]` and on padding, 1 from there, each (B, T); labels are int32
        (B,), 0 = the second text follows.
    """
    batch_size = check_positive("batch_size", batch_size)
    pairs = next_sentence_pairs(
        documents,
        max_length=max_length,
        seed=seed,
        random_rate=random_rate,
        short_rate=short_rate,
    )
    firsts, seconds, labels = zip(*pairs, strict=True)
    firsts, seconds, labels = to_ragged(firsts), to_ragged(seconds), tf.constant(labels)

    def batch_of(rows):
        first, second = tf.gather(firsts, rows), tf.gather(seconds, rows)
        end = constant_column(separator_token_id, first)
        start = constant_column(cls_token_id, first)
        token_ids = tf.concat([start, first, end, second, end], axis=1)
        one, zero = constant_column(1, first), constant_column(0, first)
        segment_ids = tf.concat(
            [zero, constant_like(0, first), zero, constant_like(1, second), one], axis=1
        )
        shape = [None, max_length]
        inputs = {
            "token_ids": token_ids.to_tensor(pad_token_id, shape=shape),
            "padding_mask": tf.sequence_mask(
                token_ids.row_lengths(), max_length, tf.int32
            ),
            "segment_ids": segment_ids.to_tensor(0, shape=shape),
        }
        return inputs, tf.gather(labels, rows)

    dataset = index_batches(
        int(firsts.nrows()),
        batch_size=batch_size,
        shuffle_seed=seed if shuffle else None,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )
    dataset = dataset.map(batch_of, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


def _joined(sentences: list[list[int]]) -> list[int]:
    return [index for sentence in sentences for index in sentence]


def _elsewhere(documents, number, wanted, rng) -> list[int]:
    """Sentences of another document, from any one on, of at least `wanted` tokens.

    Fewer if that document ends before.
    """
    other = rng.randrange(len(documents) - 1)
    document = documents[other + (other >= number)]
    text: list[int] = []
    for sentence in document[rng.randrange(len(document)) :]:
        text.extend(sentence)
        if len(text) >= wanted:
            break
    return text


def _shorten(first: list[int], second: list[int], room: int, rng) -> None:
    """Takes tokens from the longer text's ends until both fit."""
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if rng.random() < 0.5 else -1)
