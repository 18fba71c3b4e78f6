"""Window operations, compared token by token."""

import numpy as np
import pytest
from keras import ops

from keras_attn.ops import windows

ROWS, COLUMNS, WINDOW = 6, 9, 3


def numbered_map(batch=2):
    """A feature map with a different number at each position."""
    return np.arange(batch * ROWS * COLUMNS, dtype="float32").reshape(
        batch, ROWS, COLUMNS, 1
    )


def test_window_partition_and_merge():
    image = numbered_map()
    cut = ops.convert_to_numpy(windows.window_partition(image, WINDOW))
    assert cut.shape == (2 * 2 * 3, 9, 1)
    # The second window of the second row of windows, of the second image.
    np.testing.assert_array_equal(
        cut[6 + 4].reshape(3, 3), image[1, 3:6, 3:6].reshape(3, 3)
    )
    back = windows.window_merge(cut, WINDOW, (ROWS, COLUMNS))
    np.testing.assert_array_equal(ops.convert_to_numpy(back), image)


@pytest.mark.parametrize("shift", [0, 2, -2])
def test_cyclic_shift_is_numpys_roll(shift):
    rolled = ops.convert_to_numpy(windows.cyclic_shift(numbered_map(), shift))
    np.testing.assert_array_equal(
        rolled, np.roll(numbered_map(), (-shift, -shift), axis=(1, 2))
    )


def test_tokens_rolled_around_an_edge_are_masked():
    shift = 1
    index = np.roll(
        numbered_map(1)[0, :, :, 0].astype(int), (-shift, -shift), axis=(0, 1)
    )
    cut = windows.window_partition(index[None, :, :, None].astype("float32"), WINDOW)
    cut = ops.convert_to_numpy(cut)[:, :, 0].astype(int)
    visible = windows.shifted_window_mask((ROWS, COLUMNS), WINDOW, shift)
    assert visible.shape == (6, 9, 9)
    for window, mask in zip(cut, visible, strict=True):
        rows, columns = np.divmod(window, COLUMNS)
        # Less than a window apart on the map before the shift.
        near = (np.abs(rows[:, None] - rows) < WINDOW) & (
            np.abs(columns[:, None] - columns) < WINDOW
        )
        np.testing.assert_array_equal(mask, near)
    assert not visible[-1].all() and visible[0].all()


def test_relative_position_rows_by_hand():
    table = windows.relative_position_rows(2, largest=2)
    # Tokens (0, 0), (0, 1), (1, 0), (1, 1); offsets -1 to 1 of rows, then columns.
    np.testing.assert_array_equal(
        table, [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    )


def test_smaller_windows_use_the_rows_of_a_larger_table():
    small, large = (windows.relative_position_rows(side, 5) for side in (2, 5))
    corner = [0, 1, 5, 6]  # The first 2 × 2 tokens of 5 × 5.
    np.testing.assert_array_equal(small, large[np.ix_(corner, corner)])
