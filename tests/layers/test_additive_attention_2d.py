"""2-D attention and column masks against their equations, and what they refuse."""

import attention_reference as reference
import numpy as np
import pytest
from keras import ops
from layer_contract import B, D, E, T, assert_close, built_on, flat, normal

from keras_attn.layers import AdditiveAttention2D, ColumnMask

ROWS, COLUMNS, UNITS = 3, 5, 7


def attend(layer, query, value, mask):
    """The paper's equations, one location and one neighbour at a time."""
    weights = reference.weights_of(layer)
    w, u = weights["query/kernel"], weights["key/kernel"]
    v, bias = weights["score_vector"], weights.get("key/bias", 0)
    offsets = [(size - 1) // 2 for size in u.shape[:2]]
    value = np.where(mask[..., None], value, 0).astype("float64")
    glimpses = np.zeros((B, T, E))
    weights = np.zeros((B, T, ROWS, COLUMNS))
    for b, t in np.ndindex(B, T):
        energies = np.full((ROWS, COLUMNS), -np.inf)
        for i, j in np.argwhere(mask[b]):
            hidden = query[b, t] @ w + bias
            for p, q in np.ndindex(*u.shape[:2]):
                row, column = i + p - offsets[0], j + q - offsets[1]
                if 0 <= row < ROWS and 0 <= column < COLUMNS:
                    hidden = hidden + value[b, row, column] @ u[p, q]
            energies[i, j] = np.tanh(hidden) @ v[:, 0]
        alpha = reference.softmax(energies.ravel()).reshape(ROWS, COLUMNS)
        weights[b, t] = alpha
        glimpses[b, t] = np.einsum("ij,ijd->d", alpha, value[b])
    return glimpses, weights.reshape(B, T, -1)


@pytest.mark.parametrize("kernel_size", [3, 1, (1, 2), (5, 3)])
def test_follows_the_equations(kernel_size):
    query, value = normal(B, T, D), 3 * normal(B, ROWS, COLUMNS, E, seed=1)
    layer = AdditiveAttention2D(UNITS, kernel_size, use_bias=kernel_size == 1)
    layer = built_on(layer, query, value)
    mask = np.arange(COLUMNS) < np.array([5, 2])[:, None, None]
    mask = np.broadcast_to(mask, (B, ROWS, COLUMNS)).copy()
    mask[1, 0, 0] = False
    got = layer(query, value, padding_mask=mask, return_attention_scores=True)
    expected = attend(layer, query, value, mask)
    assert_close(got, expected)
    assert np.abs(expected[1] - 1 / (ROWS * COLUMNS)).max() > 0.02
    # Neither values nor neighbours of padding count.
    other = np.where(mask[..., None], value, 99).astype("float32")
    assert_close(layer(query, other, padding_mask=mask), got[0], atol=1e-6)
    none = layer(query, value, padding_mask=np.zeros_like(mask))
    assert not flat(none)[0].any()


def test_the_projection_can_be_used_again():
    query, value = normal(B, T, D), normal(B, ROWS, COLUMNS, E, seed=1)
    layer = built_on(AdditiveAttention2D(UNITS), query, value)
    first, projected = layer(query[:, :1], value, return_projected_key=True)
    assert tuple(projected.shape) == (B, ROWS, COLUMNS, UNITS)
    expected = layer(query, value)
    assert_close(first, flat(expected)[0][:, :1])
    again = layer(query, value, projected_key=projected)
    assert_close(again, expected, atol=0)


def test_columns_up_to_the_width_are_real():
    images = np.zeros((4, 2, 5, 3), "float32")
    mask = ops.convert_to_numpy(ColumnMask()(np.array([0, 1, 4, 5]), images))
    np.testing.assert_array_equal(mask, np.arange(5) < [[0], [1], [4], [5]])
    with pytest.raises(ValueError, match=r"`widths` must have the shape \(batch,\)"):
        ColumnMask()(np.array([1, 2, 3]), images)
