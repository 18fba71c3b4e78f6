"""Layers that are alike are traced once, and only where they are surely alike.

That what is remembered equals what a call returns is asked in the contract of layers.
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
    """The encoder blocks whose `call` was run for a symbol, in order."""
    monkeypatch.setattr(output_specs, "_remembered", {})
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


def test_a_block_called_with_a_width_that_it_was_not_built_for_is_an_error(traced):
    block()(symbol(width=2 * D))
    other = block()
    other(symbol())
    # An error of the backend.
    with pytest.raises((ValueError, TypeError), match="expected|compatible|shape"):
        other(symbol(width=2 * D))


def test_a_subclass_is_traced_each_time(traced):
    class Shortened(TransformerEncoderBlock):
        """Keeps something that its configuration does not say."""

        def __init__(self, length):
            super().__init__(3, 37)
            self.length = length

        def call(self, inputs, **options):
            outputs: Any = super().call(inputs, **options)
            return outputs[:, : self.length]

    shapes = [Shortened(n)(keras.Input((5, D))).shape for n in (2, 3)]
    assert shapes == [(None, 2, D), (None, 3, D)]
    assert len(traced) == 2


def test_a_block_with_an_activation_of_ones_own_is_traced_each_time(traced):
    for factor in (1.0, 2.0):

        def scaled(x, factor=factor):
            return ops.relu(x) * factor

        block(activation=scaled)(symbol())
    block(activation=lambda x: x)(symbol())
    assert len(traced) == 3


def test_a_layer_that_a_call_builds_is_built_each_time(traced):
    for _ in range(2):
        layer = block(activation=keras.layers.PReLU())
        layer(keras.Input((5, D)))
        assert any("alpha" in weight.name for weight in layer.weights)


class Cell(keras.layers.Layer):
    """A recurrent cell of a user's own."""

    def __init__(self, units, steps_kept=1):
        super().__init__()
        self.state_size, self.output_size = units, units * steps_kept
        self.steps_kept = steps_kept

    def build(self, inputs_shape):
        self.kernel = self.add_weight((inputs_shape[-1], self.state_size))

    def call(self, inputs, states, training=False):
        state = ops.matmul(inputs, self.kernel)
        return ops.concatenate([state] * self.steps_kept, axis=-1), [state]


def test_a_recurrent_decoder_with_a_cell_of_ones_own_is_traced_each_time(monkeypatch):
    monkeypatch.setattr(output_specs, "_remembered", {})
    for kept in (1, 2):
        decoder = AttentionRNN(Cell(D, kept), DotProductAttention())
        outputs = decoder(symbol(), symbol(), initial_state=keras.Input((D,)))
        assert outputs["contexts"].shape[-1] == kept * D
    assert not output_specs._remembered


def test_an_array_among_the_arguments_is_traced(traced):
    mask = np.tril(np.ones((5, 5), bool))
    for _ in range(2):
        block()(keras.Input((5, D)), attention_mask=mask)
    assert len(traced) == 2


def test_what_is_remembered_keeps_no_model_alive(traced):
    inputs = symbol()
    model = keras.Model(inputs, block()(inputs))
    gone = weakref.ref(model)
    del model, inputs
    traced.clear()
    gc.collect()
    assert output_specs._remembered
    assert gone() is None


def test_so_many_are_remembered_and_no_more(traced, monkeypatch):
    monkeypatch.setattr(output_specs, "_MAX_REMEMBERED", 2)
    for heads in (1, 3, 7):
        TransformerEncoderBlock(heads, 37)(symbol())
    assert len(output_specs._remembered) == 1
