"""Attention that pools a map or a sequence, against the equations."""

import keras
import numpy as np
import pytest
from attention_reference import weights_of
from model_cases import numpy

from keras_attn.layers import AttentionPooling, ProbePooling

B, R, S, C, N, E = 2, 3, 5, 14, 2, 11
T = R * S
MAPS = np.random.default_rng(0).normal(size=(B, R, S, C)).astype("float32")


def randomized(layer, inputs):
    """The layer, built, with random weights."""
    layer(inputs)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(0, 0.5, weight.shape) for weight in layer.weights])
    return layer


def attended(attention, query, keys):
    """The output and the probabilities (N, 1, T) of one query (C,) to keys (T, C)."""
    w = weights_of(attention)
    parts = {
        name: (x @ w[f"{name}/kernel"] + w[f"{name}/bias"]).reshape(-1, N, C // N)
        for name, x in (("query", query[None]), ("key", keys), ("value", keys))
    }
    scores = np.einsum("qnh,tnh->nqt", parts["query"], parts["key"]) / (C // N) ** 0.5
    weights = np.exp(scores)
    weights /= weights.sum(-1, keepdims=True)
    heads = np.einsum("nqt,tnh->qnh", weights, parts["value"]).reshape(-1)
    return heads @ w["output/kernel"] + w["output/bias"], weights


def test_the_mean_of_a_map_attends_to_itself_and_to_all_positions():
    layer = randomized(AttentionPooling(N, E), MAPS)
    pooled, scores = layer(MAPS, return_attention_scores=True)
    assert scores.shape == (B, N, 1, 1 + T)
    for row in range(B):
        places = MAPS[row].reshape(T, C)
        hidden = np.concatenate([places.mean(0, keepdims=True), places])
        hidden = hidden + numpy(layer.embeddings)
        expected, weights = attended(layer.attention, hidden[0], hidden)
        np.testing.assert_allclose(numpy(pooled)[row], expected, atol=1e-5)
        np.testing.assert_allclose(numpy(scores)[row], weights, atol=1e-6)


def test_a_probe_attends_to_a_sequence():
    inputs = MAPS.reshape(B, T, C)
    layer = randomized(ProbePooling(N, 13, activation="relu"), inputs)
    pooled, scores = layer(inputs, return_attention_scores=True)
    assert scores.shape == (B, N, 1, T)
    gamma, beta = map(numpy, layer.norm.weights)
    (w1, b1), (w2, b2) = (
        map(numpy, part.weights)
        for part in (layer.feed_forward.expand, layer.feed_forward.contract)
    )
    for row in range(B):
        y, weights = attended(layer.attention, numpy(layer.probe)[0], inputs[row])
        normed = (y - y.mean()) / np.sqrt(y.var() + 1e-6) * gamma + beta
        expected = y + np.maximum(normed @ w1 + b1, 0) @ w2 + b2
        np.testing.assert_allclose(numpy(pooled)[row], expected, atol=1e-4)
        np.testing.assert_allclose(numpy(scores)[row], weights, atol=1e-6)


def test_wrong_arguments_are_rejected():
    with pytest.raises(ValueError, match="`num_heads` must be .*num_heads=0"):
        AttentionPooling(0)
    with pytest.raises(ValueError, match="`output_dim` must be .*output_dim=0"):
        AttentionPooling(N, 0)
    with pytest.raises(ValueError, match="multiple of `num_heads`"):
        AttentionPooling(3)(MAPS)
    with pytest.raises(ValueError, match="rows and columns of the map must be known"):
        AttentionPooling(N)(keras.Input((None, S, C)))
    layer = AttentionPooling(N)
    layer(MAPS)
    with pytest.raises(ValueError, match=f"`inputs` must be maps of {R} × {S}"):
        layer(MAPS[:, :2])
    with pytest.raises(ValueError, match="`inputs` must have 4 axes"):
        layer(MAPS[0])
    with pytest.raises(ValueError, match="`mlp_dim` must be .*mlp_dim=0"):
        ProbePooling(N, 0)
    with pytest.raises(ValueError, match="`num_heads` must be .*num_heads=-1"):
        ProbePooling(-1, 13)
    probe = ProbePooling(N, 13)
    probe(MAPS[0])
    with pytest.raises(ValueError, match="`inputs` must have 3 axes"):
        probe(MAPS)
