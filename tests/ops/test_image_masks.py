"""Sparse masks of a text and an image, against an enumeration of all pairs."""

import re

import numpy as np
import pytest
from keras import ops

import keras_attn.ops as attn

TEXT, ROWS, COLUMNS, WINDOW = 3, 5, 7, 5


def sees(kind, query, key):
    """Whether a token of the image attends to a token of the image."""
    row, column = divmod(query, COLUMNS)
    key_row, key_column = divmod(key, COLUMNS)
    is_past = (key_row, key_column) <= (row, column)
    near = abs(key_row - row) <= WINDOW // 2 and abs(key_column - column) <= WINDOW // 2
    return (
        is_past
        and {
            # Itself and the seven tokens before it, also of the row above.
            "row": key in range(query - COLUMNS, query + 1),
            "column": key_column == column,
            "convolutional": near,
        }[kind]
    )


IMAGE = np.arange(ROWS * COLUMNS, dtype="int32")


@pytest.mark.parametrize("kind", ["row", "column", "convolutional"])
def test_every_pair_of_a_text_and_an_image(kind):
    length = TEXT + len(IMAGE)
    places = np.arange(length, dtype="int32")
    options = {"text_length": TEXT, "num_columns": COLUMNS, "window_size": WINDOW}
    found = ops.convert_to_numpy(attn.text_image_mask(kind, places, places, **options))
    expected = np.zeros((length, length), bool)
    for query, key in np.ndindex(length, length):
        if key < TEXT:  # The image sees all of the text, which is causal.
            expected[query, key] = key <= query
        elif query >= TEXT:
            expected[query, key] = sees(kind, query - TEXT, key - TEXT)
    np.testing.assert_array_equal(found, expected)
    # Batches of positions, in any order.
    some = np.array([[11, 3], [20, 37]], "int32")
    keys = np.stack([places, places[::-1]])
    found = ops.convert_to_numpy(attn.text_image_mask(kind, some, keys, **options))
    assert found.shape == (2, 2, length)
    np.testing.assert_array_equal(found[0], expected[some[0]])
    np.testing.assert_array_equal(found[1], expected[some[1]][:, ::-1])


def test_the_published_sizes():
    """What a token in the middle of DALL·E's image attends to, besides 256 words."""
    places = np.arange(256 + 1024, dtype="int32")
    query = np.array([256 + 20 * 32 + 16], "int32")
    counts = {}
    for kind in ("row", "column", "convolutional"):
        mask = attn.text_image_mask(
            kind, query, places, text_length=256, num_columns=32
        )
        counts[kind] = int(np.sum(ops.convert_to_numpy(mask))) - 256
    # 5 rows of 11 above, and 6 of its own row.
    assert counts == {"row": 33, "column": 21, "convolutional": 5 * 11 + 6}


@pytest.mark.parametrize("size", [4, 0, -3, 3.0])
def test_a_window_without_a_center(size):
    match = re.escape("`window_size` must be an odd positive integer, so that the")
    with pytest.raises(ValueError, match=f"{match}.*window_size={size}"):
        attn.image_window_mask(IMAGE, IMAGE, COLUMNS, window_size=size)


def test_an_unknown_kind():
    with pytest.raises(ValueError, match="`kind` must be one of 'row'.*'dense'"):
        attn.text_image_mask("dense", IMAGE, IMAGE, text_length=3, num_columns=7)
