"""Next-sentence prediction: does the second text follow the first, or is it random?

Legend: B batch, T length.
"""

import random
from collections.abc import Iterator, Sequence

import tensorflow as tf

from keras_attn.checks.arguments import check_fraction, check_positive
from keras_attn.data.pipelines.epochs import Epoch, batches_of_rows
from keras_attn.data.text.ragged import constant_column, constant_like, to_ragged

IS_NEXT, IS_RANDOM = 0, 1

# Special tokens of a pair: one before both texts, one after each.
_NUM_SPECIAL = 3


def next_sentence_pairs(
    documents: Sequence[Sequence[Sequence[int]]],
    *,
    max_length: int,
    seed: int,
    random_rate: float = 0.5,
    short_rate: float = 0.1,
) -> Iterator[tuple[list[int], list[int], int]]:
    """Pairs of texts from documents, half of which follow each other.

    Each document is read in runs of consecutive sentences, as long as a pair may be. A
    run is split between two random sentences. Its second part either becomes the
    second text, or is replaced by text of another document and read again in the next
    run. So each seed gives different pairs, and no sentence is skipped.

    Args:
        documents: Sequences of sentences, which are sequences of token ids. At least
            two documents must not be empty.
        max_length: Maximum number of tokens of a pair, including three special ones. In
            longer pairs the longer text is cut, equally often at its start and at its
            end.
        seed: Seed of the pairs.
        random_rate: Share of the pairs whose second text is random. A run of a single
            sentence always gets a random one, so their share is slightly larger.
        short_rate: Share of the runs that get a random shorter length, since texts are
            shorter in use than in pre-training.

    Yields:
        The tokens of both texts, and the label: 0 if the second follows the first, 1 if
        it is random, as in Hugging Face's models.

    Raises:
        ValueError: If there are fewer than two documents, or `max_length` is too small.

    Reference:
        Devlin et al. 2019, "BERT", section 3.1 and appendix A.2 (arXiv:1810.04805),
        and its published code.
    """
    max_tokens = check_positive("max_length", max_length) - _NUM_SPECIAL
    if max_tokens < 2:
        raise ValueError(
            "`max_length` must leave room for one token of each text and three special "
            f"ones. Received: max_length={max_length}"
        )
    check_fraction("random_rate", random_rate)
    check_fraction("short_rate", short_rate)
    rng = random.Random(seed)
    filled = _non_empty(documents)
    for number, document in enumerate(filled):
        start = 0
        while start < len(document):
            is_short = rng.random() < short_rate
            wanted = rng.randint(2, max_tokens) if is_short else max_tokens
            stop, length = start, 0
            while stop < len(document) and length < wanted:
                length += len(document[stop])
                stop += 1
            cut = stop if stop == start + 1 else rng.randrange(start + 1, stop)
            first = _joined(document[start:cut])
            if cut == stop or rng.random() < random_rate:
                second = _random_text(filled, number, wanted - len(first), rng)
                label, start = IS_RANDOM, cut
            else:
                second = _joined(document[cut:stop])
                label, start = IS_NEXT, stop
            _truncate(first, second, max_tokens, rng)
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

    With `mask_batches` this is BERT's complete pre-training.

    Args:
        documents: See `next_sentence_pairs`.
        cls_token_id: Id of `[CLS]`.
        separator_token_id: Id of `[SEP]`.
        pad_token_id: Id of `[PAD]`.
        max_length: T, the same for all batches, so that one shape is compiled.
        batch_size: Pairs per batch.
        seed: Seed of the pairs and of their order.
        random_rate: See `next_sentence_pairs`.
        short_rate: See `next_sentence_pairs`.
        shuffle: Whether pairs are shuffled, in a new order each epoch.
        epoch: Epoch whose order is read, or a `tf.Variable` that holds it, such as
            `BackupAndResume.epoch`. None counts the iterations.
        drop_remainder: Drops a last batch of fewer than `batch_size` pairs.

    Returns:
        A dataset of known cardinality of `(inputs, labels)`: inputs are `token_ids`
        int32, `padding_mask` int32, 1 = real token, and `segment_ids` int32, 0 up to
        the first `[SEP]` and on padding, 1 after it, each (B, T); labels are int32
        (B,), 0 = the second text follows the first.
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

    def make_batch(rows):
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

    return batches_of_rows(
        int(firsts.nrows()),
        make_batch,
        batch_size=batch_size,
        shuffle_seed=seed if shuffle else None,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def _non_empty(documents) -> list[list[list[int]]]:
    """Documents and sentences that are not empty; raises for fewer than two."""
    filled = [[list(text) for text in document if len(text)] for document in documents]
    filled = [document for document in filled if document]
    if len(filled) < 2:
        raise ValueError(
            "`documents` must have at least two that are not empty: a random second "
            "text is taken from another document. "
            f"Received: {len(documents)} documents, {len(filled)} of them not empty"
        )
    return filled


def _joined(sentences: list[list[int]]) -> list[int]:
    return [index for sentence in sentences for index in sentence]


def _random_text(documents, number, wanted, rng) -> list[int]:
    """Sentences of a document other than `number`, at least `wanted` tokens of them.

    They start at a random sentence; there are fewer tokens if the document ends first.
    """
    other = rng.randrange(len(documents) - 1)
    document = documents[other + (other >= number)]
    text: list[int] = []
    for sentence in document[rng.randrange(len(document)) :]:
        text.extend(sentence)
        if len(text) >= wanted:
            break
    return text


def _truncate(first: list[int], second: list[int], max_tokens: int, rng) -> None:
    """Removes tokens at either end of the longer text until both fit, in place."""
    while len(first) + len(second) > max_tokens:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if rng.random() < 0.5 else -1)
