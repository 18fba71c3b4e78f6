import math

import attention_reference as reference
import keras
import numpy as np
import pytest
from keras import ops

import keras_attn.ops as attn

B, T, S, N, G, H, V, D = 2, 5, 7, 6, 3, 11, 13, 17


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def close(actual, expected, atol=1e-5):
    actual = ops.convert_to_numpy(ops.cast(actual, "float32"))
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=atol)


def test_project_is_a_product_and_a_bias_over_the_last_axis():
    kernel, bias = normal(D, H), normal(H, seed=1)
    for shape in ((T, D), (B, T, D), (B, T, S, D)):
        inputs = normal(*shape, seed=2)
        close(attn.project(inputs, kernel), inputs @ kernel)
        close(attn.project(inputs, kernel, bias), inputs @ kernel + bias)


def test_dot_scores():
    query, key = normal(B, T, D), normal(B, S, D, seed=1)
    expected = np.array([[[q @ k for k in key[b]] for q in query[b]] for b in range(B)])
    close(attn.dot_scores(query, key), expected)
    close(attn.dot_scores(query, key, 0.25), expected / 4)


def test_dot_scores_scale_before_the_product_so_that_float16_does_not_overflow():
    query = ops.cast(np.full((1, 1, 64), 40.0), "float16")
    # 64 · 40 · 40 = 102 400 is beyond float16; an eighth of it is not.
    close(attn.dot_scores(query, query, 1 / 8), [[[12_800.0]]])


def test_additive_scores():
    query, key, weight = normal(B, T, D), normal(B, S, D, seed=1), normal(D, 1, seed=2)
    expected = [
        [[weight[:, 0] @ np.tanh(q + k) for k in key[b]] for q in query[b]]
        for b in range(B)
    ]
    close(attn.additive_scores(query, key, weight), expected)


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


def test_what_a_mask_hides_stays_hidden_when_a_bias_hides_the_rest():
    bias = np.array([[-np.inf, -np.inf, 0.0]], "float32")
    weights = attn.attention_weights(
        np.zeros((1, 3), "float32"), np.array([[True, True, False]]), bias
    )
    assert ops.convert_to_numpy(weights)[0, 2] == 0


def test_a_bias_of_minus_infinity_hides_and_makes_no_nan():
    scores = normal(T, S)
    bias = np.zeros((T, S), "float32")
    bias[:, 3:] = -np.inf
    bias[0] = -np.inf
    weights = ops.convert_to_numpy(attn.attention_weights(scores, bias=bias))
    close(weights[1:, :3], [reference.softmax(row[:3]) for row in scores[1:]])
    assert (weights[1:, 3:] == 0).all()
    assert np.isfinite(weights).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_scores_become_float32_probabilities(dtype):
    # 1e4 is far beyond what `exp` can take; its neighbours differ by less than one
    # step of either type, so the two largest share.
    scores = ops.cast(np.array([[1e4, 1e4, -1e4, 0.0]]), dtype)
    weights = attn.attention_weights(scores, np.array([[True, True, True, False]]))
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    close(weights, [[0.5, 0.5, 0.0, 0.0]], 0)
    # In half precision a third would be off by 1e-4 and more.
    thirds = attn.attention_weights(ops.cast(np.zeros((1, 3)), dtype))
    close(thirds, np.full((1, 3), 1 / 3), 1e-7)
    nothing = attn.attention_weights(scores, np.zeros((1, 4), bool))
    close(nothing, np.zeros((1, 4)), 0)


def test_masks_hide_where_float16_is_the_default():
    # -1e9 is -inf in float16, and a whole row of it not a number.
    before = keras.config.floatx()
    keras.config.set_floatx("float16")
    try:
        scores = ops.cast(np.zeros((2, 3)), "float16")
        mask = np.array([[False] * 3, [True, False, False]])
        close(attn.attention_weights(scores, mask), [[0, 0, 0], [1, 0, 0]], 0)
    finally:
        keras.config.set_floatx(before)


