"""Layers of equal configuration are traced once, and others are not mixed up.

The contract of layers checks that cached specs equal the outputs of a call.
"""

import functools
import gc
import weakref
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.layers import (
    AttentionRNN,
    DotProductAttention,
    TransformerEncoderBlock,
    output_specs,
)

D = 21


@pytest.fixture
def traced(monkeypatch):
    """The encoder blocks whose `call` was traced, in order."""
    monkeypatch.setattr(output_specs, "_cached_specs", {})
    blocks, call = [], TransformerEncoderBlock.call

    @functools.wraps(call)
    def recorded(self, inputs, **options):
        blocks.append(self)
        return call(self, inputs, **options)

    monkeypatch.setattr(TransformerEncoderBlock, "call", recorded)
    return blocks


def block(**options):
    return TransformerEncoderBlock(3, 37, **options)


def symbol(width=D, **options):
    return keras.Input((None, width), **options)


def test_blocks_of_a_model_are_traced_once(traced):
    hidden = symbol()
    mask = keras.Input((None,), dtype="bool")
    for index in range(3):
        layer = block(seed=index, name=f"block_{index}")
        hidden = layer(hidden, padding_mask=mask)
    assert len(traced) == 1
    assert hidden.shape == (None, None, D)


@pytest.mark.parametrize(
    "first, second",
    [
        ({}, {"return_attention_scores": True}),
        ({}, {"padding_mask": keras.KerasTensor((None, None), dtype="bool")}),
        ({}, {"training": True}),
    ],
)
def test_a_call_with_other_arguments_is_traced(traced, first, second):
    block()(symbol(), **first)
    block()(symbol(), **second)
    assert len(traced) == 2


def test_another_width_length_precision_or_option_is_traced(traced):
    block()(symbol())
    block()(symbol(width=2 * D))
    block()(keras.Input((5, D)))
    assert block(dtype="mixed_bfloat16")(symbol()).dtype == "bfloat16"
    block(dtype="mixed_float16")(symbol())
    block(norm_first=True)(symbol())
    assert len(traced) == 6


def test_another_width_than_the_layer_was_built_for_is_an_error(traced):
    block()(symbol(width=2 * D))
    other = block()
    other(symbol())
    # The message is the backend's.
    with pytest.raises((ValueError, TypeError), match="expected|compatible|shape"):
        other(symbol(width=2 * D))


def test_a_subclass_is_traced_each_time(traced):
    class Shortened(TransformerEncoderBlock):
        """Has an argument that its configuration does not contain."""

        def __init__(self, length):
            super().__init__(3, 37)
            self.length = length

        def call(self, inputs, **options):
            outputs: Any = super().call(inputs, **options)
            return outputs[:, : self.length]

    shapes = [Shortened(n)(keras.Input((5, D))).shape for n in (2, 3)]
    assert shapes == [(None, 2, D), (None, 3, D)]
    assert len(traced) == 2


def test_a_custom_activation_is_traced_each_time(traced):
    for factor in (1.0, 2.0):

        def scaled(x, factor=factor):
            return ops.relu(x) * factor

        block(activation=scaled)(symbol())
    block(activation=lambda x: x)(symbol())
    assert len(traced) == 3


def test_a_layer_that_is_built_in_call_is_built_each_time(traced):
    for _ in range(2):
        layer = block(activation=keras.layers.PReLU())
        layer(keras.Input((5, D)))
        assert any("alpha" in weight.name for weight in layer.weights)


class Cell(keras.layers.Layer):
    """A custom recurrent cell that reports its calls."""

    def __init__(self, units, calls):
        super().__init__()
        self.state_size = self.output_size = units
        self._calls = calls

    def build(self, inputs_shape):
        self.kernel = self.add_weight((inputs_shape[-1], self.state_size))

    def call(self, inputs, states, training=False):
        self._calls(inputs.shape)
        state = ops.matmul(inputs, self.kernel)
        return state, [state]


def test_a_custom_cell_is_traced_each_time(monkeypatch):
    monkeypatch.setattr(output_specs, "_cached_specs", {})
    for _ in range(2):
        calls = []
        decoder = AttentionRNN(Cell(D, calls.append), DotProductAttention())
        decoder(symbol(), symbol(), initial_state=keras.Input((D,)))
        assert calls
    assert not output_specs._cached_specs


def test_an_array_among_the_arguments_is_traced(traced):
    mask = np.tril(np.ones((5, 5), bool))
    for _ in range(2):
        block()(keras.Input((5, D)), attention_mask=mask)
    assert len(traced) == 2


def test_the_cache_keeps_no_model_alive(traced):
    inputs = symbol()
    model = keras.Model(inputs, block()(inputs))
    gone = weakref.ref(model)
    del model, inputs
    traced.clear()
    gc.collect()
    assert output_specs._cached_specs
    assert gone() is None


def test_the_cache_is_bounded(traced, monkeypatch):
    monkeypatch.setattr(output_specs, "_MAX_CACHED", 2)
    for heads in (1, 3, 7):
        TransformerEncoderBlock(heads, 37)(symbol())
    assert len(output_specs._cached_specs) == 1
