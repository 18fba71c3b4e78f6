"""The losses of PPO, GRPO and RLOO: values, gradients and what they report."""

import math
from typing import Any

import numpy as np
import pytest
from feedback_cases import (
    MASK,
    B,
    T,
    every_way,
    normal,
    run,
    run_with_gradients,
    slopes_of,
    untyped,
)
from feedback_cases import with_noise as noise
from keras import ops

from keras_attn.losses import grpo_loss, ppo_policy_loss, ppo_value_loss, rloo_loss

# Ratios on both sides of what is clipped.
OLD = normal(seed=1) - 2
NEW = OLD + normal(seed=2, scale=0.5)
REFERENCE = OLD + normal(seed=3, scale=0.5)
ADVANTAGES, OF_SEQUENCES = normal(seed=4), normal((B,), seed=5)
VALUES, OLD_VALUES, RETURNS = (normal(seed=seed, scale=0.4) for seed in (6, 7, 8))
REAL = [(b, t) for b in range(B) for t in range(T) if MASK[b, t]]
ranges = pytest.mark.parametrize("clip_range", [0.2, (0.1, 0.3)])


def limits(clip_range):
    """How far below and above 1."""
    return (clip_range, clip_range) if isinstance(clip_range, float) else clip_range


def clipped(difference, advantage, clip_range):
    """The loss of a ratio, the ratio, and whether it is clipped."""
    below, above = limits(clip_range)
    ratio = math.exp(difference)
    if advantage > 0 and ratio > 1 + above:
        return -advantage * (1 + above), ratio, True
    if advantage < 0 and ratio < 1 - below:
        return -advantage * (1 - below), ratio, True
    return -advantage * ratio, ratio, False


def mean(numbers):
    """Of a list."""
    return sum(numbers) / len(numbers)


def check(function, wanted, *inputs, way):
    """The fields of a `PolicyLoss` or `ValueLoss`, and the gradients of the loss.

    Args:
        function: The loss of `inputs`, of which only the first one has a gradient.
        wanted: The fields, by the first of the inputs in float64.
        *inputs: Tables of numbers.
        way: See `every_way`.

    Returns:
        The fields.
    """
    inputs = [noise(x) for x in inputs]
    found, (slopes, *others) = run_with_gradients(function, *inputs, way=way)
    expected = wanted(inputs[0].astype("float64"))
    for name, number, field in zip(found._fields, found, expected, strict=True):
        assert number == pytest.approx(field, rel=2e-5, abs=1e-7), name
    differences = slopes_of(lambda x: wanted(x)[0], inputs[0])
    np.testing.assert_allclose(slopes, differences, atol=1e-6)
    assert all((slope == 0).all() for slope in others)
    return expected


@every_way
@ranges
def test_the_policy_of_ppo(way, clip_range):
    def wanted(new):
        parts = [
            clipped(new[i] - float(OLD[i]), float(ADVANTAGES[i]), clip_range)
            for i in REAL
        ]
        losses, ratios, shares = zip(*parts, strict=True)
        squares = [(float(new[i]) - float(OLD[i])) ** 2 / 2 for i in REAL]
        return mean(losses), mean(shares), mean(ratios), mean(squares), 0.0

    def loss(new, old, advantages):
        return ppo_policy_loss(new, old, advantages, MASK, clip_range=clip_range)

    expected = check(loss, wanted, NEW, OLD, ADVANTAGES, way=way)
    assert 0 < expected[1] < 1


@every_way
@ranges
def test_the_values_of_ppo(way, clip_range):
    below, above = limits(clip_range)

    def wanted(values):
        losses, shares = [], []
        for i in REAL:
            low, high = float(OLD_VALUES[i]) - below, float(OLD_VALUES[i]) + above
            free = (values[i] - float(RETURNS[i])) ** 2
            limited = (min(max(values[i], low), high) - float(RETURNS[i])) ** 2
            losses.append(max(free, limited) / 2)
            shares.append(limited > free)
        return mean(losses), mean(shares)

    def loss(new, old, returns):
        return ppo_value_loss(new, old, returns, MASK, clip_range=clip_range)

    expected = check(loss, wanted, VALUES, OLD_VALUES, RETURNS, way=way)
    assert 0 < expected[1] < 1


