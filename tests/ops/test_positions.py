"""Token positions and sinusoidal position encodings."""

import attention_reference as reference
import numpy as np
import pytest
from keras import ops

import keras_attn.ops as attn

T, S = 5, 7


def close(actual, expected, atol=1e-5):
    np.testing.assert_allclose(
        ops.convert_to_numpy(actual), expected, atol=atol, rtol=atol
    )


@pytest.mark.parametrize("dim", [1, 2, 7, 8])
def test_sinusoids(dim):
    expected = [reference.sinusoid(position, dim) for position in range(S)]
    close(attn.sinusoids(np.arange(S), dim), expected)
    expected = [[reference.sinusoid(p, dim, 100)] for p in (0, 3, 40)]
    close(attn.sinusoids(np.array([[0], [3], [40]]), dim, 100), expected)


def test_sinusoids_of_a_grid():
    table = ops.convert_to_numpy(attn.sinusoids_2d(T, S, 10))
    assert table.shape == (T, S, 10)
    for row, column in np.ndindex(T, S):
        expected = reference.sinusoid(row, 5) + reference.sinusoid(column, 5)
        close(table[row, column], expected)


MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]])


def test_token_positions_count_real_tokens_only():
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


def test_positions_of_each_document_of_a_row():
    mask = [[1, 1, 1, 1, 1, 0], [0, 1, 1, 0, 1, 1], [1, 1, 0, 1, 0, 0]]
    ids = [[7, 7, 2, 3, 3, 0], [0, 1, 1, 2, 2, 2], [4, 4, 4, 4, 0, 0]]
    for dtype in ("int32", "bool"):
        found = attn.document_positions(np.array(mask, dtype), np.array(ids))
        assert ops.convert_to_numpy(found).tolist() == [
            [0, 1, 0, 0, 1, 0],
            [0, 0, 1, 0, 0, 1],
            [0, 1, 1, 2, 0, 0],
        ]
    # One document has the positions of a row.
    found = attn.document_positions(MASK, np.ones_like(MASK))
    expected = ops.convert_to_numpy(attn.token_positions(MASK))
    np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


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
