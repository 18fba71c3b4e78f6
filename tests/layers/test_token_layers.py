"""Token embeddings, output biases, pooling and padding of caches."""

import keras
import numpy as np
import pytest
from model_cases import numpy

from keras_attn.layers import (
    EndTokenPooling,
    OutputBias,
    PadCache,
    TokenEmbedding,
    TokenPooling,
)

B, T, D, V = 3, 5, 7, 11
FEATURES = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]], bool)


def test_a_reversed_embedding_multiplies_by_its_transpose():
    layer = TokenEmbedding(V, D)
    ids = np.array([[3, 0, 10], [5, 5, 1]])
    embedded = numpy(layer(ids))
    table = numpy(layer.embeddings)
    assert len(layer.weights) == 1
    np.testing.assert_array_equal(embedded, table[ids])
    for inputs in (FEATURES, FEATURES[:, 0]):
        logits = layer(inputs, reverse=True)
        np.testing.assert_allclose(numpy(logits), inputs @ table.T, atol=1e-5)


def test_an_output_bias_is_added():
    layer = OutputBias()
    layer(FEATURES)
    bias = np.arange(D, dtype="float32")
    layer.set_weights([bias])
    np.testing.assert_array_equal(numpy(layer(FEATURES)), FEATURES + bias)


@pytest.mark.parametrize(
    "pooling, expected",
    [
        ("first", [FEATURES[0, 0], FEATURES[1, 1], FEATURES[2, 0]]),
        ("last", [FEATURES[0, 2], FEATURES[1, 4], FEATURES[2, 0]]),
        ("mean", [FEATURES[0, :3].mean(0), FEATURES[1, [1, 3, 4]].mean(0), 0 * D]),
        ("max", [FEATURES[0, :3].max(0), FEATURES[1, [1, 3, 4]].max(0), 0 * D]),
        (
            "mean_sqrt_length",
            [each.sum(0) / 3**0.5 for each in (FEATURES[0, :3], FEATURES[1, [1, 3, 4]])]
            + [0 * D],
        ),
        (
            "weighted_mean",
            [
                np.average(each, 0, [1, 2, 3])
                for each in (FEATURES[0, :3], FEATURES[1, [1, 3, 4]])
            ]
            + [0 * D],
        ),
    ],
)
def test_pooling_uses_real_tokens_only(pooling, expected):
    found = numpy(TokenPooling(pooling)(FEATURES, MASK))
    for row, value in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, np.broadcast_to(value, D), atol=1e-6)


def test_pooling_without_a_mask_uses_all_tokens():
    for pooling, expected in (
        ("first", FEATURES[:, 0]),
        ("last", FEATURES[:, -1]),
        ("mean", FEATURES.mean(1)),
    ):
        layer = TokenPooling(pooling)  # pyright: ignore[reportArgumentType]
        found = numpy(layer(FEATURES))
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_pooling_passes_no_mask_on():
    embedding = keras.layers.Embedding(V, D, mask_zero=True)
    pooled = TokenPooling("mean")(embedding(np.array([[3, 5, 0, 0], [1, 2, 4, 6]])))
    assert getattr(pooled, "_keras_mask", None) is None


@pytest.mark.parametrize(
    "end_token_id, expected",
    [
        (None, [2, 0, 4]),  # The first largest id.
        (9, [2, 1, 0]),  # Its first position; without it, position 0.
    ],
)
def test_the_vector_at_the_end_token(end_token_id, expected):
    ids = np.array([[3, 5, 9, 9, 0], [10, 9, 9, 10, 9], [1, 2, 3, 4, 5]], "int32")
    found = numpy(EndTokenPooling(end_token_id)(FEATURES, ids))
    np.testing.assert_array_equal(found, FEATURES[np.arange(B), expected])


def test_a_cache_is_padded_with_zeros_at_the_end():
    cache = np.random.default_rng(1).normal(size=(B, 3, T, D)).astype("float32")
    found = numpy(PadCache(T + 4)(cache))
    np.testing.assert_array_equal(found[:, :, :T], cache)
    assert found.shape == (B, 3, T + 4, D)
    assert not found[:, :, T:].any()
    np.testing.assert_array_equal(numpy(PadCache(T)(cache)), cache)


def test_wrong_arguments_are_rejected():
    with pytest.raises(ValueError, match="`padding_mask` must have 2 axes"):
        TokenPooling()(FEATURES, MASK[0])
    cache = np.zeros((B, 3, T, D), "float32")
    with pytest.raises(ValueError, match="longer than the cache.*length=5, length=4"):
        PadCache(4)(cache)


@pytest.mark.parametrize("reverse_dtype", [None, "float32"])
def test_the_product_of_logits_has_a_precision(reverse_dtype):
    """That of the layer, or the one asked for; the logits are float32."""
    layer = TokenEmbedding(7, 4, dtype="mixed_bfloat16", reverse_dtype=reverse_dtype)
    layer(np.array([[1, 2]]))
    table = keras.ops.convert_to_numpy(layer.embeddings)
    features = keras.random.normal((3, 4), seed=0)
    logits = layer(features, reverse=True)
    assert logits.dtype == "float32"
    factors = [
        keras.ops.cast(x, reverse_dtype or "bfloat16") for x in (features, table.T)
    ]
    expected = keras.ops.matmul(*factors)
    # The order of a sum changes the last bit, the other precision the third digit.
    np.testing.assert_allclose(logits, keras.ops.cast(expected, "float32"), rtol=1e-5)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_logits_equal_keras(tie_weights):
    options = {"tie_weights": tie_weights, "logit_soft_cap": 0.5, "name": "tokens"}
    ours = TokenEmbedding(7, 4, **options)
    theirs = keras.layers.ReversibleEmbedding(7, 4, **options)
    features = keras.random.normal((2, 3, 4), seed=0)
    for layer in (ours, theirs):
        layer.build((None, None))
    theirs.set_weights(ours.get_weights())
    np.testing.assert_allclose(
        ours(features, reverse=True), theirs(features, reverse=True), rtol=1e-6
    )
