"""`MultiHeadAttention` against NumPy: projections, masks, biases, caches.

More than 400 lines: one layer, three sources of masks and three ways to use a cache.
"""

import math
import re

import attention_reference as reference
import keras
import numpy as np
import pytest
from attention_reference import array_of
from keras import ops
from layer_contract import (
    B,
    D,
    E,
    F,
    S,
    T,
    assert_close,
    built_on,
    flat,
    gradients,
    normal,
)

from keras_attn.layers import MultiHeadAttention

HEADS, KEY_DIM, VALUE_DIM, OUTPUT_DIM = 6, 3, 19, 23


@pytest.mark.each_value
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("groups", [None, 3, 1])
@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
@pytest.mark.parametrize("kind", ["self", "cross", "cross_key"])
def test_computes_the_papers_equations(kind, value_dim, groups, use_bias):
    layer = MultiHeadAttention(
        HEADS,
        KEY_DIM,
        value_dim=value_dim,
        num_key_value_heads=groups,
        use_bias=use_bias,
        output_shape=None if kind == "self" else OUTPUT_DIM,
    )
    query, value = normal(B, T, D), normal(B, S, E, seed=1)
    key = normal(B, S, F, seed=2)
    call = {"self": (query,), "cross": (query, value), "cross_key": (query, value, key)}
    call = call[kind]
    value = query if kind == "self" else value
    key = key if kind == "cross_key" else value
    built_on(layer, *call)
    length = key.shape[1]
    mask = np.random.default_rng(3).random((B, HEADS, T, length)) < 0.7
    mask[0, 2, 1] = False
    bias = normal(B, HEADS, T, length, seed=4)
    weights = reference.multi_head_weights(layer)
    assert_close(
        layer(*call, return_attention_scores=True),
        reference.multi_head(query, key, value, weights, HEADS, groups),
    )
    found = layer(
        *call, attention_mask=mask, attention_bias=bias, return_attention_scores=True
    )
    expected = reference.multi_head(
        query, key, value, weights, HEADS, groups, mask=mask, bias=bias
    )
    assert_close(found, expected)
    assert not ops.convert_to_numpy(found[1])[0, 2, 1].any()


def test_parts_of_the_fused_kernel_are_initialized_independently():
    width, heads, size = 97, 5, 11
    layer = MultiHeadAttention(heads, size, num_key_value_heads=1)
    layer.build((None, None, width))
    kernel = array_of(layer.query_key_value.kernel)
    assert kernel.shape == (width, 7 * size)
    query, key, value = np.split(kernel, [heads * size, (heads + 1) * size], axis=1)
    assert np.abs(key - value).max() > 0.1
    assert np.abs(query[:, :size] - key).max() > 0.1
    for block in (query, key, value):
        # Glorot: uniform up to √(6 / (in + out)) of the part, not of the fused kernel.
        bound = math.sqrt(6 / sum(block.shape))
        assert 0.97 * bound < np.abs(block).max() <= bound
    cross = MultiHeadAttention(heads, size)
    cross.build((None, None, width), (None, None, width))
    kernels = [cross.query.kernel, cross.key.kernel, cross.value.kernel]
    query, key, value = (array_of(kernel) for kernel in kernels)
    for one, other in ((query, key), (key, value), (query, value)):
        assert np.abs(one - other).max() > 0.1


def unwritten_cache(groups, value_dim=KEY_DIM):
    """A cache with arbitrary values."""
    return [
        1e3 * normal(B, groups, S, size, seed=size) for size in (KEY_DIM, value_dim)
    ]


@pytest.mark.parametrize("groups", [HEADS, 3, 1])
def test_incremental_decoding_equals_one_call(groups):
    inputs = normal(B, T, D)
    layer = built_on(
        MultiHeadAttention(HEADS, KEY_DIM, num_key_value_heads=groups), inputs
    )
    expected = layer(inputs, use_causal_mask=True, return_attention_scores=True)
    cache = unwritten_cache(groups)
    outputs, scores = [], []
    for index in range(T):
        output, score, cache = layer(
            inputs[:, index : index + 1],
            use_causal_mask=True,
            cache=cache,
            cache_index=ops.convert_to_tensor(index) if index % 2 else index,
            return_attention_scores=True,
        )
        outputs.append(output)
        scores.append(score)
        assert [tuple(part.shape) for part in cache] == [(B, groups, S, KEY_DIM)] * 2
    found = ops.concatenate(outputs, 1), ops.concatenate(scores, 2)[..., :T]
    assert_close(found, expected)
    assert not flat(ops.concatenate(scores, 2)[..., T:])[0].any()
    # The prompt in one call, then the rest in one call.
    cache = unwritten_cache(groups)
    first, cache = layer(
        inputs[:, :3], use_causal_mask=True, cache=cache, cache_index=0
    )
    rest, _ = layer(inputs[:, 3:], use_causal_mask=True, cache=cache, cache_index=3)
    assert_close(ops.concatenate([first, rest], 1), expected[0])


