"""Masks pasted into the image, against their definition.

torchvision's way, `aligned=False`, is compared with torchvision in `tests/parity`.
"""

import numpy as np
import pytest
from keras import ops

from keras_attn.ops import paste_masks


def paste(mask, box, size, threshold=None):
    """One mask in one box."""
    boxes = np.array([[box]], "float32")
    return ops.convert_to_numpy(paste_masks(mask[None, None], boxes, size, threshold))[
        0, 0
    ]


def test_a_mask_is_stretched_over_its_box():
    mask = np.array([[0.0, 1.0], [0.5, 0.25]])
    # Each cell covers 4 x 6 pixels.
    pasted = paste(mask, (3, 5, 15, 13), (17, 19))
    assert pasted.shape == (17, 19)
    outside = pasted.copy()
    outside[5:13, 3:15] = 0
    assert not outside.any()

    def value(row, column):
        """Interpolated in the mask with a border of zeros, at a pixel's center."""
        y, x = (row + 0.5 - 5) / 4 + 0.5, (column + 0.5 - 3) / 6 + 0.5
        padded = np.pad(mask, 1)
        i, j = int(y), int(x)
        upper = padded[i, j] * (j + 1 - x) + padded[i, j + 1] * (x - j)
        lower = padded[i + 1, j] * (j + 1 - x) + padded[i + 1, j + 1] * (x - j)
        return upper * (i + 1 - y) + lower * (y - i)

    for row in range(5, 13):
        for column in range(3, 15):
            np.testing.assert_allclose(
                pasted[row, column], value(row, column), atol=1e-6
            )


def test_a_full_mask_fills_its_box_and_what_sticks_out_is_cut():
    ones = np.ones((28, 28))
    pasted = paste(ones, (2, 3, 7, 11), (13, 17), threshold=0.5)
    expected = np.zeros(((13, 17)), bool)
    expected[3:11, 2:7] = True
    np.testing.assert_array_equal(pasted, expected)
    pasted = paste(ones, (-5, -7, 40, 2), (13, 17), threshold=0.5)
    assert pasted[:2].all() and not pasted[2:].any()


@pytest.mark.parametrize(
    "box",
    [
        (5, 5, 5, 9),
        (9, 5, 5, 9),
        (5, 9, 9, 5),
        (np.nan, 1, 3, 4),
        (-np.inf, 1, 3, 4),
        (20, 1, 30, 4),
    ],
)
def test_boxes_without_pixels_give_empty_masks(box):
    assert not paste(np.ones((3, 5)), box, (13, 17)).any()
