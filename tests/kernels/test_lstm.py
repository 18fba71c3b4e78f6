"""LSTMs with gradients written out, against Keras' loop and TensorFlow's gradient."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn.kernels.lstm import LoopLSTM, has_fast_lstm, lstm
from keras_attn.layers.recurrent.recurrent import Recurrent

B, T, D, U = 3, 7, 2, 5


@pytest.fixture(scope="module")
def cell():
    cell = keras.layers.LSTMCell(U, name="cell")
    cell.build((B, D))
    rng = np.random.default_rng(0)
    for weight in cell.weights:
        weight.assign(rng.normal(0, 0.7, weight.shape))
    return cell


def normal(*shape, seed=0) -> Any:
    return tf.constant(np.random.default_rng(seed).normal(size=shape), "float32")


def outputs_and_gradients(call, cell, inputs, states):
    """Outputs of a layer, and gradients of all that they depend on."""
    weights = [weight.value for weight in cell.trainable_variables]
    tape: Any = tf.GradientTape()
    with tape:
        tape.watch([inputs, *states])
        outputs = call(inputs, states)
        pairs = enumerate(tf.nest.flatten(outputs))
        loss: Any = sum(tf.reduce_sum(x * normal(*x.shape, seed=i)) for i, x in pairs)
    return tf.nest.flatten([outputs, tape.gradient(loss, [inputs, *states, *weights])])


@pytest.mark.parametrize(
    "backwards, masked, jit_compile",
    [
        (False, False, False),
        (True, False, True),
        (False, True, True),
        (True, True, False),
    ],
)
def test_as_keras(cell, backwards, masked, jit_compile):
    mask = tf.constant(np.random.default_rng(4).random((B, T)) > 0.4)
    mask = mask if masked else None
    results = []
    for kind in (Recurrent, keras.layers.RNN):
        layer = kind(
            cell, return_sequences=True, return_state=True, go_backwards=backwards
        )

        @tf.function(jit_compile=jit_compile, autograph=False)
        def run(inputs, states, layer=layer):
            def call(inputs, states):
                return layer(inputs, initial_state=states, mask=mask, training=True)

            return outputs_and_gradients(call, cell, inputs, states)

        states = [normal(B, U, seed=2), normal(B, U, seed=3)]
        results.append(run(normal(B, T, D), states))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("shape", [(B, T), (B, T, 1)])
@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_the_masks_of_keras(dtype, shape, bidirectional):
    """`Bidirectional` has zeros at steps that do not count, in training too."""
    rng = np.random.default_rng(4)
    mask = tf.constant((rng.random(shape) > 0.4).astype(dtype))
    results = []
    for kind in (Recurrent, keras.layers.RNN):
        layer: Any = kind(
            keras.layers.LSTMCell(U), return_sequences=True, zero_output_for_mask=True
        )
        if bidirectional:
            layer = keras.layers.Bidirectional(layer)
        layer.build((B, T, D))
        for index, weight in enumerate(layer.weights):
            weight.assign(np.random.default_rng(index).normal(size=weight.shape))
        results.append(layer(normal(B, T, D), mask=mask, training=True))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


def test_a_cell_of_another_dtype_than_its_layer():
    cell = keras.layers.LSTMCell(U, dtype="mixed_bfloat16")
    inputs, results = normal(B, T, D), []
    for training in (True, False):
        layer: Any = Recurrent(cell, return_sequences=True)
        results.append(layer(inputs, training=training))
        assert results[-1].dtype == "float32"
    np.testing.assert_allclose(*results, atol=0.03)


def test_a_loop_that_does_more(cell):
    """Each step reads the last state, as a decoder that attends does."""
    first = normal(B, U)

    def ours(inputs, states):
        loop: Any = LoopLSTM(cell, (B, T), "float32")
        bias: Any = loop.bias_per_step
        (h, c), gate_inputs, hidden = states, [], []
        for t in range(T):
            h, (h, c), used = loop.step(inputs[:, t] * h[:, :D], (h, c), bias[:, t])
            hidden.append(h)
            gate_inputs.append(used)
        loop.finish(tf.stack(gate_inputs, 1))
        return tf.stack(hidden, 1), c

    def theirs(inputs, states):
        (h, c), hidden = states, []
        for t in range(T):
            h, (h, c) = cell(inputs[:, t] * h[:, :D], [h, c])
            hidden.append(h)
        return tf.stack(hidden, 1), c

    results = [
        tf.function(outputs_and_gradients, autograph=False)(
            call, cell, normal(B, T, D), [first, first]
        )
        for call in (ours, theirs)
    ]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_half_precision(cell):
    inputs = tf.cast(normal(B, T, D), "bfloat16")
    zeros = [tf.zeros((B, U), "bfloat16")] * 2
    states, (h, c) = lstm(cell, inputs, zeros)
    assert states.dtype == h.dtype == c.dtype == "bfloat16"
    expected, _ = lstm(cell, tf.cast(inputs, "float32"), [tf.zeros((B, U))] * 2)
    np.testing.assert_allclose(tf.cast(states, "float32"), expected, atol=0.03)


def test_cells_with_other_equations_are_left_to_keras(cell):
    assert has_fast_lstm(cell)
    others = [
        keras.layers.GRUCell(U),
        keras.layers.LSTMCell(U, activation="relu"),
        keras.layers.LSTMCell(U, recurrent_activation="hard_sigmoid"),
        keras.layers.LSTMCell(U, use_bias=False),
        keras.layers.LSTMCell(U, dropout=0.5),
        keras.layers.LSTMCell(U, recurrent_dropout=0.5),
    ]
    for other in others:
        other.build((B, D))
        assert not has_fast_lstm(other)


def test_a_gradient_of_second_order_is_refused(cell):
    inputs, zeros = normal(B, T, D), [tf.zeros((B, U))] * 2
    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            states, _ = lstm(cell, inputs, zeros)
        gradient: Any = tape.gradient(states, inputs)
    with pytest.raises(LookupError, match="an LSTM has no second-order gradient"):
        outer.gradient(gradient, inputs)