def test_the_returned_cache_holds_keys_and_values():
    inputs = normal(B, T, D)
    layer = built_on(MultiHeadAttention(HEADS, KEY_DIM, num_key_value_heads=3), inputs)
    _, _, wk, bk, wv, bv, _, _ = reference.multi_head_weights(layer)
    _, cache = layer(inputs, return_cache=True)
    for part, kernel, bias in zip(cache, (wk, wv), (bk, bv), strict=True):
        projected = (inputs @ kernel + bias).reshape((B, T, 3, KEY_DIM))
        assert_close(part, projected.transpose((0, 2, 1, 3)))


@pytest.mark.parametrize("value_dim", [KEY_DIM, VALUE_DIM])
@pytest.mark.parametrize("groups", [HEADS, 3, 1])
def test_continuing_a_cache_equals_one_call(groups, value_dim):
    inputs, padding = normal(B, T, D), np.ones((B, T), bool)
    padding[0, 1] = False
    layer = MultiHeadAttention(
        HEADS, KEY_DIM, value_dim=value_dim, num_key_value_heads=groups
    )
    built_on(layer, inputs)
    options = {"use_causal_mask": True, "return_attention_scores": True}
    expected = layer(inputs, padding_mask=padding, **options)
    # The prompt, then two chunks; each call returns its own keys and values only.
    end = 2
    *first, cache = layer(
        inputs[:, :end], padding_mask=padding[:, :end], return_cache=True, **options
    )
    assert_close(first[0], expected[0][:, :end])
    for length in (T - 1 - end, 1):
        piece = slice(end, end + length)
        output, scores, added = layer(
            inputs[:, piece],
            cache=cache,
            padding_mask=padding[:, : end + length],
            **options,
        )
        assert_close(output, expected[0][:, piece])
        assert_close(scores, expected[1][:, :, piece, : end + length])
        assert [tuple(part.shape) for part in added] == [
            (B, groups, length, size) for size in (KEY_DIM, value_dim)
        ]
        cache = [ops.concatenate(both, 2) for both in zip(cache, added, strict=True)]
        end += length


@pytest.mark.parametrize("groups", [HEADS, 3])
def test_cross_attention_to_a_cache(groups):
    query, value = normal(B, T, D), normal(B, S, E, seed=1)
    layer = built_on(
        MultiHeadAttention(HEADS, KEY_DIM, num_key_value_heads=groups), query, value
    )
    padding = np.arange(S) < np.array([[3], [S]])
    options = {"padding_mask": padding, "return_attention_scores": True}
    *expected, cache = layer(query, value, return_cache=True, **options)
    *found, same = layer(query, cache=cache, **options)
    assert_close(found, expected, atol=1e-6)
    assert_close(same, cache, atol=0)
    step, _, _ = layer(query[:, 2:3], cache=cache, **options)
    assert_close(step, expected[0][:, 2:3], atol=1e-6)


def test_caches_may_have_half_precision():
    inputs = normal(B, T, D)
    layer = MultiHeadAttention(HEADS, KEY_DIM)
    layer(inputs)
    cache = [ops.zeros((B, HEADS, S, KEY_DIM), "float16")] * 2
    outputs, cache = layer(inputs, cache=cache, cache_index=0, use_causal_mask=True)
    expected = layer(inputs, use_causal_mask=True)
    assert_close(outputs, expected, atol=1e-2)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"


def test_a_bias_of_minus_infinity_gives_no_nan():
    inputs = normal(B, T, D)
    layer = built_on(MultiHeadAttention(HEADS, KEY_DIM), inputs)
    bias = np.zeros((B, HEADS, T, T), "float32")
    bias[..., 3:] = -np.inf
    hidden = layer(inputs, attention_bias=bias, return_attention_scores=True)
    mask = np.broadcast_to(np.arange(T) < 3, (B, T))
    masked = layer(inputs, padding_mask=mask, return_attention_scores=True)
    assert_close(hidden, masked)
    bias[:] = -np.inf
    call = {"query": inputs, "attention_bias": bias}
    assert np.isfinite(flat(layer(**call))[0]).all()
    assert all(np.isfinite(g).all() for g in gradients(layer, **call).values())
    # A bias may be broadcast.
    row = normal(1, HEADS, 1, T)
    assert_close(
        layer(inputs, attention_bias=row),
        layer(inputs, attention_bias=np.broadcast_to(row, (B, HEADS, T, T))),
    )


