"""Rewards of tokens, advantages and whitening, number by number, padded either side."""

import math

import numpy as np
import pytest
from feedback_cases import (
    MASK,
    B,
    T,
    every_way,
    floats,
    normal,
    run,
    run_with_gradients,
)
from feedback_cases import with_noise as noise
from keras import ops

from keras_attn.training import (
    generalized_advantages,
    grpo_advantages,
    rloo_advantages,
    sequence_rewards,
    token_rewards,
    whiten,
)

KL, SCORES = normal(seed=1), normal((B,), seed=2)
REWARDS, VALUES = normal(seed=3), normal(seed=4)
# Booleans, and numbers as of a dataset.
MASKS = [MASK, MASK.astype("int32")]


def places(row):
    """The tokens of a row that count, from the first to the last."""
    return [t for t in range(T) if MASK[row, t]]


@every_way
@pytest.mark.parametrize("mask", MASKS, ids=["bool", "int32"])
def test_the_score_comes_with_the_last_token(way, mask):
    found = run(
        lambda scores, kl: token_rewards(scores, kl, mask, 0.3),
        SCORES,
        noise(KL),
        way=way,
    )
    wanted = np.zeros((B, T))
    for b in range(B):
        for t in places(b):
            wanted[b, t] = -0.3 * KL[b, t]
            if t == places(b)[-1]:
                wanted[b, t] += SCORES[b]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@every_way
