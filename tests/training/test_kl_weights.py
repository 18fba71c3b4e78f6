"""The weight of the KL penalty, step by step."""

import pytest
from feedback_cases import untyped

from keras_attn.training import AdaptiveKL, FixedKL


def test_an_adaptive_weight_by_hand():
    beta = AdaptiveKL(0.15, target=6.0, horizon=10_000)
    # Twice the target is clipped to an error of 0.2.
    assert beta.update(12.0, 512) == pytest.approx(0.15 * (1 + 0.2 * 512 / 10_000))
    # An error of -0.1 is not.
    before = beta.weight
    assert beta.update(5.4, 64) == pytest.approx(before * (1 - 0.1 * 64 / 10_000))
    # No KL is clipped to -0.2, and a negative estimate too.
    before = beta.weight
    assert beta.update(-1.0, 100) == pytest.approx(before * (1 - 0.2 * 100 / 10_000))
    before = beta.weight
    assert beta.update(6.0, 100) == before == beta.weight


def test_a_fixed_weight_stays():
    beta = FixedKL(0.05)
    assert beta.update(100.0, 512) == 0.05 == beta.weight
    assert FixedKL(0).weight == 0


def test_wrong_numbers_are_named():
    for make in (FixedKL, AdaptiveKL):
        for weight in (-0.1, float("nan"), float("inf"), "0.1"):
            with pytest.raises(ValueError, match="`weight` must be a number of at lea"):
                untyped(make)(weight)
        with pytest.raises(ValueError, match="`num_episodes` must be a positive"):
            make(0.1).update(1.0, 0)
        beta = make(0.1)
        with pytest.raises(ValueError, match="`kl` must be finite.*Received: kl=nan"):
            beta.update(float("nan"), 8)
        assert beta.weight == 0.1
    for name, value in (("target", 0.0), ("horizon", 0), ("max_error", 1.0)):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            untyped(AdaptiveKL)(**{name: value})
    with pytest.raises(ValueError, match="`num_episodes` must be less than"):
        AdaptiveKL(0.1, horizon=100).update(0.0, 500)
    assert AdaptiveKL(0.1, horizon=100).update(0.0, 499) > 0
