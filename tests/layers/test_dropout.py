"""How many units are dropped, which ones, and how the others are scaled."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.layers import Dropout


def drop(layer, shape, dtype="float32"):
    ones = ops.ones(shape, dtype)
    return ops.convert_to_numpy(ops.cast(layer(ones, training=True), "float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.937])
def test_the_dropped_fraction_is_the_rate(rate, dtype):
    found = drop(Dropout(rate, seed=3, dtype=dtype), (257, 1001), dtype)
    deviation = np.sqrt(rate * (1 - rate) / found.size)
    # Keras' own is off by more in half precision, in which it draws the numbers.
    assert abs((found == 0).mean() - rate) < 4 * deviation + 2**-16
    kept = found[found != 0]
    assert (kept == kept[0]).all()
    assert kept[0] == pytest.approx(1 / (1 - rate), rel=5e-3)


def test_units_are_dropped_independently():
    found = drop(Dropout(0.5, seed=3), (400, 999)) != 0
    for one, other in (
        (found[:, 1:], found[:, :-1]),  # Neighbours share a random integer.
        (found[:, 2:], found[:, :-2]),
        (found[1:], found[:-1]),
    ):
        agree = (one == other).mean()
        assert abs(agree - 0.5) < 4 * 0.5 / np.sqrt(one.size)


def test_calls_differ_and_a_seed_reproduces_them():
    def three_masks():
        layer = Dropout(0.5, seed=7)
        return [drop(layer, (3, 5, 7)) for _ in range(3)]

    first, again = three_masks(), three_masks()
    np.testing.assert_array_equal(first, again)
    assert (first[0] != first[1]).any() and (first[1] != first[2]).any()
    assert (drop(Dropout(0.5, seed=8), (3, 5, 7)) != first[0]).any()


def test_inference_and_rates_of_0_and_1_are_deterministic():
    inputs = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    for rate, training, factor in ((0.5, False, 1), (0.0, True, 1), (1.0, True, 0)):
        found = Dropout(rate)(inputs, training=training)
        np.testing.assert_array_equal(ops.convert_to_numpy(found), factor * inputs)


def test_units_along_a_noise_shape_of_1_are_dropped_together():
    found = drop(Dropout(0.5, noise_shape=(None, 1), seed=3), (64, 9))
    assert (found == found[:, :1]).all()
    assert 0 < (found[:, 0] == 0).mean() < 1


def test_a_rate_just_below_1():
    found = drop(Dropout(1 - 1e-9, seed=1), (100, 100))
    assert np.isfinite(found).all()
    assert (found == 0).mean() > 0.99


@pytest.mark.parametrize("shape", [(1,), (7,), (0, 3), (2, 1, 3, 1)])
def test_odd_and_empty_shapes(shape):
    assert drop(Dropout(0.5, seed=1), shape).shape == shape


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="other backends use Keras' own"
)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_gradient_has_the_mask_of_the_outputs(jit_compile):
    import tensorflow as tf

    layer = Dropout(0.5, seed=3)

    @tf.function(
        jit_compile=jit_compile, input_signature=[tf.TensorSpec((7, 5), tf.float32)]
    )
    def both(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
        return outputs, tape.gradient(outputs, inputs)

    inputs = tf.fill((7, 5), 3.0)
    outputs, gradient = both(inputs)
    np.testing.assert_array_equal(outputs, 3 * gradient)
    assert set(gradient.numpy().flat) == {0.0, 2.0}
    assert (both(inputs)[0] != outputs).numpy().any()