def test_dropout_applies_in_training_only_and_not_to_the_scores():
    inputs = normal(B, T, D)
    layer = built_on(MultiHeadAttention(HEADS, KEY_DIM, dropout=0.5, seed=3), inputs)
    plain = MultiHeadAttention.from_config({**layer.get_config(), "dropout": 0.0})
    plain(inputs)
    plain.set_weights([array_of(w) for w in layer.trainable_variables])
    expected = plain(inputs, return_attention_scores=True)
    for call in ({}, {"training": False}):
        assert_close(layer(inputs, return_attention_scores=True, **call), expected)
    found, scores = layer(inputs, return_attention_scores=True, training=True)
    assert np.abs(flat(found)[0] - flat(expected[0])[0]).max() > 0.01
    assert_close(scores, expected[1])
    # The others are scaled up, so the mean over many calls is unchanged.
    many = np.mean([flat(layer(inputs, training=True))[0] for _ in range(100)], axis=0)
    np.testing.assert_allclose(many, flat(expected[0])[0], atol=0.5)
    again = MultiHeadAttention.from_config(layer.get_config())
    again(inputs)
    again.set_weights([array_of(w) for w in layer.trainable_variables])
    assert_close(again(inputs, training=True), found)


def test_heads_are_shared_evenly():
    message = (
        "`num_heads` must be a multiple of `num_key_value_heads`. Received: "
        "num_heads=6, num_key_value_heads=4"
    )
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(HEADS, KEY_DIM, num_key_value_heads=4)


QUERY, VALUE = normal(B, T, D), normal(B, S, E)
CACHE = normal(2, B, HEADS, S, KEY_DIM)
SCORES_SHAPE = "(batch, heads, query length, key length)"


@pytest.mark.parametrize(
    ("first", "call", "message"),
    [
        ("cross", {"key": normal(B, E)}, "`key` must have 3 axes, (batch, key length"),
        ("self", {"key": VALUE}, "`key` needs a `value`. Received: value=None"),
        (
            "self",
            {"value": VALUE},
            "This layer was built for self-attention: its first call had no `value`. "
            "Call it the same way again, or create a second layer. Received: "
            "value=(2, 7, 13)",
        ),
        (
            "cross",
            {"value": None},
            "This layer was built for cross-attention: its first call had a `value`. "
            "Call it the same way again, or create a second layer. Received: "
            "value=None",
        ),
        (
            "cross",
            {"cache": CACHE},
            "A `cache` without a `cache_index` replaces `value`; pass one of them. "
            "Received: value=(2, 7, 13)",
        ),
        ("self", {"cache_index": 0}, "`cache_index` needs a `cache`. Received: cache="),
        (
            "self",
            {"cache": CACHE[0]},
            "`cache` must be a pair, keys and values, each (batch, key/value heads, "
            "length, size of a head). Received: cache=(2, 6, 7, 3)",
        ),
        (
            "self",
            {"cache": [CACHE[0], CACHE[1][0]], "cache_index": 0},
            "`cache[1]` must have 4 axes, (batch, key/value heads, length, size of a "
            "head). Received: cache[1].shape=(6, 7, 3)",
        ),
        (
            "self",
            {"cache": [CACHE[0][:, :3], CACHE[1]], "cache_index": 0},
            "`cache[0]` must have the shape (batch, key/value heads, length, size of a "
            "head) = (2, 6, None, 3). Received: cache[0].shape=(2, 3, 7, 3)",
        ),
        (
            "cross",
            {"attention_mask": np.ones((S,))},
            f"`attention_mask` must have 4 axes, {SCORES_SHAPE}. Received: "
            "attention_mask.shape=(7,)",
        ),
        (
            "cross",
            {"attention_mask": np.ones((S, T))},
            "`attention_mask` must have the shape (query length, key length) = (5, 7). "
            "Received: attention_mask.shape=(7, 5)",
        ),
    ],
)
def test_wrong_calls_are_refused(first, call, message):
    usual = {"query": QUERY} if first == "self" else {"query": QUERY, "value": VALUE}
    layer = MultiHeadAttention(HEADS, KEY_DIM)
    layer(**usual)
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(**{**usual, **call})


@pytest.mark.parametrize(
    "options", [{}, {"num_key_value_heads": 1, "value_dim": 5}, {"attention_axes": 2}]
)
def test_an_empty_batch(options):
    shape = (3, T, D) if "attention_axes" in options else (T, D)
    layer = MultiHeadAttention(2, KEY_DIM, **options)
    layer(normal(B, *shape))
    outputs, scores = layer(np.zeros((0, *shape)), return_attention_scores=True)
    assert tuple(outputs.shape) == (0, *shape)
    assert tuple(scores.shape) == (0, *shape[:-2], 2, T, T)
