"""Log-probabilities, entropies and KL of sampled tokens, number by number."""

import math

import keras
import numpy as np
import pytest
from feedback_cases import (
    every_way,
    floats,
    normal,
    run,
    run_with_gradients,
    slopes_of,
    untyped,
)
from keras import ops

from keras_attn.ops import token_entropies, token_kl, token_log_probabilities

B, T, V = 3, 5, 11
LOGITS = normal((B, T, V), scale=3)
TOKENS = np.random.default_rng(1).integers(0, V, (B, T)).astype("int32")


def probabilities(logits, temperature):
    """The softmax of a row."""
    powers = [math.exp(float(x) / temperature) for x in logits]
    return [power / sum(powers) for power in powers]


@every_way
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities(way, temperature):
    def total(logits):
        found = token_log_probabilities(logits, TOKENS, temperature)
        return ops.sum(weights * found), found

    def wanted(logits):
        rows = [probabilities(x, temperature) for row in logits for x in row]
        found = [math.log(p[token]) for p, token in zip(rows, TOKENS.flat, strict=True)]
        return np.reshape(found, (B, T))

    weights = normal((B, T), seed=2)
    (_, found), (slopes,) = run_with_gradients(total, LOGITS, way=way)
    np.testing.assert_allclose(found, wanted(LOGITS), rtol=1e-5, atol=1e-6)
    expected = slopes_of(lambda x: (weights * wanted(x)).sum(), LOGITS)
    np.testing.assert_allclose(slopes, expected, atol=2e-6)


@every_way
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropies(way, temperature):
    def wanted(logits):
        rows = [[probabilities(x, temperature) for x in row] for row in logits]
        return np.array([[-sum(p * math.log(p) for p in x) for x in r] for r in rows])

    def total(logits):
        found = token_entropies(logits, temperature)
        return ops.sum(found), found

    (_, found), (slopes,) = run_with_gradients(total, LOGITS, way=way)
    np.testing.assert_allclose(found, wanted(LOGITS), rtol=1e-5)
    expected = slopes_of(lambda x: wanted(x).sum(), LOGITS)
    np.testing.assert_allclose(slopes, expected, atol=2e-6)


def test_a_token_that_is_excluded_has_no_entropy():
    logits = np.zeros((1, 1, 3), "float32")
    logits[0, 0, 1] = -np.inf
    found = run(token_entropies, logits)
    assert found[0, 0] == pytest.approx(math.log(2))


def test_large_logits_in_half_precision():
    # The product with a vocabulary of logits in bfloat16 has few digits, the softmax
    # of it has all.
    logits = ops.cast(LOGITS * 20, "bfloat16")
    rounded = np.asarray(ops.convert_to_numpy(ops.cast(logits, "float32")))
    found = token_log_probabilities(logits, TOKENS)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    wanted = token_log_probabilities(rounded, TOKENS)
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (found, wanted)))
    assert keras.backend.standardize_dtype(token_entropies(logits).dtype) == "float32"


@every_way
def test_estimates_of_the_kl(way):
    new, old = normal((B, T), seed=3), normal((B, T), seed=4)
    for kind in ("k1", "k3"):
        found, slopes = run_with_gradients(
            lambda a, b, kind=kind: (
                ops.sum(untyped(token_kl)(a, b, kind)),
                untyped(token_kl)(a, b, kind),
            ),
            new,
            old,
            way=way,
        )
        for place in np.ndindex(B, T):
            x = float(new[place]) - float(old[place])
            value = x if kind == "k1" else math.exp(-x) - 1 + x
            slope = 1.0 if kind == "k1" else 1 - math.exp(-x)
            assert found[1][place] == pytest.approx(value, rel=1e-5, abs=1e-6)
            assert slopes[0][place] == pytest.approx(slope, rel=1e-5, abs=1e-6)
            assert slopes[1][place] == pytest.approx(-slope, rel=1e-5, abs=1e-6)


def test_almost_equal_policies_keep_their_digits():
    # exp(-x) - 1 + x would be a difference of rounded numbers.
    found = run(lambda a, b: token_kl(a, b, "k3"), floats([[1e-2]]), np.zeros((1, 1)))
    assert found[0, 0] == pytest.approx(1e-4 / 2 - 1e-6 / 6, rel=1e-4)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"`logits` must have 3 axes.*\(5, 11\)"):
        token_log_probabilities(LOGITS[0], TOKENS)
    with pytest.raises(ValueError, match="`logits` must have 3 axes"):
        token_entropies(LOGITS[0])
    with pytest.raises(ValueError, match="`token_ids` must have 2 axes"):
        token_log_probabilities(LOGITS, TOKENS[0])
    for temperature in (0, -1.0, float("nan"), float("inf"), "hot"):
        with pytest.raises(ValueError, match="`temperature` must be a number above 0"):
            untyped(token_log_probabilities)(LOGITS, TOKENS, temperature)
    with pytest.raises(ValueError, match="`estimate` must be one of 'k1', 'k3'"):
        untyped(token_kl)(LOGITS[:, :, 0], LOGITS[:, :, 1], "k2")
