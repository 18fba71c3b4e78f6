import math

import attention_reference as reference
import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import normal

import keras_attn.ops as attn

B, T, S, N, G, H, V, D = 2, 5, 7, 6, 3, 11, 13, 17


def close(actual, expected, atol=1e-5):
    actual = ops.convert_to_numpy(ops.cast(actual, "float32"))
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=atol)


def test_project_multiplies_the_last_axis_and_adds_the_bias():
    kernel, bias = normal(D, H), normal(H, seed=1)
    for shape in ((T, D), (B, T, D), (B, T, S, D)):
        inputs = normal(*shape, seed=2)
        close(attn.project(inputs, kernel), inputs @ kernel)
        close(attn.project(inputs, kernel, bias), inputs @ kernel + bias)


def test_dot_scores_scale_before_the_product_so_that_float16_does_not_overflow():
    query = ops.cast(np.full((1, 1, 64), 40.0), "float16")
    # 64 · 40 · 40 = 102,400 overflows float16; an eighth of it does not.
    close(attn.dot_scores(query, query, 1 / 8), [[[12_800.0]]])


def test_two_by_two_attention_by_hand():
    # Scores ln 3 and 0 turn into 3/4 and 1/4.
    ln3 = math.log(3)
    scores = np.array([[ln3, 0.0], [0.0, 0.0]], "float32")
    close(attn.attention_weights(scores), [[0.75, 0.25], [0.5, 0.5]], 1e-7)
    query = np.array([[[[1.0], [0.0]]]], "float32")
    key = np.array([[[[ln3], [0.0]]]], "float32")
    value = np.array([[[[4.0, 0.0], [0.0, 8.0]]]], "float32")
    outputs, weights = attn.scaled_dot_product_attention(query, key, value)
    close(weights, [[[[0.75, 0.25], [0.5, 0.5]]]], 1e-6)
    close(outputs, [[[[3.0, 2.0], [2.0, 4.0]]]], 1e-6)
    mask = np.array([[True, False], [False, False]])
    outputs, weights = attn.scaled_dot_product_attention(query, key, value, mask=mask)
    close(weights, [[[[1.0, 0.0], [0.0, 0.0]]]], 0)
    close(outputs, [[[[4.0, 0.0], [0.0, 0.0]]]], 0)


def test_weights_of_masked_scores():
    scores = 3 * normal(B, N, T, S)
    mask = np.random.default_rng(1).random((B, 1, T, S)) < 0.6
    mask[0, 0, 0] = False
    mask[0, 0, 1] = True
    expected = np.zeros_like(scores)
    for b, n, t in np.ndindex(B, N, T):
        row = np.where(mask[b, 0, t], scores[b, n, t], -np.inf)
        expected[b, n, t] = reference.softmax(row)
    weights = ops.convert_to_numpy(attn.attention_weights(scores, mask))
    close(weights, expected, 1e-6)
    assert not weights[0, :, 0].any()
    hidden = ~np.broadcast_to(mask, weights.shape)
    assert (weights[hidden] == 0).all()


def test_masked_keys_stay_masked_when_a_bias_excludes_all_others():
    bias = np.array([[-np.inf, -np.inf, 0.0]], "float32")
    weights = attn.attention_weights(
        np.zeros((1, 3), "float32"), np.array([[True, True, False]]), bias
    )
    assert ops.convert_to_numpy(weights)[0, 2] == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_scores_become_float32_probabilities(dtype):
    # `exp(1e4)` overflows; the two largest scores are equal and share the probability.
    scores = ops.cast(np.array([[1e4, 1e4, -1e4, 0.0]]), dtype)
    weights = attn.attention_weights(scores, np.array([[True, True, True, False]]))
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    close(weights, [[0.5, 0.5, 0.0, 0.0]], 0)
    # In half precision one third has an error of 1e-4 or more.
    thirds = attn.attention_weights(ops.cast(np.zeros((1, 3)), dtype))
    close(thirds, np.full((1, 3), 1 / 3), 1e-7)
    nothing = attn.attention_weights(scores, np.zeros((1, 4), bool))
    close(nothing, np.zeros((1, 4)), 0)


def test_masks_work_where_float16_is_the_default():
    # -1e9 is -inf in float16, and the softmax of a row of -inf is NaN.
    before = keras.config.floatx()
    keras.config.set_floatx("float16")
    try:
        scores = ops.cast(np.zeros((2, 3)), "float16")
        mask = np.array([[False] * 3, [True, False, False]])
        close(attn.attention_weights(scores, mask), [[0, 0, 0], [1, 0, 0]], 0)
    finally:
        keras.config.set_floatx(before)


def test_scale_and_dropout_of_scaled_dot_product_attention():
    query, key, value = normal(1, 1, T, H), normal(1, 1, S, H), normal(1, 1, S, V)
    outputs, weights = attn.scaled_dot_product_attention(
        query, key, value, scale=0.5, dropout=lambda weights: weights * 2
    )
    expected = np.array(
        [reference.softmax(row) for row in query[0, 0] @ key[0, 0].T / 2]
    )
    close(weights[0, 0], expected)
    close(outputs[0, 0], 2 * expected @ value[0, 0])


def test_cached_keys_come_before_the_new_ones_at_the_same_scale():
    query = normal(B, N, T, H)
    key, value = normal(B, G, S, H, seed=1), normal(B, G, S, V, seed=2)
    options = {"scale": 0.5, "bias": normal(B, N, T, S, seed=3)}
    together = attn.scaled_dot_product_attention(query, key, value, **options)
    cached = attn.scaled_dot_product_attention(
        query,
        key[:, :, 3:],
        value[:, :, 3:],
        cache=(key[:, :, :3], value[:, :, :3]),
        **options,
    )
    for one, other in zip(cached, together, strict=True):
        close(one, ops.convert_to_numpy(other))


def test_split_and_merge_heads():
    inputs = np.arange(1 * 2 * 6).reshape((1, 2, 6)).astype("float32")
    heads = attn.split_heads(inputs, 3)
    close(heads, [[[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]], 0)
    close(attn.merge_heads(heads), inputs, 0)


def test_maxout():
    inputs = np.array([[1.0, 5.0, 3.0, 2.0, -1.0, -7.0]], "float32")
    close(attn.maxout(inputs), [[5, 3, -1]], 0)
    close(attn.maxout(inputs, 3), [[5, 2]], 0)
    inputs = normal(B, T, 21)
    expected = np.stack(
        [inputs[..., 3 * i : 3 * i + 3].max(axis=-1) for i in range(7)], axis=-1
    )
    close(attn.maxout(inputs, 3), expected, 0)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 3, 4, 5)])
def test_add_bias(shape):
    inputs, bias = np.random.default_rng(0).normal(size=shape), np.arange(5.0)
    if len(shape) > 1:
        close(attn.add_bias(inputs.astype("float32"), bias), inputs + bias, 1e-6)
    symbol = keras.KerasTensor((None, *shape))
    assert attn.add_bias(symbol, bias).shape == (None, *shape)
