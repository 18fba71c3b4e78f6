"""Attention that pools a map or a sequence, against the equations."""

import attention_reference as reference
import keras
import numpy as np
import pytest
from layer_contract import assert_close, built_on, normal
from model_cases import numpy

from keras_attn.layers import AttentionPooling, ProbePooling

B, R, S, C, N, E = 2, 3, 5, 14, 2, 11
T = R * S
MAPS = normal(B, R, S, C)


def attended(attention, query, keys):
    """Outputs (B, width) and probabilities (B, N, 1, T) of one query each."""
    weights = reference.multi_head_weights(attention)
    outputs, scores = reference.multi_head(query, keys, keys, weights, N)
    return outputs[:, 0], scores


def test_the_mean_of_a_map_attends_to_itself_and_to_all_positions():
    layer = built_on(AttentionPooling(N, E), MAPS)
    places = MAPS.reshape(B, T, C)
    hidden = np.concatenate([places.mean(1, keepdims=True), places], 1)
    hidden = hidden + numpy(layer.embeddings)
    expected = attended(layer.attention, hidden[:, :1], hidden)
    assert_close(layer(MAPS, return_attention_scores=True), expected)


def test_a_probe_attends_to_a_sequence():
    inputs = MAPS.reshape(B, T, C)
    layer = built_on(ProbePooling(N, 13, activation="relu"), inputs)
    gamma, beta = map(numpy, layer.norm.weights)
    (w1, b1), (w2, b2) = (
        map(numpy, part.weights)
        for part in (layer.feed_forward.expand, layer.feed_forward.contract)
    )
    probe = np.tile(numpy(layer.probe), (B, 1, 1))
    y, scores = attended(layer.attention, probe, inputs)
    normed = reference.layer_norm(y, gamma, beta, 1e-6)
    expected = y + reference.relu(normed @ w1 + b1) @ w2 + b2
    assert_close(layer(inputs, return_attention_scores=True), (expected, scores))


def test_wrong_arguments_are_rejected():
    with pytest.raises(ValueError, match="multiple of `num_heads`"):
        AttentionPooling(3)(MAPS)
    with pytest.raises(ValueError, match="rows and columns of the map must be known"):
        AttentionPooling(N)(keras.Input((None, S, C)))
    layer = AttentionPooling(N)
    layer(MAPS)
    with pytest.raises(ValueError, match=f"`inputs` must be maps of {R} × {S}"):
        layer(MAPS[:, :2])
