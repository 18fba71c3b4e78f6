"""GELU with its gradient written out, against the formulas."""

import math

import keras
import numpy as np
import pytest
from attention_reference import gelu as exact

from keras_attn.kernels.gelu import get_activation, with_fast_gradient
from keras_attn.layers.blocks.feed_forward import FeedForward
from keras_attn.ops import gelu_tanh, quick_gelu

X = np.linspace(-12, 12, 241)
UPSTREAM = np.random.default_rng(0).normal(size=X.shape)
# A few ulps of erf or tanh, times the slope of their argument.
ROUNDING = {"float64": 1e-8, "float32": 4e-6, "bfloat16": 2.0**-7, "float16": 2.0**-10}
only_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="other backends keep the activation"
)


def approximate(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick(x):
    return x / (1 + np.exp(-1.702 * x))


FORMULAS = {
    keras.activations.gelu: exact,
    gelu_tanh: approximate,
    quick_gelu: quick,
}


@pytest.mark.each_value
@only_tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("fixed", [False, True])
def test_gelu_and_its_gradient_are_the_formulas(activation, dtype, jit_compile, fixed):
    import tensorflow as tf

    formula, kernel = FORMULAS[activation], with_fast_gradient(activation, fixed)
    assert kernel is not activation

    @tf.function(jit_compile=jit_compile)
    def both(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = kernel(x)
        return y, tape.gradient(y, x, output_gradients=upstream)

    x, upstream = tf.cast(X, dtype), tf.cast(UPSTREAM, dtype)
    outputs, gradients = both(x, upstream)
    assert outputs.dtype == gradients.dtype == dtype
    # The formulas of the inputs as rounded to that precision.
    x, upstream = (tf.cast(a, "float64").numpy() for a in (x, upstream))
    expected = formula(x)
    slope = (formula(x + 1e-5) - formula(x - 1e-5)) / 2e-5
    for found, value in ((outputs, expected), (gradients, upstream * slope)):
        error = np.abs(tf.cast(found, "float64").numpy() - value)
        assert (error <= ROUNDING[dtype] * (1 + np.abs(value))).all()


@only_tensorflow
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("activation", FORMULAS)
def test_the_gradient_has_a_gradient(activation, fixed, in_graph):
    import tensorflow as tf

    x, curvatures = tf.constant([-1.5, 0.0, 0.5, 2.0]), []
    for function in (activation, with_fast_gradient(activation, fixed)):

        def curvature(x, function=function):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = function(x)
                slope = inner.gradient(y, x)
            return outer.gradient(slope, x)

        call = tf.function(lambda x: curvature(x)) if in_graph else curvature
        curvatures.append(call(x))
    np.testing.assert_allclose(*curvatures, atol=1e-6)


def test_other_activations_are_unchanged():
    for activation in (keras.activations.relu, keras.activations.linear, exact):
        assert with_fast_gradient(activation) is activation


@pytest.mark.parametrize("activation", FORMULAS)
def test_a_feed_forward_layer_returns_the_same_in_training(activation):
    layer = FeedForward(29, activation=activation)
    inputs = np.random.default_rng(1).normal(size=(3, 5, 7)).astype("float32")
    inference, training = (layer(inputs, training=on) for on in (False, True))
    difference = keras.ops.convert_to_numpy(inference) - keras.ops.convert_to_numpy(
        training
    )
    assert np.abs(difference).max() < 1e-5


def test_activations_have_names():
    assert get_activation("quick_gelu") is quick_gelu
    assert get_activation("gelu_tanh") is gelu_tanh
    assert get_activation("gelu") is keras.activations.gelu
    assert get_activation(None) is keras.activations.linear
    with pytest.raises(ValueError, match="gelu_fast"):
        get_activation("gelu_fast")
