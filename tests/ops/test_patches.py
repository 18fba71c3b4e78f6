"""Patches of images, and position tables of grids."""

import numpy as np
import pytest
from keras import ops

from keras_attn.ops import patches


def test_image_to_patches_and_back():
    images = np.random.default_rng(0).normal(size=(2, 6, 10, 3)).astype("float32")
    cut = ops.convert_to_numpy(patches.image_to_patches(images, (3, 5)))
    assert cut.shape == (2, 4, 45)
    np.testing.assert_array_equal(cut[1, 2].reshape(3, 5, 3), images[1, 3:, :5])
    back = patches.patches_to_image(cut, (3, 5), (2, 2))
    np.testing.assert_array_equal(ops.convert_to_numpy(back), images)


def test_image_sizes_that_are_no_multiple_of_the_patch_size_are_errors():
    message = r"multiple of `patch_size`: resize or crop.*\(1, 7, 6, 3\).*=3"
    with pytest.raises(ValueError, match=message):
        patches.image_to_patches(np.zeros((1, 7, 6, 3), "float32"), 3)


def test_sinusoid_grid():
    table = patches.sinusoid_grid(2, 3, 8)
    assert table.shape == (6, 8)
    row, column = 1, 2
    waves = [
        position / 10_000**power for position in (column, row) for power in (0, 0.5)
    ]
    expected = [
        *np.sin(waves[:2]),
        *np.cos(waves[:2]),
        *np.sin(waves[2:]),
        *np.cos(waves[2:]),
    ]
    np.testing.assert_allclose(table[row * 3 + column], expected, rtol=1e-5)
    with pytest.raises(ValueError, match="multiple of 4.*dim=6"):
        patches.sinusoid_grid(2, 2, 6)


def test_resizing_to_the_same_grid_changes_nothing():
    table = np.random.default_rng(0).normal(size=(7, 5)).astype("float32")
    same = patches.resize_positions(table, (2, 3), (2, 3))
    np.testing.assert_allclose(same, table, rtol=0, atol=1e-6)
    assert same.dtype == table.dtype


def test_resizing_keeps_a_linear_ramp():
    ramp = np.tile(np.arange(6.0)[:, None, None], (1, 6, 1)).reshape(36, 1)
    table = np.concatenate([[[99.0]], ramp])
    resized = patches.resize_positions(table, (6, 6), (12, 3))
    assert resized.shape == (1 + 36, 1) and resized[0] == 99
    rows = resized[1:].reshape(12, 3)
    np.testing.assert_allclose(rows[:, 0], rows[:, 2])
    # Away from the edges, where samples are clamped.
    np.testing.assert_allclose(rows[4:8, 0], [1.75, 2.25, 2.75, 3.25], atol=0.05)


def test_a_table_of_another_size_than_its_grid_is_an_error():
    with pytest.raises(ValueError, match=r"`old_grid`.*6 rows, old_grid=\(2, 2\)"):
        patches.resize_positions(np.zeros((7, 3)), (2, 2), (3, 3))
