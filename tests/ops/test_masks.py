"""Attention masks."""

import numpy as np
import pytest
from keras import ops

import keras_attn.ops as attn

B, T, S, N = 2, 5, 7, 6


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
def test_merge_masks(shape):
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


def test_merge_masks_without_heads():
    rng = np.random.default_rng(0)
    padding, mask = rng.random((B, S)) < 0.7, rng.random((B, T, S)) < 0.7
    merged = attn.merge_masks(padding_mask=padding, attention_mask=mask, per_head=False)
    np.testing.assert_array_equal(merged, padding[:, None] & mask)
    merged = attn.merge_masks(padding_mask=padding, per_head=False)
    assert merged is not None and merged.shape == (B, 1, S)


def test_merge_no_masks():
    assert attn.merge_masks() is None


def test_document_mask():
    mask = ops.convert_to_numpy(attn.document_mask(np.array([[1, 1, 2], [3, 3, 3]])))
    assert mask.astype(int).tolist() == [
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]],
        [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
    ]


@pytest.mark.parametrize("window", [1, 3, 9])
def test_banded_mask(window):
    queries, keys = np.array([[4, 5], [0, 9]]), np.arange(10)[None].repeat(2, 0)
    mask = ops.convert_to_numpy(attn.banded_mask(queries, keys, window))
    assert mask.shape == (2, 2, 10)
    for row, positions in enumerate(queries):
        for index, query in enumerate(positions):
            for key in range(10):
                assert mask[row, index, key] == (key > query - window)


def test_both_masks():
    one, other = np.array([1, 1, 0, 0]), np.array([True, False, True, False])
    assert attn.both_masks(None, None) is None
    assert attn.both_masks(one, None) is one
    assert attn.both_masks(None, other) is other
    both = ops.convert_to_numpy(attn.both_masks(one, other))
    assert both.tolist() == [True, False, False, False]


def test_column_mask():
    mask = ops.convert_to_numpy(attn.column_mask(np.array([2, 0, 3]), 3))
    assert mask.astype(int).tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
