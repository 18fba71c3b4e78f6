"""Texts ranked by length and a language model, as in Listen, Attend and Spell."""

from typing import Any

import keras
import numpy as np
import pytest
from decoding.toys import log_softmax
from model_cases import create, randomize

from keras_attn.data import CharacterTokenizer
from keras_attn.decoding import (
    ScoredText,
    language_model_scorer,
    log_likelihood,
    rescore,
)
from keras_attn.ops import MASKED

TEXTS = [["seven", "seven two", "sevn too"], ["", "a", "of one"]]
# Log-probabilities of the search, and of a language model.
LOG_PROBS = np.array([[-4.0, -5.4, -4.4], [-2.5, -3.0, -7.5]])
LANGUAGE = {"seven": -9.0, "seven two": -11.0, "sevn too": -23.0}
LANGUAGE |= {"": -1.0, "a": -2.0, "of one": -8.0}
CHARACTERS = np.array([[5, 9, 8], [1, 1, 6]])  # An empty text counts as one.


def ranked(scores):
    """What `rescore` must return for scores (2, 3)."""
    rows = [
        sorted(map(ScoredText, texts, row), key=lambda each: -each.score)
        for texts, row in zip(TEXTS, scores.tolist(), strict=True)
    ]
    return [[each.text for each in row] for row in rows], rows


@pytest.mark.parametrize("weight", [None, 0.0, 0.02, 1.0])
def test_the_formula_of_the_paper(weight):
    expected = LOG_PROBS / CHARACTERS
    options = {}
    if weight is not None:
        language = np.array([[LANGUAGE[text] for text in row] for row in TEXTS])
        expected = expected + weight * language
        options = {"scorer": lambda row: [LANGUAGE[x] for x in row], "weight": weight}
    texts, rows = ranked(expected)
    found = rescore(TEXTS, LOG_PROBS, **options)
    assert [[each.text for each in row] for row in found] == texts
    for ours, theirs in zip(found, rows, strict=True):
        scores = [each.score for each in ours]
        np.testing.assert_allclose(scores, [each.score for each in theirs], rtol=1e-12)


def test_the_ranks_of_the_cases():
    """The cases are such that each term decides."""
    best = {
        name: rescore(TEXTS, LOG_PROBS, **options)[0][0].text
        for name, options in (
            ("length", {}),
            ("language", {"scorer": lambda x: [LANGUAGE[y] for y in x], "weight": 1.0}),
        )
    }
    assert best == {"length": "sevn too", "language": "seven"}
    assert TEXTS[0][LOG_PROBS[0].argmax()] == "seven"


def test_texts_that_a_search_did_not_find_are_left_out():
    log_probs = LOG_PROBS.copy()
    log_probs[0, 1:], log_probs[1] = MASKED, MASKED
    first, second = rescore(TEXTS, log_probs, scorer=lambda x: [0.0] * len(x), weight=1)
    assert [each.text for each in first] == ["seven"] and second == []


def test_scores_that_are_refused():
    for texts, log_probs in ((TEXTS, LOG_PROBS[:, :2]), (TEXTS[:1], LOG_PROBS)):
        with pytest.raises(ValueError, match="`log_probs` must be .rows, texts.*Rec"):
            rescore(texts, log_probs)
    alone: list[dict[str, Any]] = [{"weight": 0.1}, {"scorer": len}]
    for options in alone:
        with pytest.raises(ValueError, match="`scorer` and `weight` must be .* Rece"):
            rescore(TEXTS, LOG_PROBS, **options)
    for wrong in (lambda x: [1.0], lambda x: [np.nan] * len(x)):
        with pytest.raises(ValueError, match="`scorer` must return a number .* 3 text"):
            rescore(TEXTS, LOG_PROBS, scorer=wrong, weight=0.1)


# Likelihoods.

TOKENIZER = CharacterTokenizer("abcdefg")


@pytest.fixture(scope="module")
def gpt():
    size = TOKENIZER.vocabulary_size
    model = create("gpt2_small", vocabulary_size=size, max_sequence_length=40)
    return randomize(model, seed=2, scale=0.5)


def by_hand(model, row, given):
    """By one pass of the sequence alone."""
    logits = keras.ops.convert_to_numpy(
        model({"token_ids": np.array([row]), "padding_mask": np.ones((1, len(row)))})
    )
    chosen = log_softmax(logits[0, :-1])[np.arange(len(row) - 1), row[1:]]
    return chosen[given - 1 :].sum()


def test_log_likelihood_is_that_of_a_pass_by_itself(gpt):
    rng = np.random.default_rng(3)
    rows = [rng.integers(0, 11, length).tolist() for length in (5, 37, 1, 11, 2)]
    given = [2, 30, 1, 11, 1]
    expected = [by_hand(gpt, *each) for each in zip(rows, given, strict=True)]
    found = log_likelihood(gpt, rows, num_given=given, batch_size=2)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found[2] == found[3] == 0 and (found[[0, 1, 4]] < -0.1).all()
    expected = [by_hand(gpt, row, 1) for row in rows[:2]]
    numbers: list[Any] = [1, np.int64(1)]
    for one in numbers:
        found = log_likelihood(gpt, rows[:2], num_given=one)
        np.testing.assert_allclose(found, expected, 1e-5)
    assert log_likelihood(gpt, []).shape == (0,)


def test_a_text_has_its_start_and_its_end(gpt):
    texts = ["abc", "", "gfedcba"]
    ids = [TOKENIZER.encode(text) for text in texts]
    for options, start in (({}, 1), ({"start_token_id": 2}, 2)):
        rows = [[start, *each, TOKENIZER.end_token_id] for each in ids]
        scorer = language_model_scorer(gpt, TOKENIZER, **options)
        expected = [by_hand(gpt, row, 1) for row in rows]
        np.testing.assert_allclose(scorer(texts), expected, atol=1e-4)


def test_models_and_sequences_that_are_refused(gpt):
    for model in (create("rnnsearch_50"), create("bert_base"), None):
        with pytest.raises(TypeError, match="`model` must be a language model"):
            log_likelihood(model, [[1, 2]])
    for given in (0, 3):
        with pytest.raises(ValueError, match=f"`num_given` must be from 1 .*={given}"):
            log_likelihood(gpt, [[1, 2]], num_given=given)
    with pytest.raises(ValueError, match="`sequences` and `num_given` must have the"):
        log_likelihood(gpt, [[1, 2]], num_given=[1, 1])
    wrong: list[Any] = [[1.5, 2.0], [[1, 2]], 3]
    for sequence in wrong:
        with pytest.raises(ValueError, match="`sequences` must be rows of token ids"):
            log_likelihood(gpt, [sequence])
    with pytest.raises(ValueError, match="must have a length of at most 40"):
        log_likelihood(gpt, [[1] * 41])
    with pytest.raises(ValueError, match=r"`token_ids` must be in \[0, 11\)"):
        log_likelihood(gpt, [[1, 11]])
    with pytest.raises(ValueError, match="`tokenizer` must have a start and an end"):
        language_model_scorer(gpt, object())