@pytest.mark.each_value
@every_way
@ranges
@pytest.mark.parametrize("average", ["sequence", "token"])
@pytest.mark.parametrize("kl_weight", [0.0, 0.04])
def test_grpo(way, clip_range, average, kl_weight):
    def wanted(new):
        rows: Any = [[] for _ in range(B)]
        ratios, shares, squares, kls = [], [], [], []
        for b, t in REAL:
            difference, advantage = new[b, t] - float(OLD[b, t]), float(OF_SEQUENCES[b])
            loss, ratio, share = clipped(difference, advantage, clip_range)
            x = new[b, t] - float(REFERENCE[b, t])
            kls.append(math.exp(-x) - 1 + x)
            rows[b].append(loss + kl_weight * kls[-1])
            ratios.append(ratio)
            shares.append(share)
            squares.append(difference**2 / 2)
        if average == "sequence":
            loss = mean([mean(row) if row else 0.0 for row in rows])
        else:
            loss = mean(sum(rows, []))
        return loss, mean(shares), mean(ratios), mean(squares), mean(kls)

    options = {"kl_weight": kl_weight, "clip_range": clip_range, "average": average}

    def loss(new, old, reference):
        return grpo_loss(new, old, OF_SEQUENCES, MASK, reference=reference, **options)

    check(loss, wanted, NEW, OLD, REFERENCE, way=way)


@every_way
@ranges
def test_rloo(way, clip_range):
    def wanted(new):
        parts = []
        for b in range(B):
            difference = sum(
                new[b, t] - float(OLD[b, t]) for t in range(T) if MASK[b, t]
            )
            parts.append(clipped(difference, float(OF_SEQUENCES[b]), clip_range))
        losses, ratios, shares = zip(*parts, strict=True)
        squares = [(float(new[i]) - float(OLD[i])) ** 2 / 2 for i in REAL]
        return mean(losses), mean(shares), mean(ratios), mean(squares), 0.0

    def loss(new, old):
        return rloo_loss(new, old, OF_SEQUENCES, MASK, clip_range=clip_range)

    expected = check(loss, wanted, NEW, OLD, way=way)
    assert 0 < expected[1] < 1


def losses():
    """Each loss as a function of the policy's log-probabilities."""
    return {
        "ppo": lambda new: ppo_policy_loss(new, noise(OLD), noise(ADVANTAGES), MASK),
        "grpo": lambda new: grpo_loss(
            new,
            noise(OLD),
            OF_SEQUENCES,
            MASK,
            reference=noise(OLD),
            kl_weight=0.1,
        ),
        "rloo": lambda new: rloo_loss(new, noise(OLD), OF_SEQUENCES, MASK),
    }


@every_way
def test_nothing_to_learn_from_is_a_loss_of_0(way):
    nothing = np.zeros((B, T), bool)
    nan = np.full((B, T), np.float32("nan"))
    for function, given in (
        (ppo_policy_loss, (nan, nan, nan)),
        (ppo_value_loss, (nan, nan, nan)),
        (grpo_loss, (nan, nan, OF_SEQUENCES)),
        # The ratio of a sequence without tokens is 1.
        (rloo_loss, (nan, nan, 0 * OF_SEQUENCES)),
    ):
        found, slopes = run_with_gradients(
            lambda *given, f=function: untyped(f)(*given, nothing), *given, way=way
        )
        assert found.loss == 0
        assert all((slope == 0).all() for slope in slopes)


def test_half_precision_is_computed_in_float32():
    for function in losses().values():
        rounded = ops.cast(NEW, "bfloat16")
        found = run(function, rounded)
        assert found.loss.dtype == "float32"
        assert found == run(function, ops.cast(rounded, "float32"))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="`mask` must have the shape of `old_log_prob"):
        ppo_policy_loss(NEW, OLD[:, 1:], ADVANTAGES, MASK)
    with pytest.raises(ValueError, match="`mask` must have the shape of `advantages`"):
        ppo_policy_loss(NEW, OLD, ADVANTAGES[1:], MASK)
    with pytest.raises(ValueError, match="`mask` must have the shape of `returns`"):
        ppo_value_loss(VALUES, OLD_VALUES, RETURNS[1:], MASK)
    for function in (grpo_loss, rloo_loss):
        with pytest.raises(ValueError, match=r"`advantages` must have one number per"):
            function(NEW, OLD, OF_SEQUENCES[1:], MASK)
    for clip_range in (0, -0.1, (0.1, 0), float("nan")):
        with pytest.raises(ValueError, match="`clip_range` must be a number above 0"):
            untyped(rloo_loss)(NEW, OLD, OF_SEQUENCES, MASK, clip_range=clip_range)
    for clip_range in ("0.2", (0.1, 0.2, 0.3), None):
        with pytest.raises(ValueError, match="above 0, or two of them, below and abo"):
            untyped(ppo_value_loss)(
                VALUES, OLD_VALUES, RETURNS, MASK, clip_range=clip_range
            )
    with pytest.raises(ValueError, match="`average` must be one of 'sequence', 'tok"):
        untyped(grpo_loss)(NEW, OLD, OF_SEQUENCES, MASK, average="batch")
    with pytest.raises(ValueError, match="`reference` must be given if `kl_weight`"):
        grpo_loss(NEW, OLD, OF_SEQUENCES, MASK, kl_weight=0.1)
