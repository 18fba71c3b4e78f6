"""Relative attention against its equations in NumPy, in explicit loops."""

import keras
import numpy as np
import pytest
from attention_reference import weights_of
from keras import ops
from layer_contract import assert_close, flat, gradients, randomize
from layers.relative_cases import (
    CALLS,
    MAPPING,
    PADDING,
    B,
    D,
    H,
    M,
    N,
    P,
    S,
    T,
    draw,
    visible_mask,
)

from keras_attn.layers.attention.relative_attention import RelativeMultiHeadAttention
from keras_attn.layers.embeddings.relative_position_encoding import (
    RelativePositionEncoding,
)
from keras_attn.ops.relative import (
    relative_distances,
    relative_scores,
    relative_shift,
    relative_sinusoids,
)


def make(**options):
    """A layer with random weights."""
    layer = RelativeMultiHeadAttention(N, H, **options)
    layer.build((B, T, D))
    randomize(layer)
    return layer


def encode(distance):
    """Sines, then cosines, of one distance, D in all."""
    frequencies = 10_000.0 ** (-2 * np.arange((D + 1) // 2) / D)
    angles = distance * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)])[:D]


def by_hand(layer, inputs, call):
    """The equations, one batch entry, head, query and key at a time."""
    weight = weights_of(layer)

    def kernel(name, head):
        return weight[f"{name}/kernel"].reshape(D, N, H)[:, head]

    memory = call.get("memory", np.zeros((B, 0, D)))
    known = np.concatenate([memory, inputs], 1)
    offset = memory.shape[1]
    two_streams = "targets" in call
    scores = np.zeros((B, N, T, known.shape[1]))
    outputs = np.zeros((B, T, D))
    for b in range(B):
        for n in range(N):
            for i in range(T):
                source = inputs[b, i]
                if two_streams:
                    source = call["target_mapping"][b, :, i] @ call["targets"][b]
                q = source @ kernel("query", n)
                e = np.full(len(known[b]), -np.inf)
                for j in range(len(known[b])):
                    distance = i + offset - j
                    r = encode(distance)
                    if "positions" in call:
                        r = call["positions"][0, offset + T - distance]
                    s = 0.0
                    if "same_segment" in call:
                        which = 0 if call["same_segment"][b, i, j] else 1
                        segment = weight["segment_embedding"][which, n]
                        s = (q + weight["segment_bias"][n]) @ segment
                    content = q + weight["content_bias"][n]
                    position = q + weight["position_bias"][n]
                    value = content @ (known[b, j] @ kernel("key", n))
                    value += position @ (r @ kernel("position", n)) + s
                    visible = True
                    if "padding_mask" in call:
                        visible &= call["padding_mask"][b, j]
                    if "attention_mask" in call:
                        mask = call["attention_mask"]
                        shape = (B, N, T, len(known[b]))
                        while mask.ndim < 4:
                            mask = mask[None] if mask.ndim == 2 else mask[:, None]
                        visible &= np.broadcast_to(mask, shape)[b, n, i, j]
                    if visible:
                        e[j] = value / np.sqrt(H)
                if np.isfinite(e).any():
                    p = np.exp(e - e.max())
                    scores[b, n, i] = p / p.sum()
                values = known[b] @ kernel("value", n)
                out = weight["output/kernel"].reshape(N, H, D)[n]
                outputs[b, i] += scores[b, n, i] @ values @ out
    if two_streams:
        mapping = call["target_mapping"]
        return mapping @ outputs, np.einsum("bpi,bnij->bnpj", mapping, scores)
    return outputs, scores


@pytest.mark.parametrize("name", CALLS)
def test_computes_the_papers_equations(name):
    layer, inputs = make(), draw(B, T, D)
    expected = by_hand(layer, inputs, CALLS[name])
    got = layer(inputs, **CALLS[name], return_attention_scores=True)
    assert_close(got, expected)
    assert_close(layer(inputs, **CALLS[name]), expected[0])


def test_relative_distances_descend():
    assert flat(relative_distances(3, 5))[0].tolist() == [5, 4, 3, 2, 1, 0, -1, -2]


def test_relative_shift():
    distances = np.arange(S, -T, -1)
    scores = 100.0 * np.arange(T)[:, None] + distances
    query, key = np.arange(T)[:, None], np.arange(S)
    expected = 100.0 * query + (query + M - key)
    shifted = relative_shift(np.broadcast_to(scores, (B, N, *scores.shape)), S)
    assert_close(shifted, np.broadcast_to(expected, (B, N, T, S)), atol=0)


def test_relative_sinusoids_by_hand():
    got = relative_sinusoids(np.array([2, -1]), 4, max_wavelength=100)
    expected = [
        [np.sin(2), np.sin(0.2), np.cos(2), np.cos(0.2)],
        [np.sin(-1), np.sin(-0.1), np.cos(-1), np.cos(-0.1)],
    ]
    assert_close(got, np.array(expected), atol=1e-6)
    odd = relative_sinusoids(np.array([2]), 3, max_wavelength=100)
    w = 100 ** (-2 / 3)
    assert_close(odd, np.array([[np.sin(2), np.sin(2 * w), np.cos(2)]]), atol=1e-6)


