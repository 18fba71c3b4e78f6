"""Logits from similarities, and the range of their temperature."""

import math

import keras
import numpy as np
import pytest
from model_cases import numpy

from keras_attn.layers import SimilarityLogits
from keras_attn.training import AdamW

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 7)).astype("float32")
Y = RNG.normal(size=(5, 7)).astype("float32")


def test_logits_are_scaled_products():
    layer = SimilarityLogits()
    np.testing.assert_array_equal(numpy(layer(X)), X)
    assert [weight.name for weight in layer.weights] == ["logit_scale"]
    np.testing.assert_allclose(numpy(layer.logit_scale), math.log(1 / 0.07), 1e-6)
    np.testing.assert_allclose(numpy(layer(X, Y)), X @ Y.T / 0.07, rtol=1e-5, atol=1e-4)


def test_logits_may_have_a_bias():
    layer = SimilarityLogits(10.0, initial_bias=-10.0)
    layer(X)
    assert [weight.name for weight in layer.weights] == ["logit_scale", "logit_bias"]
    np.testing.assert_allclose(
        numpy(layer(X, Y)), 10 * X @ Y.T - 10, rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, AdamW])
@pytest.mark.parametrize("max_scale", [100.0, None])
def test_the_optimizer_keeps_the_scale_in_its_range(optimizer, max_scale):
    layer = SimilarityLogits(max_scale=max_scale)
    layer(X)
    updates = optimizer(learning_rate=10.0)
    found = []
    for gradient in (-1.0, 1.0, 1.0):
        updates.apply([np.float32(gradient)], [layer.logit_scale])
        found.append(float(numpy(layer.logit_scale)))
    if max_scale is None:
        assert found[0] > math.log(101) and found[-1] < found[0]
    else:
        np.testing.assert_allclose(found[0], math.log(100), rtol=1e-6)
        assert found[-1] == 0.0


def test_the_largest_scale_is_not_below_the_first_or_one():
    for scales in ((2.0, 1.5), (0.1, 0.5)):
        with pytest.raises(ValueError, match="`max_scale` must be at least 1"):
            SimilarityLogits(scales[0], max_scale=scales[1])
