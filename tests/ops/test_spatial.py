"""Attention over locations, against loops in NumPy."""

import numpy as np
import pytest
from attention_reference import softmax
from layer_contract import B, D, S, T, normal
from model_cases import numpy

from keras_attn.ops import glimpse_scores, word_guided_weights

MASK = np.array([[0, 1, 1, 1, 0], [1, 0, 0, 0, 1]], bool)


@pytest.mark.parametrize("mask", [None, MASK, MASK.astype("int32")])
def test_of_each_place_the_best_word_counts(mask):
    words, places = normal(B, T, D), normal(B, S, D, seed=1)
    weights, correlations = map(numpy, word_guided_weights(words, places, mask))
    real = np.ones((B, T), bool) if mask is None else mask.astype(bool)
    for b in range(B):
        scores = np.array([[w @ p for p in places[b]] for w in words[b]])
        scores[~real[b]] = 0
        np.testing.assert_allclose(correlations[b], scores, atol=1e-5)
        best = [max(scores[t, s] for t in range(T) if real[b, t]) for s in range(S)]
        np.testing.assert_allclose(weights[b], softmax(np.array(best)), atol=1e-5)


def test_without_a_word_nothing_is_attended_to():
    empty = MASK & [[False], [True]]
    weights, correlations = word_guided_weights(normal(B, T, D), normal(B, S, D), empty)
    assert not numpy(weights)[0].any() and not numpy(correlations)[0].any()
    np.testing.assert_allclose(numpy(weights)[1].sum(), 1, rtol=1e-6)


def test_scores_of_glimpses():
    query, places, vectors = normal(B, 7), normal(B, S, 7, seed=1), normal(7, 3, seed=2)
    scores = numpy(glimpse_scores(query, places, vectors))
    assert scores.shape == (B, 3, S)
    for b, c, s in np.ndindex(scores.shape):
        hidden = np.maximum(query[b] + places[b, s], 0)
        np.testing.assert_allclose(scores[b, c, s], hidden @ vectors[:, c], atol=1e-5)
    halved = glimpse_scores(query, places, vectors, dropout=lambda hidden: hidden / 2)
    np.testing.assert_allclose(numpy(halved), scores / 2, atol=1e-6)