def test_rewards_of_sequences(way):
    found = run(
        lambda scores, kl: sequence_rewards(scores, kl, MASK, 0.3),
        SCORES,
        noise(KL),
        way=way,
    )
    wanted = [SCORES[b] - 0.3 * sum(KL[b, t] for t in places(b)) for b in range(B)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@every_way
@pytest.mark.parametrize(
    "discount, gae_lambda", [(1.0, 0.95), (0.9, 0.7), (1, 1), (0, 0)]
)
@pytest.mark.parametrize("mask", MASKS, ids=["bool", "int32"])
def test_generalized_advantages(way, discount, gae_lambda, mask):
    advantages, returns = run(
        lambda rewards, values: generalized_advantages(
            rewards, values, mask, discount=discount, gae_lambda=gae_lambda
        ),
        noise(REWARDS),
        noise(VALUES),
        way=way,
    )
    wanted = np.zeros((B, T))
    for b in range(B):
        # A_t = Σ_l (γ λ)^l δ_{t+l}, with each δ from its definition.
        steps = places(b)
        values = [float(VALUES[b, t]) for t in steps] + [0.0]
        deltas = [
            float(REWARDS[b, t]) + discount * values[i + 1] - values[i]
            for i, t in enumerate(steps)
        ]
        for i, t in enumerate(steps):
            wanted[b, t] = sum(
                (discount * gae_lambda) ** (j - i) * deltas[j]
                for j in range(i, len(steps))
            )
    np.testing.assert_allclose(advantages, wanted, rtol=1e-5, atol=2e-6)
    expected = wanted + np.where(MASK, VALUES, 0)
    np.testing.assert_allclose(returns, expected, rtol=1e-5, atol=2e-6)


@every_way
@pytest.mark.parametrize("shift_mean", [True, False])
def test_whitening(way, shift_mean):
    found = run(
        lambda x: whiten(x, MASK, shift_mean=shift_mean), noise(5 * KL + 2), way=way
    )
    numbers = [5 * float(KL[b, t]) + 2 for b in range(B) for t in places(b)]
    mean = sum(numbers) / len(numbers)
    variance = sum((x - mean) ** 2 for x in numbers) / len(numbers)
    for b in range(B):
        for t in range(T):
            wanted = 0.0
            if MASK[b, t]:
                wanted = (5 * KL[b, t] + 2 - mean) / math.sqrt(variance + 1e-8)
                wanted += 0 if shift_mean else mean
            assert found[b, t] == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@every_way
@pytest.mark.parametrize("count", [0, 1])
def test_a_single_number_and_none_are_whitened(way, count):
    mask = np.zeros((2, 3), bool)
    mask[1, 2] = count
    values = floats([[7, 8, 9], [4, 5, 6]])
    assert (run(lambda x: whiten(x, mask), values, way=way) == 0).all()
    kept = run(lambda x: whiten(x, mask, shift_mean=False), values, way=way)
    np.testing.assert_allclose(kept, values * mask * (values == 6), rtol=1e-6)


G = 3
OF_ANSWERS = floats([1, 4, 2.5, 0.1, 0.1, 0.1, -3, 7, 0, 1e-3, 2e-3, 4e-3])


@every_way
@pytest.mark.parametrize("scale", [True, False])
def test_advantages_within_groups(way, scale):
    found = run(lambda r: grpo_advantages(r, G, scale=scale), OF_ANSWERS, way=way)
    rloo = run(lambda r: rloo_advantages(r, G), OF_ANSWERS, way=way)
    for start in range(0, len(OF_ANSWERS), G):
        group = [float(x) for x in OF_ANSWERS[start : start + G]]
        mean = sum(group) / G
        deviation = math.sqrt(sum((x - mean) ** 2 for x in group) / (G - 1))
        for i, x in enumerate(group):
            # Rewards of size 1 are rounded to 1e-7.
            wanted = (x - mean) / (deviation + 1e-4) if scale else x - mean
            assert found[start + i] == pytest.approx(wanted, rel=1e-4, abs=1e-6)
            others = sum(group[j] for j in range(G) if j != i) / (G - 1)
            assert rloo[start + i] == pytest.approx(x - others, rel=1e-4, abs=1e-6)


@every_way
def test_a_group_of_equal_rewards_has_no_advantage(way):
    # The mean of these is not 0.1 or 0.7 in float32.
    for value in (0.1, 0.7, -1e6 / 3):
        for size in (2, 3, 7):
            rewards = np.full(2 * size, value, "float32")
            for function in (grpo_advantages, rloo_advantages):
                found = run(lambda r, f=function, n=size: f(r, n), rewards, way=way)
                assert (found == 0).all()


@every_way
def test_targets_have_no_gradient(way):
    def total(kl, rewards, values, scores):
        found = [
            token_rewards(scores, kl, MASK),
            sequence_rewards(scores, kl, MASK),
            *generalized_advantages(rewards, values, MASK),
            whiten(rewards, MASK),
            grpo_advantages(scores, B),
            rloo_advantages(scores, B),
        ]
        return ops.sum(ops.stack([ops.sum(x) for x in found]))

    value, slopes = run_with_gradients(total, KL, REWARDS, VALUES, SCORES, way=way)
    assert np.isfinite(value)
    assert all((slope == 0).all() for slope in slopes)


def test_half_precision_is_computed_in_float32():
    rewards, values = (ops.cast(x, "bfloat16") for x in (REWARDS, VALUES))
    found = run(lambda r, v: generalized_advantages(r, v, MASK), rewards, values)
    rounded = [ops.cast(x, "float32") for x in (rewards, values)]
    wanted = run(lambda r, v: generalized_advantages(r, v, MASK), *rounded)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == "float32"
        np.testing.assert_array_equal(one, other)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="`mask` must have the shape of `kl`"):
        token_rewards(SCORES, KL, MASK[:, 1:])
    with pytest.raises(ValueError, match=r"`kl` must have 2 axes, \(batch, length\)"):
        sequence_rewards(SCORES, KL[0], MASK)
    for function in (token_rewards, sequence_rewards):
        with pytest.raises(ValueError, match=r"`scores` must have one number per seq"):
            function(SCORES[1:], KL, MASK)
    with pytest.raises(ValueError, match="`mask` must have the shape of `values`"):
        generalized_advantages(REWARDS, VALUES[:, 1:], MASK)
    for name in ("discount", "gae_lambda"):
        with pytest.raises(ValueError, match=f"`{name}` must be a number from 0 to 1"):
            generalized_advantages(REWARDS, VALUES, MASK, **{name: 1.01})
    for function in (grpo_advantages, rloo_advantages):
        for size in (1, 5):
            with pytest.raises(ValueError, match="at least 2 and divide the number"):
                function(OF_ANSWERS, size)
        with pytest.raises(ValueError, match="`rewards` must have 1 axes"):
            function(OF_ANSWERS[None], 3)
