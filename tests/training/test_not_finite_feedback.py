"""Rewards, ratings and probabilities that are not finite never become a zero."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn.losses import (
    dpo_loss,
    grpo_loss,
    ppo_policy_loss,
    ppo_value_loss,
    ranking_loss,
    rloo_loss,
)
from keras_attn.metrics import RankingAccuracy
from keras_attn.ops import token_entropies
from keras_attn.training import (
    generalized_advantages,
    grpo_advantages,
    rloo_advantages,
    whiten,
)

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="compiles with tf.function"
)

COMPILED = pytest.mark.parametrize("jit_compile", [False, True])
WRONG = pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])


def in_graph(function, *arrays, jit_compile):
    """A function's result where the values of its inputs are not known."""
    tensors = [tf.constant(array, "float32") for array in arrays]
    compiled = tf.function(function, jit_compile=jit_compile, autograph=False)
    return np.array(compiled(*tensors))


@pytest.mark.each_value
@COMPILED
@WRONG
@pytest.mark.parametrize("size", [2, 4, 9])
@pytest.mark.parametrize("advantages", [grpo_advantages, rloo_advantages])
def test_a_reward_that_is_not_finite(advantages, size, wrong, jit_compile):
    rewards = np.arange(3.0 * size)
    rewards[size : 2 * size] = 5  # All are equal.
    for place in (0, size - 1):
        given = rewards.copy()
        given[place] = wrong
        found = in_graph(lambda x: advantages(x, size), given, jit_compile=jit_compile)
        assert np.isnan(found[place]) and not (found[:size] == 0).any()
        # The other groups learn.
        np.testing.assert_array_equal(found[size : 2 * size], np.zeros(size))
        expected = advantages(rewards, size)[2 * size :]
        np.testing.assert_allclose(found[2 * size :], expected, atol=1e-6)
        with pytest.raises(ValueError, match=rf"`rewards` must be .* {wrong} at index"):
            advantages(given, size)
    given = np.full(size, wrong)
    found = in_graph(lambda x: advantages(x, size), given, jit_compile=jit_compile)
    assert np.isnan(found).all()


@COMPILED
@WRONG
def test_a_rating_that_is_not_finite(wrong, jit_compile):
    scores = [[0.3, -0.2, 0.9], [0.1, 0.2, 0.3]]
    ratings = np.array([[wrong, 1, 2], [0, 1, 1]])
    for margin in (0.0, 0.5):
        found = in_graph(
            lambda x, y, margin=margin: ranking_loss(x, y, margin=margin),
            scores,
            ratings,
            jit_compile=jit_compile,
        )
        expected = ranking_loss(scores[1:], ratings[1:], margin=margin)
        assert np.isnan(found[0]) and np.isclose(found[1], expected[0])
    with pytest.raises(ValueError, match="`ratings` must be finite"):
        ranking_loss(scores, ratings)
    # An answer that does not exist has no rating.
    exists = np.isfinite(ratings)
    found = ranking_loss(scores, ratings, is_real=exists)
    np.testing.assert_allclose(
        found, ranking_loss(scores, [[9, 1, 2], [0, 1, 1]], is_real=exists)
    )


def test_the_accuracy_of_scores_that_are_not_finite():
    def accuracy(ratings, scores, weights=None):
        metric = RankingAccuracy(2)
        metric.update_state(ratings, scores, weights)
        return float(metric.result())

    assert accuracy([1.0, 0.0, 1.0, 0.0], [0.3, 0.1, 0.2, 0.4]) == 0.5
    assert np.isnan(accuracy([1.0, 0.0, 1.0, 0.0], [0.3, 0.1, np.nan, 0.4]))
    # Without a weight, or in a tie, it does not count.
    weights = [1.0, 1.0, 0.0, 0.0]
    assert accuracy([1.0, 0.0, 1.0, 0.0], [0.3, 0.1, np.nan, 0.4], weights) == 1
    assert accuracy([1.0, 0.0, 1.0, 1.0], [0.3, 0.1, np.nan, 0.4]) == 1


@pytest.mark.each_value
@COMPILED
@pytest.mark.parametrize("tokens", [2, 9])
def test_losses_of_numbers_that_are_none(tokens, jit_compile):
    """Of each argument, one number is NaN."""
    rng = np.random.default_rng(0)
    table = [rng.normal(size=(3, tokens)) for _ in range(3)]
    per_row = [rng.normal(size=9) for _ in range(4)]
    mask = np.ones((3, tokens))

    def numbers(loss: Any, *shape):
        return lambda *arrays: loss(*arrays, tf.ones(shape)).loss

    shape = (3, tokens)
    functions = [
        (numbers(ppo_policy_loss, *shape), table),
        (numbers(ppo_value_loss, *shape), table),
        (numbers(grpo_loss, *shape), [*table[:2], per_row[0][:3]]),
        (numbers(rloo_loss, *shape), [*table[:2], per_row[0][:3]]),
        (dpo_loss, per_row),
        (lambda *x: dpo_loss(*x, kind="hinge"), per_row),
        (lambda x: whiten(x, mask), table[:1]),
        (lambda x, y: generalized_advantages(x, y, mask)[0], table[:2]),
    ]
    for function, arrays in functions:
        for number in range(len(arrays)):
            given = [array.copy() for array in arrays]
            given[number].flat[1] = np.nan
            found = in_graph(function, *given, jit_compile=jit_compile)
            assert np.isnan(found).any(), (function, number)


def test_the_entropy_of_logits_that_are_not_finite():
    logits = [[[0.0, -np.inf, 0.0], [0.0, np.nan, 0.0], [np.inf, 0.0, 0.0]]]
    found = np.array(token_entropies(logits))[0]
    assert np.isclose(found[0], np.log(2)) and np.isnan(found[1:]).all()
