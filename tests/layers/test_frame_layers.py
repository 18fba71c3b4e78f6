"""Layers of frames: what they compute, and what they refuse."""

import re
from typing import Any

import keras
import numpy as np
import pytest

from keras_attn.layers import AdditiveAttention, FrameAttentionRNN, PerFrame


def test_every_frame_is_computed_alone():
    layer = PerFrame(keras.layers.Conv2D(3, 2, strides=2))
    frames = np.random.default_rng(0).normal(size=(2, 5, 7, 9, 3)).astype("float32")
    got = layer(frames)
    assert layer.compute_output_shape((None, None, 7, 9, 3)) == (None, None, 3, 4, 3)
    for step in range(5):
        np.testing.assert_allclose(
            got[:, step], layer.layer(frames[:, step]), rtol=0, atol=1e-6
        )


def per_frame(layer: Any, shape=(2, 3)):
    """A call with inputs of a shape."""
    return lambda: PerFrame(layer)(np.zeros(shape, "float32"))


def watch(shape, states=None):
    """A call with a memory of a shape."""
    layer = FrameAttentionRNN(keras.layers.LSTMCell(3), AdditiveAttention(2))
    return lambda: layer(np.zeros(shape, "float32"), states)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (per_frame("conv"), TypeError, "`layer` must be a Keras layer, .*layer='conv'"),
        (
            per_frame(keras.layers.ReLU()),
            ValueError,
            "`inputs` must have the axes (batch, steps, …), at least 3. "
            "Received: inputs.shape=(2, 3)",
        ),
        (
            watch((2, 3, 4, 5), [np.zeros((2, 3), "float32")]),
            ValueError,
            "`initial_state` must hold one tensor for each state of the cell. "
            "Received: 1 of 2 states",
        ),
    ],
)
def test_wrong_arguments_are_named(call, error, message):
    if error is ValueError:
        message = re.escape(message)
    with pytest.raises(error, match=message):
        call()
