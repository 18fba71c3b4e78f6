"""Attention does not depend on the order of its memory; positions make it so.

Sizes are distinct primes (`layer_contract`), so an order of S locations permutes every
axis of that size: of keys, values and masks in the inputs, of scores in the outputs.
"""

import inspect
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import CASES, NOT_INSTANTIATED
from layer_contract import B, D, S, T, assert_close, built, built_on, flat, tensors

from keras_attn import layers

GUIDE = Path(__file__).parents[2] / "docs" / "own_layers.md"
# The layer, its case, and the sizes whose order does not matter: of a memory, or of
# queries, whose outputs are then in their order. Of a map, its rows or its columns.
FREE = [
    ("AdditiveAttention", "key_bias_padding_scores", (S, T)),
    ("AdditiveAttention", "attention_mask", (S, T)),
    ("DotProductAttention", "dot", (S, T)),
    ("DotProductAttention", "scaled_dot", (S, T)),
    ("DotProductAttention", "general", (S, T)),
    ("DotProductAttention", "linear", (S, T)),
    ("MLPDotAttention", "key_padding_scores", (S, T)),
    ("MultiHeadAttention", "cross", (S, T)),
    ("MultiHeadAttention", "cross_attention_mask", (S, T)),
    ("MultiHeadAttention", "grouped_cross", (S, T)),
    ("MultiHeadAttention", "self_padding_scores", (T,)),
    ("MultiHeadAttention", "grouped_with_value_dim", (T,)),
    ("TransformerEncoderBlock", "pre_norm_scores", (T,)),
    ("TransformerEncoderBlock", "grouped_mask_and_bias", (T,)),
    ("TransformerDecoderBlock", "with_encoder", (S,)),
    ("CoAttentionBlock", "regions", (S, T)),
    ("CoAttentionBlock", "tokens", (S, T)),
    ("GlimpseAttention", "dropout_scores", (S,)),
    ("WordGuidedAttention", "padding_scores", (S, T)),
    ("ProbePooling", "scores", (T,)),
    ("AdditiveAttention2D", "neighbours", (T,)),
    ("AdditiveAttention2D", "projected", (4, 3, T)),
    ("SelfAttention2D", "plain", (8, 9)),
    ("AttentionRNN", "gru_additive", (S,)),
    ("AttentionRNN", "lstm_gate", (S,)),
    ("HardAttentionRNN", "lstm_gate", (S,)),
    ("FrameAttentionRNN", "lstm_additive", (S,)),
    ("AttentionSpeller", "padding_scores", (S,)),
]
# Those that do depend on an order, and why.
BOUND = [
    ("MultiHeadAttention", "causal", T),  # A mask of positions.
    ("TransformerDecoderBlock", "with_encoder", T),
    ("RelativeMultiHeadAttention", "content", T),  # Distances.
    ("XLNetBlock", "content", T),
    ("WindowAttention", "no_padding", 8),  # Windows, and biases of distances.
    ("SwinBlock", "plain", 8),
    ("AttentionPooling", "plain", 4),  # A learned vector for each position.
    ("AdditiveAttention2D", "neighbours", 4),  # A convolution in the scores.
    ("AttentionRNN", "gru_additive", T),  # A recurrence over the queries.
    ("HardAttentionRNN", "lstm_gate", T),
    ("FrameAttentionRNN", "lstm_additive", T),
    ("AttentionSpeller", "padding_scores", T),
]


def in_order(tree, size):
    """Arrays in which each axis of a size is permuted."""
    order = np.random.default_rng(size).permutation(size)

    def permuted(array):
        for axis, length in enumerate(array.shape):
            if length == size:
                array = np.take(array, order, axis)
        return array

    return keras.tree.map_structure(permuted, tree)


def differences(name, case, size):
    """Outputs of inputs in another order, and outputs put into that order."""
    case = CASES[name][case]
    layer, inputs = built(case), tensors(case)
    outputs = flat(layer(**inputs, **case.static))
    moved = flat(layer(**in_order(inputs, size), **case.static))
    return moved, in_order(outputs, size)


@pytest.mark.parametrize(
    ("name", "case", "size"),
    [(name, case, size) for name, case, sizes in FREE for size in sizes],
)
def test_the_order_does_not_matter(name, case, size):
    """The memory's changes no output; that of queries is the outputs'."""
    assert_close(*differences(name, case, size))


@pytest.mark.parametrize(("name", "case", "size"), BOUND)
def test_the_order_matters(name, case, size):
    moved, expected = differences(name, case, size)
    assert max(abs(x - y).max() for x, y in zip(moved, expected, strict=True)) > 0.01


@pytest.mark.parametrize(
    "positions",
    [
        layers.SinusoidalPositionEmbedding,
        lambda: layers.LearnedPositionEmbedding(T),
    ],
)
def test_positions_give_the_memory_an_order(positions):
    tokens = np.random.default_rng(0).normal(size=(B, T, D + 1)).astype("float32")
    attention = built_on(layers.MultiHeadAttention(2, 3), tokens, tokens)
    embedding = built_on(positions(), tokens)

    def outputs(memory):
        return ops.convert_to_numpy(attention(tokens, embedding(memory)))

    assert_close(attention(tokens, tokens), attention(tokens, tokens[:, ::-1]))
    assert abs(outputs(tokens) - outputs(tokens[:, ::-1])).max() > 0.01


def test_every_attention_layer_is_in_a_list_and_in_the_guide():
    attending = {"SwinBlock"}  # Its attention is a `WindowAttention`.
    for name in set(layers.__all__).difference(NOT_INSTANTIATED):
        call = inspect.signature(getattr(layers, name).call)
        if "return_attention_scores" in call.parameters:
            attending.add(name)
    assert {name for name, *_ in [*FREE, *BOUND]} == attending
    text = GUIDE.read_text("utf-8")
    section = text.split("## What depends on an order\n")[1].split("\n## ")[0]
    first_cells = "".join(re.findall(r"^\|([^|]*)\|", section, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", first_cells)) == attending
