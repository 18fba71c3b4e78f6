import numpy as np
import pytest

from keras_attn.data.text.next_sentence import (
    next_sentence_dataset,
    next_sentence_pairs,
)

CLS, SEP = 1, 2


def documents(count=5, sentences=11, seed=0):
    """Documents whose token ids are unique, so that they tell their positions.

    Those of document d count up from 1000 · (d + 1).
    """
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        token, document = 1000 * (number + 1), []
        for _ in range(sentences):
            length = int(rng.integers(1, 8))
            document.append(list(range(token, token + length)))
            token += length
        found.append(document)
    return found


def pairs(texts, max_length=31, seed=0, **options):
    return list(next_sentence_pairs(texts, max_length=max_length, seed=seed, **options))


def test_second_texts_follow_or_are_from_other_documents():
    found = pairs(documents())
    assert {label for _, _, label in found} == {0, 1}
    for first, second, label in found:
        # Texts are truncated at their ends only.
        for text in (first, second):
            assert text == list(range(text[0], text[0] + len(text)))
        assert first and second and len(first) + len(second) <= 28
        if label == 0:
            assert second[0] // 1000 == first[0] // 1000 and second[0] > first[-1]
        else:
            assert second[0] // 1000 != first[0] // 1000


def test_pairs_that_fit_are_whole_and_adjacent():
    # Long enough for a whole document, so that nothing is truncated.
    texts = documents(count=7, sentences=5)
    found = pairs(texts, max_length=200, short_rate=0.0)
    begins = [sentence[0] for document in texts for sentence in document]
    ends = {sentence[-1] for document in texts for sentence in document}
    for first, second, label in found:
        assert first[0] in begins and second[0] in begins
        assert first[-1] in ends and second[-1] in ends
        assert label == 1 or second[0] == first[-1] + 1
    # Every token occurs once in a first text, or in a second text that follows.
    placed = [t for first, second, label in found for t in first + second * (not label)]
    assert sorted(placed) == sorted(t for d in texts for s in d for t in s)


def test_half_of_the_pairs_follow_each_other():
    texts = [[[1, 2, 3]] * 400, [[4, 5, 6]] * 400]
    found = pairs(texts, max_length=11, short_rate=0.0)
    labels = np.array([label for _, _, label in found])
    # Runs have three sentences, so only the last ones may have a single sentence.
    assert len(labels) > 300
    assert abs(labels.mean() - 0.5) < 4 * np.sqrt(0.25 / len(labels)) + 2 / len(labels)
    never = pairs(texts, max_length=11, random_rate=0.0)
    alone = [len(first) == 3 for first, _, label in never if label]
    assert all(alone)  # A run of a single sentence cannot be split.


def test_some_pairs_are_shorter():
    texts = [[[7]] * 4000, [[8]] * 4000]
    full = pairs(texts, max_length=23, short_rate=0.0, random_rate=0.0)
    assert all(len(a) + len(b) == 20 for a, b, _ in full)
    found = pairs(texts, max_length=23, random_rate=0.0)
    lengths = np.array([len(a) + len(b) for a, b, _ in found])
    # One in ten has one of 19 random lengths, including the full length.
    share, rate = (lengths < 20).mean(), 0.1 * 18 / 19
    assert abs(share - rate) < 4 * np.sqrt(rate * (1 - rate) / len(lengths))
    assert lengths.min() >= 2 and len(set(lengths)) > 10


def test_the_longer_text_is_truncated_at_both_ends():
    texts = [[list(range(100, 200)), [5]], [list(range(300, 400)), [6]]]
    starts, stops = set(), set()
    for seed in range(8):
        for first, second, _ in pairs(texts, max_length=23, seed=seed):
            assert len(first) + len(second) == 20 or len(first) == 1
            if len(first) > 1:
                starts.add(first[0] % 100)
                stops.add(first[-1] % 100)
    assert min(starts) > 20 and max(stops) < 80


def test_the_least_length_has_two_tokens():
    assert all(len(a) == len(b) == 1 for a, b, _ in pairs(documents(), max_length=5))


def test_the_seed_determines_the_pairs():
    texts = documents()
    assert pairs(texts, seed=3) == pairs(texts, seed=3) != pairs(texts, seed=4)


def options(**more):
    return {
        "cls_token_id": CLS,
        "separator_token_id": SEP,
        "max_length": 31,
        "batch_size": 4,
        "seed": 3,
        **more,
    }


def test_batches_contain_the_pairs():
    texts = documents()
    found = pairs(texts, seed=3)
    batches = next_sentence_dataset(texts, **options(shuffle=False, pad_token_id=9))
    assert int(batches.cardinality()) == -(-len(found) // 4)
    rows = list(batches.unbatch().as_numpy_iterator())
    assert len(rows) == len(found)
    for (inputs, label), (first, second, expected) in zip(rows, found, strict=True):
        tokens = [CLS, *first, SEP, *second, SEP]
        rest = 31 - len(tokens)
        assert inputs["token_ids"].tolist() == tokens + [9] * rest
        assert inputs["padding_mask"].tolist() == [True] * len(tokens) + [False] * rest
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1) + [0] * rest
        assert inputs["segment_ids"].tolist() == segments
        assert label == expected
    ((inputs, labels),) = batches.take(1)
    whole = next_sentence_dataset(texts, **options(drop_remainder=True))
    assert {tuple(x["token_ids"].shape) for x, _ in whole} == {(4, 31)}
    dtypes = {name: tensor.dtype.name for name, tensor in inputs.items()}
    assert dtypes["token_ids"] == dtypes["segment_ids"] == labels.dtype.name == "int32"
    assert dtypes["padding_mask"] == "int32"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"max_length": 4}, "`max_length` must leave room.*length=4"),
        ({"max_length": 0}, "`max_length` must be a positive integer"),
        ({"random_rate": 1.0}, "`random_rate` must be a probability"),
        ({"short_rate": -0.5}, "`short_rate` must be a probability"),
        ({"documents": [[[5]], [[]], []]}, "3 documents, 1 of them not empty"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
    ],
)
def test_invalid_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        next_sentence_dataset(**options(**{"documents": documents(), **changes}))
