"""`keras.RematScope`: activations are recomputed, results are unchanged."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import gradients

from keras_attn import layers

pytestmark = pytest.mark.compiled

IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
X = np.random.default_rng(0).normal(size=(3, 5, 6)).astype("float32")
MASK = np.arange(5) < np.array([[5], [3], [4]])
MODES = {
    "full": {},
    "activations": {},
    "larger_than": {"output_size_threshold": 8},
    "list_of_layers": {"layer_names": ["block", "feed_forward"]},
}


def small_model(dropout=0.0):
    inputs = keras.Input((None, 6), name="inputs")
    mask = keras.Input((None,), dtype="bool", name="mask")
    hidden = layers.TransformerEncoderBlock(
        2, 7, activation="gelu", dropout=dropout, seed=3, name="block"
    )(inputs, padding_mask=mask)
    hidden = ops.multiply(keras.layers.BatchNormalization(name="norm")(hidden), 2)
    outputs = keras.layers.Dense(4, activation="tanh", name="dense")(hidden[:, 1:])
    return keras.Model([inputs, mask], outputs)


def fit(model, start, **options):
    model.set_weights(start)
    model.compile("sgd", "mse", **options)
    history = model.fit(
        [X, MASK], np.ones((3, 4, 4)), epochs=2, shuffle=False, verbose=0
    )
    return history.history["loss"], model.get_weights()


# Every mode eagerly; compiled functions do not depend on the mode.
@pytest.mark.parametrize(
    "mode, options",
    [
        *((mode, {"run_eagerly": True}) for mode in MODES),
        pytest.param("full", {"jit_compile": False}, marks=pytest.mark.variation),
        ("larger_than", {"jit_compile": True}),
    ],
)
def test_fitting_with_dropout_and_moving_averages_is_unchanged(mode, options):
    plain = small_model(dropout=0.3)
    start = plain.get_weights()
    expected = fit(plain, start, **options)
    with keras.RematScope(mode, **MODES[mode]):
        again = small_model(dropout=0.3)
    found = fit(again, start, **options)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_the_recomputation_has_the_precision_of_the_forward_pass():
    found = []
    for mode in (None, "full"):
        with keras.RematScope(mode):
            layer = layers.FeedForward(7, dtype="mixed_bfloat16")
            layer.build(X.shape)
        rng = np.random.default_rng(1)
        for weight in layer.weights:
            weight.assign(rng.normal(size=weight.shape))
        found.append(gradients(layer, inputs=X))
    for one, other in zip(*(each.values() for each in found), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(not IS_TENSORFLOW, reason="reads the operations of a tf.function")
def test_activations_are_computed_twice():
    import tensorflow as tf

    def exponentials(mode):
        with keras.RematScope(mode):
            layer = layers.MultiHeadAttention(2, 3)
            layer.build(X.shape)

        def gradients(inputs):
            with tf.GradientTape() as tape:
                total = tf.reduce_sum(layer(inputs))
            return tape.gradient(total, [w.value for w in layer.weights])

        specification = tf.TensorSpec(X.shape)
        graph = tf.function(gradients).get_concrete_function(specification).graph
        return sum(node.type == "Softmax" for node in graph.get_operations())

    assert (exponentials(None), exponentials("full")) == (1, 2)
