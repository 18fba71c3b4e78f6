import attention_reference as reference
import numpy as np
import pytest
from layer_contract import B, D, E, S, T, assert_close, normal

from keras_attn.layers import LearnedPositionEmbedding, SinusoidalPositionEmbedding


def joined(merge, inputs, table):
    table = np.broadcast_to(table, (*inputs.shape[:-1], table.shape[-1]))
    if merge == "add":
        return inputs + table
    return np.concatenate([inputs, table], axis=-1)


# The default, the same for all sequences, and one row per sequence.
POSITIONS = {
    "default": None,
    "shared": np.array([3, 1, 4, 16, 5]),
    "per_sequence": np.array([[0, 1, 2, 0, 1], [9, 8, 7, 6, 5]]),
}
every_position = pytest.mark.parametrize("name", POSITIONS)
every_merge = pytest.mark.parametrize(
    ("merge", "dim"), [("add", None), ("concatenate", None), ("concatenate", E)]
)


@every_merge
@every_position
def test_sinusoids_match_the_equation(name, merge, dim):
    layer = SinusoidalPositionEmbedding(merge, position_dim=dim, max_wavelength=500)
    inputs, positions = normal(B, T, D), POSITIONS[name]
    rows = np.arange(T) if positions is None else positions
    table = [reference.sinusoid(p, dim or D, 500) for p in rows.flat]
    table = np.reshape(table, (*rows.shape, -1))
    assert_close(layer(inputs, positions), joined(merge, inputs, table))
    assert layer.weights == []


@every_merge
@every_position
def test_learned_vectors_are_those_of_the_positions(name, merge, dim):
    layer = LearnedPositionEmbedding(17, merge, position_dim=dim)
    inputs, positions = normal(B, T, D), POSITIONS[name]
    layer(inputs)
    vectors = normal(17, dim or D, seed=1)
    layer.embeddings.assign(vectors)
    rows = np.arange(T) if positions is None else positions
    assert_close(layer(inputs, positions), joined(merge, inputs, vectors[rows]))


def test_the_first_rows_are_negative_positions():
    layer = LearnedPositionEmbedding(T, first_row=2)
    inputs = normal(B, T, D)
    layer(inputs)
    vectors = normal(T + 2, D, seed=1)
    layer.embeddings.assign(vectors)
    assert_close(layer(inputs), inputs + vectors[2:])
    positions = np.array([0, -1, -2, *range(1, T - 2)])
    assert_close(layer(inputs, positions), inputs + vectors[positions + 2])
    with pytest.raises(ValueError, match=r"`inputs` must have .* at most 5.*=\(2, 6, "):
        layer(normal(B, T + 1, D))


@pytest.mark.parametrize(("merge", "dim"), [("add", None), ("concatenate", 6)])
def test_a_grid_is_encoded_by_row_and_column(merge, dim):
    inputs = normal(B, T, S, 10)
    half = (dim or 10) // 2
    table = np.zeros((T, S, 2 * half))
    for row, column in np.ndindex(T, S):
        table[row, column, :half] = reference.sinusoid(row, half)
        table[row, column, half:] = reference.sinusoid(column, half)
    layer = SinusoidalPositionEmbedding(merge, position_dim=dim)
    assert_close(layer(inputs), joined(merge, inputs, table))


def test_large_positions_are_exact_in_half_precision():
    # bfloat16 cannot represent 257: positions must not be cast to the compute dtype.
    inputs = np.zeros((1, 2, 8), "float32")
    positions = np.array([256, 257])
    layer = SinusoidalPositionEmbedding(dtype="mixed_bfloat16")
    expected = np.array([[reference.sinusoid(p, 8) for p in positions]])
    assert_close(layer(inputs, positions), expected, atol=0.01)


@pytest.mark.parametrize(
    "make",
    [
        SinusoidalPositionEmbedding,
        lambda *a, **k: LearnedPositionEmbedding(17, *a, **k),
    ],
    ids=["sinusoidal", "learned"],
)
def test_wrong_arguments_are_rejected(make):
    message = (
        "`position_dim` requires merge='concatenate': added positions are as wide as "
        "the inputs. Received: position_dim=5, merge='add'"
    )
    with pytest.raises(ValueError, match=message):
        make(position_dim=5)


def test_wrong_grids_are_rejected():
    layer = SinusoidalPositionEmbedding()
    message = (
        "A grid needs positions of even width, half for the row and half for the "
        "column. Received: width=11"
    )
    with pytest.raises(ValueError, match=message):
        layer(normal(B, T, S, D))
    message = (
        "`positions` are for sequences; a grid's positions are its rows and columns. "
        r"Received: inputs.shape=\(2, 5, 7, 10\)"
    )
    with pytest.raises(ValueError, match=message):
        SinusoidalPositionEmbedding()(normal(B, T, S, 10), np.arange(T))