def test_a_single_key_gets_everything_or_nothing():
    scores = normal(2, T, 1)
    close(attn.attention_weights(scores), np.ones((2, T, 1)), 0)
    mask = np.array([True, False]).reshape((2, 1, 1))
    close(attn.attention_weights(scores, mask), np.ones((2, T, 1)) * mask, 0)


@pytest.mark.parametrize("groups", [N, G, 1])
def test_scaled_dot_product_attention_head_by_head(groups):
    query = normal(B, N, T, H)
    key, value = normal(B, groups, S, H, seed=1), normal(B, groups, S, V, seed=2)
    mask = np.random.default_rng(3).random((B, N, T, S)) < 0.7
    bias = normal(B, N, T, S, seed=4)
    outputs, weights = attn.scaled_dot_product_attention(
        query, key, value, mask=mask, bias=bias
    )
    for b, n, t in np.ndindex(B, N, T):
        g = n * groups // N
        row = key[b, g] @ query[b, n, t] / math.sqrt(H) + bias[b, n, t]
        expected = reference.softmax(np.where(mask[b, n, t], row, -np.inf))
        close(weights[b, n, t], expected)
        close(outputs[b, n, t], expected @ value[b, g])


def test_scale_and_dropout_are_what_they_are_said_to_be():
    query, key, value = normal(1, 1, T, H), normal(1, 1, S, H), normal(1, 1, S, V)
    outputs, weights = attn.scaled_dot_product_attention(
        query, key, value, scale=0.5, dropout=lambda weights: weights * 2
    )
    expected = np.array(
        [reference.softmax(row) for row in query[0, 0] @ key[0, 0].T / 2]
    )
    close(weights[0, 0], expected)
    close(outputs[0, 0], 2 * expected @ value[0, 0])


@pytest.mark.parametrize("width", [4, 64, 1024])
def test_dot_products_vary_with_the_width_and_scaled_ones_do_not(width):
    query, key = normal(1, 200, width), normal(1, 200, width, seed=1)
    plain = ops.convert_to_numpy(attn.dot_scores(query, key)).var()
    scaled = ops.convert_to_numpy(attn.dot_scores(query, key, width**-0.5)).var()
    assert 0.9 * width < plain < 1.1 * width
    assert 0.9 < scaled < 1.1


def test_heads_split_and_merge():
    inputs = np.arange(1 * 2 * 6).reshape((1, 2, 6)).astype("float32")
    heads = attn.split_heads(inputs, 3)
    close(heads, [[[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]], 0)
    close(attn.merge_heads(heads), inputs, 0)
    inputs = normal(B, T, N * H)
    close(attn.merge_heads(attn.split_heads(inputs, N)), inputs, 0)


def test_causal_mask():
    mask = ops.convert_to_numpy(attn.causal_mask(3, 4))
    assert mask.tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
    ]
    mask = ops.convert_to_numpy(attn.causal_mask(2, 5, offset=2))
    assert mask.tolist() == [
        [True, True, True, False, False],
        [True, True, True, True, False],
    ]


@pytest.mark.parametrize("shape", [(T, S), (B, T, S), (B, N, T, S)])
def test_masks_merge_into_one(shape):
    rng = np.random.default_rng(0)
    padding, mask = rng.random((B, S)) < 0.7, rng.random(shape) < 0.7
    causal = np.tri(T, S, dtype=bool)
    merged = attn.merge_masks(
        padding_mask=padding.astype("int32"),
        attention_mask=mask.astype("float32"),
        causal=ops.convert_to_tensor(causal),
    )
    assert merged is not None and len(merged.shape) == 4
    merged = np.broadcast_to(ops.convert_to_numpy(merged), (B, N, T, S))
    for b, n, t, s in np.ndindex(B, N, T, S):
        own = {2: (t, s), 3: (b, t, s), 4: (b, n, t, s)}[len(shape)]
        assert merged[b, n, t, s] == (padding[b, s] and mask[own] and causal[t, s])