def test_relative_position_encoding():
    layer = RelativePositionEncoding(3, max_wavelength=50)
    distances = np.clip(np.arange(S, -T, -1), -3, 3)
    expected = relative_sinusoids(distances, D, 50)[None]
    assert_close(layer(draw(B, T, D), draw(B, M, D)), expected, atol=0)
    far = RelativePositionEncoding()
    assert_close(far(draw(B, T, D))[0, T], encode(0.0))
    assert_close(far(draw(B, T, D))[0, 0], encode(T))
    symbol = far(keras.Input((None, D)))
    assert symbol.shape == (1, None, D)
    known = far(keras.Input((T, D)), keras.Input((M, D)))
    assert known.shape == (1, T + S, D)


def test_a_query_without_keys_gets_zeros():
    layer, inputs = make(), draw(B, T, D)
    nothing = np.zeros((B, T), bool)
    for call in (
        {"padding_mask": nothing},
        {
            "targets": draw(B, P, D),
            "target_mapping": MAPPING,
            "attention_mask": np.zeros((B, T, T), bool),
        },
    ):
        outputs, scores = layer(inputs, **call, return_attention_scores=True)
        assert not flat(scores)[0].any()
        assert not flat(outputs)[0].any()
        same = {"same_segment": CALLS["segments"]["same_segment"]}
        for path, gradient in gradients(layer, inputs=inputs, **call, **same).items():
            assert np.isfinite(gradient).all(), path


def test_dropout_does_not_apply_to_the_scores():
    inputs = draw(B, T, D)
    trained = make(dropout=0.5)(inputs, return_attention_scores=True, training=True)
    assert_close(trained[1], make()(inputs, return_attention_scores=True)[1], atol=0)


def test_keras_masks_are_padding_masks():
    embedding = keras.layers.Embedding(7, D, mask_zero=True)
    ids = np.array([[1, 0, 3, 4, 5], [6, 1, 2, 0, 3]])
    embedded, layer = embedding(ids), make()
    plain = ops.convert_to_numpy(embedded)
    expected = layer(plain, padding_mask=PADDING)
    assert_close(layer(embedded), expected, atol=0)
    # With a second tensor Keras passes the mask under another name.
    assert_close(
        layer(embedded, positions=RelativePositionEncoding()(plain)), expected, 1e-6
    )
    other = visible_mask(B, T)
    assert_close(
        layer(embedded, padding_mask=other),
        layer(plain, padding_mask=other & PADDING),
        atol=0,
    )
    # With a memory the mask does not cover all keys, and is not used.
    memory = draw(B, M, D)
    assert_close(layer(embedded, memory=memory), layer(plain, memory=memory), atol=0)


@pytest.mark.parametrize(
    "call, message",
    [
        ({"targets": draw(B, P, D)}, "must be given together.*target_mapping=None"),
        ({"target_mapping": MAPPING}, r"must be given together.*=\(2, 3, 5\)"),
        (
            {"targets": draw(B, P, D), "target_mapping": MAPPING[:, :, :3]},
            r"`target_mapping` must have the shape .*\(2, 3, 5\).*\(2, 3, 3\)",
        ),
        ({"memory": draw(B, M, 3)}, "`memory` must have the shape .*memory length"),
        ({"positions": draw(T, D)}, "`positions` must have 3 axes"),
        ({"positions": draw(1, T, D)}, r"`positions` .*\(1, 10, 17\).*\(1, 5, 17\)"),
        ({"padding_mask": PADDING, "memory": draw(B, M, D)}, r"\(2, 12\).*\(2, 5\)"),
    ],
)
def test_wrong_calls_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        make().call(**{"inputs": draw(B, T, D), **call})


def test_one_head_in_rows_together():
    """TensorFlow 2.21 multiplies (3, 1, 7, 12) by (1, 1, 12, 14) beyond its memory."""
    rng = np.random.default_rng(23)

    def drawn(*shape):
        return rng.normal(size=shape).astype("float32")

    query, key, position_key = (
        drawn(3, 1, 7, 12),
        drawn(3, 1, 7, 12),
        drawn(1, 1, 14, 12),
    )
    biases = {f"{name}_bias": drawn(1, 12) for name in ("content", "position")}
    shared = {
        **biases,
        "segment_bias": drawn(1, 12),
        "segment_embedding": drawn(2, 1, 12),
    }
    same = rng.integers(0, 2, (3, 7, 7)) == 1

    def scores(rows):
        found = relative_scores(
            query[rows], key[rows], position_key, **shared, same_segment=same[rows]
        )
        return ops.convert_to_numpy(found)

    together = scores(slice(0, 3))
    for row in range(3):
        assert_close(together[row], scores(slice(row, row + 1))[0])
