"""Windows on a map against what they are, place by place."""

import numpy as np
import pytest
from keras import ops

from keras_attn.ops import windows

ROWS, COLUMNS, WINDOW = 6, 9, 3


def numbered(batch=2):
    """A map whose every place is another number."""
    return np.arange(batch * ROWS * COLUMNS, dtype="float32").reshape(
        batch, ROWS, COLUMNS, 1
    )


def test_windows_are_cut_row_by_row_and_put_back():
    image = numbered()
    cut = ops.convert_to_numpy(windows.window_partition(image, WINDOW))
    assert cut.shape == (2 * 2 * 3, 9, 1)
    # The second window of the second row of windows, of the second map.
    np.testing.assert_array_equal(
        cut[6 + 4].reshape(3, 3), image[1, 3:6, 3:6].reshape(3, 3)
    )
    back = windows.window_merge(cut, WINDOW, (ROWS, COLUMNS))
    np.testing.assert_array_equal(ops.convert_to_numpy(back), image)


@pytest.mark.parametrize("shift", [0, 2, -2])
def test_a_rolled_map_is_that_of_numpy(shift):
    rolled = ops.convert_to_numpy(windows.cyclic_shift(numbered(), shift))
    np.testing.assert_array_equal(
        rolled, np.roll(numbered(), (-shift, -shift), axis=(1, 2))
    )


def test_what_came_round_an_edge_is_not_seen():
    shift = 1
    place = np.roll(numbered(1)[0, :, :, 0].astype(int), (-shift, -shift), axis=(0, 1))
    cut = windows.window_partition(place[None, :, :, None].astype("float32"), WINDOW)
    cut = ops.convert_to_numpy(cut)[:, :, 0].astype(int)
    visible = windows.shifted_window_mask((ROWS, COLUMNS), WINDOW, shift)
    assert visible.shape == (6, 9, 9)
    for window, seen in zip(cut, visible, strict=True):
        rows, columns = np.divmod(window, COLUMNS)
        # Within a window's side of each other on the map that was not rolled.
        near = (np.abs(rows[:, None] - rows) < WINDOW) & (
            np.abs(columns[:, None] - columns) < WINDOW
        )
        np.testing.assert_array_equal(seen, near)
    assert not visible[-1].all() and visible[0].all()


def test_a_row_of_the_table_is_a_distance():
    table = windows.relative_position_rows(2, largest=2)
    # Places (0, 0), (0, 1), (1, 0), (1, 1); rows from -1 to 1, then columns.
    np.testing.assert_array_equal(
        table, [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    )


def test_a_smaller_window_has_the_distances_of_a_larger_table():
    small, large = (windows.relative_position_rows(side, 5) for side in (2, 5))
    places = [0, 1, 5, 6]  # Of a 2 × 2 corner of 5 × 5.
    np.testing.assert_array_equal(small, large[np.ix_(places, places)])