def test_no_masks_merge_into_none():
    assert attn.merge_masks() is None


@pytest.mark.parametrize("dim", [1, 2, 7, 8])
def test_sinusoids(dim):
    expected = [reference.sinusoid(position, dim) for position in range(S)]
    close(attn.sinusoids(np.arange(S), dim), expected)
    expected = [[reference.sinusoid(p, dim, 100)] for p in (0, 3, 40)]
    close(attn.sinusoids(np.array([[0], [3], [40]]), dim, 100), expected)


def test_sinusoids_by_hand():
    # Two units: sin p, cos p. Position 0: sines of 0, cosines of 1.
    close(attn.sinusoids(np.array([0.0, np.pi / 2]), 2), [[0, 1], [1, 0]], 1e-6)
    close(attn.sinusoids(np.array([0]), 5), [[0, 1, 0, 1, 0]], 0)


def test_sinusoids_turn_by_a_matrix_that_depends_on_the_distance_alone():
    # The reason the paper gives for them: PE(p + k) is linear in PE(p).
    table = ops.convert_to_numpy(attn.sinusoids(np.arange(40), 8)).astype("float64")
    turn = np.linalg.lstsq(table[:-5], table[5:], rcond=None)[0]
    np.testing.assert_allclose(table[:-5] @ turn, table[5:], atol=1e-4)


def test_sinusoids_of_a_grid():
    table = ops.convert_to_numpy(attn.sinusoids_2d(T, S, 10))
    assert table.shape == (T, S, 10)
    for row, column in np.ndindex(T, S):
        expected = reference.sinusoid(row, 5) + reference.sinusoid(column, 5)
        close(table[row, column], expected)


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
def test_a_bias_is_added_along_the_last_axis(shape):
    inputs, bias = np.random.default_rng(0).normal(size=shape), np.arange(5.0)
    if len(shape) > 1:
        close(attn.add_bias(inputs.astype("float32"), bias), inputs + bias, 1e-6)
    symbol = keras.KerasTensor((None, *shape))
    assert attn.add_bias(symbol, bias).shape == (None, *shape)


MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]])


def test_token_positions_count_real_tokens_alone():
    for mask in (MASK, MASK.astype(bool)):
        positions = ops.convert_to_numpy(attn.token_positions(mask))
        assert positions.dtype == "int32"
        for row, real in zip(positions, MASK.astype(bool), strict=True):
            assert row[real].tolist() == list(range(real.sum()))
        assert positions.tolist() == [
            [0, 1, 2, 2, 2],
            [0, 0, 0, 1, 2],
            [0, 0, 1, 1, 2],
            [0, 0, 0, 0, 0],
        ]


def test_row_positions_count_from_the_first_real_token():
    for mask in (MASK, MASK.astype(bool)):
        positions = ops.convert_to_numpy(attn.row_positions(mask))
        assert positions.dtype == "int32"
        assert positions.tolist() == [
            [0, 1, 2, 3, 4],
            [0, 0, 0, 1, 2],
            [0, 1, 2, 3, 4],
            [0, 1, 2, 3, 4],
        ]


@pytest.mark.parametrize("window", [1, 3, 9])
def test_a_band_hides_what_is_too_far_behind(window):
    queries, keys = np.array([[4, 5], [0, 9]]), np.arange(10)[None].repeat(2, 0)
    mask = ops.convert_to_numpy(attn.banded_mask(queries, keys, window))
    assert mask.shape == (2, 2, 10)
    for row, of_row in enumerate(queries):
        for index, query in enumerate(of_row):
            for key in range(10):
                assert mask[row, index, key] == (key > query - window)


def test_both_masks():
    one, other = np.array([1, 1, 0, 0]), np.array([True, False, True, False])
    assert attn.both_masks(None, None) is None
    assert attn.both_masks(one, None) is one
    assert attn.both_masks(None, other) is other
    both = ops.convert_to_numpy(attn.both_masks(one, other))
    assert both.tolist() == [True, False, False, False]
