"""Places that are drawn, and sums over a text, with values derived by hand."""

import numpy as np
import pytest
from keras import ops

from keras_attn.layers import AttentionObjective
from keras_attn.ops import (
    attention_entropy,
    coverage_penalty,
    most_probable_places,
    places_log_probability,
    sampled_places,
)

WEIGHTS = np.array([[[0.5, 0.5, 0.0], [0.25, 0.0, 0.75]]], "float32")
REAL, FIRST = np.ones((1, 2), "float32"), np.array([[1, 0]], "float32")


def close(found, expected):
    found = ops.convert_to_numpy(found)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_the_largest_number_decides_among_equal_probabilities():
    uniforms = np.array([[[0.2, 0.9, 0.99], [0.999, 0.9, 0.1]]], "float32")
    # Of the second step: log 0.25 + 6.9 against log 0.75 - 0.8.
    close(sampled_places(WEIGHTS, uniforms), [[[0, 1, 0], [1, 0, 0]]])


def test_the_ends_of_the_random_numbers_are_harmless():
    uniforms = np.array([[[0.0, 0.5, 1 - 6e-8], [0.0, 0.0, 0.0]]], "float32")
    # A place of probability zero is never drawn.
    close(sampled_places(WEIGHTS, uniforms), [[[0, 1, 0], [0, 0, 1]]])


def test_the_most_probable_place():
    close(most_probable_places(WEIGHTS), [[[1, 0, 0], [0, 0, 1]]])


def test_without_probabilities_nothing_is_taken():
    nothing = np.zeros((1, 2, 3), "float32")
    close(most_probable_places(nothing), nothing)
    close(sampled_places(nothing, nothing + 0.5), nothing)


def test_coverage():
    # 1 - (0.75, 0.5, 0.75), and 1 - (0.5, 0.5, 0).
    close(coverage_penalty(WEIGHTS, REAL), [0.0625 + 0.25 + 0.0625])
    close(coverage_penalty(WEIGHTS, FIRST), [0.25 + 0.25 + 1])


def test_log_probability_and_entropy():
    places = np.array([[[0, 1, 0], [1, 0, 0]]], "float32")
    close(places_log_probability(places, WEIGHTS, REAL), [np.log(0.5) + np.log(0.25)])
    close(places_log_probability(places, WEIGHTS, FIRST), [np.log(0.5)])
    second = -0.25 * np.log(0.25) - 0.75 * np.log(0.75)
    close(attention_entropy(WEIGHTS, REAL), [np.log(2) + second])
    close(attention_entropy(WEIGHTS, FIRST), [np.log(2)])


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_would_never_forget(decay):
    with pytest.raises(ValueError, match=r"`baseline_decay` must be a .* in \[0, 1\)"):
        AttentionObjective(baseline_decay=decay)


def test_the_baseline_is_a_moving_average():
    layer = AttentionObjective(baseline_decay=0.8)
    layer(WEIGHTS)
    for step in range(3):
        layer.compute_losses(WEIGHTS, REAL, WEIGHTS, np.array([-2.0], "float32"))
        close(layer.baseline, -2 * (1 - 0.8 ** (step + 1)))


def test_a_row_without_words_changes_nothing():
    layer = AttentionObjective(coverage_weight=0.5, baseline_decay=0.8)
    layer(WEIGHTS)
    two = np.concatenate([WEIGHTS, WEIGHTS])
    rewards = np.array([-2.0, 0.0], "float32")
    losses = layer.compute_losses(two, np.concatenate([REAL, 0 * REAL]), two, rewards)
    close(losses["coverage"], [0.375, 0])
    close(losses["total"], [0.1875, 0])
    close(layer.baseline, -0.4)
    layer.compute_losses(WEIGHTS, 0 * REAL, WEIGHTS, rewards[1:])
    close(layer.baseline, -0.4)
