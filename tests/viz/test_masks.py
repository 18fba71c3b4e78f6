"""Plots of masks, and of Swin's windows and their masks."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from viz.figures import panels, tick_labels

from keras_attn.ops import causal_mask
from keras_attn.ops.windows import shifted_window_mask
from keras_attn.viz import MaskExample, example_masks, plot_masks, plot_windows
from keras_attn.viz.drawing.plots import figure_to_array


def shown(axis, number=0):
    return np.asarray(axis.images[number].get_array())


def test_what_each_kind_of_mask_lets_through():
    masks = {name: example.mask for name, example in example_masks().items()}
    query, key = np.indices((8, 8))
    expected = {
        "none": np.ones((8, 8), bool),
        "causal": key <= query,
        "padding": key < 6,
        "sliding window": abs(query - key) < 3,
        "causal band": (key <= query) & (query - key < 3),
        "prefix": (key <= query) | (key < 3),
    }
    documents = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    same = documents[:, None] == documents
    expected["documents"] = same & (key <= query)
    for name, mask in expected.items():
        np.testing.assert_array_equal(masks[name], mask, name)
    # A token of any order attends to those before it: 0 + 1 + … + 7 pairs.
    sees = masks["permutation"]
    assert sees.sum(1).tolist() == [4, 0, 6, 2, 7, 1, 3, 5] and sees.sum() == 28
    # The code (1, 2) of DALL·E's grid: 2 tokens of text, itself and what it reaches.
    code = 2 + 1 * 4 + 2
    reached = {
        "row": [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2)],
        "column": [(0, 2), (1, 2)],
        "convolutional": [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)],
    }
    for kind, cells in reached.items():
        mask = masks.pop(f"DALL·E, {kind}")[code]
        assert mask[:2].all()
        assert list(zip(*np.nonzero(mask[2:].reshape(3, 4)), strict=True)) == cells
    # A map of 6 x 6 rolled by 1: the last row and column of the window came around.
    pieces = np.array([0, 0, 1, 0, 0, 1, 2, 2, 3])
    np.testing.assert_array_equal(
        masks.pop("Swin, shifted window"), pieces[:, None] == pieces
    )
    assert set(masks) == {*expected, "permutation"}


def test_every_kind_is_in_one_figure():
    figure = plot_masks(title="masks $ of all kinds")
    examples = example_masks()
    drawn = panels(figure)
    assert len(drawn) == len(examples) == 12
    for axis, (name, example) in zip(drawn, examples.items(), strict=True):
        np.testing.assert_array_equal(shown(axis), example.mask)
        assert axis.get_title().replace("\n", " ") == f"{name} {example.meaning}"
        assert tick_labels(axis.xaxis) == tick_labels(axis.yaxis) == example.tokens
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("key", "query")
    assert figure.get_supxlabel().startswith("blue: the query of the row attends")
    assert figure_to_array(figure).std() > 0


def test_given_masks_and_tokens():
    tokens = ["[START]", "big cat", "$"]
    masks = {"ours": causal_mask(3, 3), "other": np.eye(3)[None, None]}
    one, other = panels(plot_masks(masks, tokens))
    np.testing.assert_array_equal(shown(one), np.tri(3))
    np.testing.assert_array_equal(shown(other), np.eye(3))
    assert tick_labels(one.xaxis) == ["[START]", "big␣cat", "$"]
    (alone,) = panels(plot_masks({"a": MaskExample(np.eye(2), ["x", "y"], "itself")}))
    assert alone.get_title() == "a\nitself"
    (numbered,) = panels(plot_masks({"a": np.eye(2)}))
    assert tick_labels(numbered.yaxis) == ["0", "1"]


@pytest.mark.parametrize(
    ("masks", "tokens", "message"),
    [
        ({}, None, "`masks` must be a dictionary, at least one"),
        (np.eye(3), None, "`masks` must be a dictionary"),
        ({1: np.eye(3)}, None, "by its name, a string. Received: masks={1:"),
        (
            {"a": [[1, 0], [1]]},
            None,
            r"must be arrays. Received: 'a': \[\[1, 0\], \[1\]\]",
        ),
        ({"a": np.eye(2)}, [0, 1], r"`tokens` must be 2 strings.*tokens=\[0, 1\]"),
        ({"a": np.ones((2, 3))}, None, r"Received: 'a' of shape \(2, 3\)"),
        ({"a": np.ones((2, 3, 3))}, None, r"Received: 'a' of shape \(2, 3, 3\)"),
        ({"a": np.eye(33)}, None, "T from 1 to 32"),
        ({"a": np.full((2, 2), -1e9)}, None, "booleans, or 0 and 1"),
        ({"a": np.eye(3)}, ["x", "y"], "`tokens` must be 3 strings"),
        ({"a": np.eye(3)}, list("wxyz"), r"`tokens` must be 3 strings.*\['w', 'x'"),
    ],
)
def test_masks_that_are_refused(masks, tokens, message):
    with pytest.raises(ValueError, match=message):
        plot_masks(masks, tokens)


def test_windows_before_and_after_the_shift():
    figure = plot_windows((4, 6), window_size=2, shift=1, title="Swin")
    plain, in_place, rolled, *masks = panels(figure)
    numbers = np.array([[0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5]]).repeat(2, axis=0)
    np.testing.assert_array_equal(shown(plain), numbers)
    np.testing.assert_array_equal(shown(rolled), numbers)
    # The window of token (0, 0) is at the opposite corner, too.
    expected = np.roll(numbers, (1, 1), axis=(0, 1))
    np.testing.assert_array_equal(shown(in_place), expected)
    assert expected[0, 0] == expected[3, 5] == expected[0, 5] == 5
    assert [int(text.get_text()) for text in plain.texts] == [0, 1, 2, 3, 4, 5]
    # A number in each part: windows at an edge are in two, that of the corner in four.
    parts = [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 5]
    for axis in (in_place, rolled):
        assert sorted(int(text.get_text()) for text in axis.texts) == parts
        assert axis.get_xlabel() == "column of tokens"
    # Inside, at the right edge, at the lower edge, in the corner.
    library = shifted_window_mask((4, 6), 2, 1)
    assert [axis.get_title() for axis in masks] == [
        f"mask of window {number}" for number in (0, 2, 3, 5)
    ]
    for axis, number in zip(masks, (0, 2, 3, 5), strict=True):
        np.testing.assert_array_equal(shown(axis), library[number])
    # A label for each row of a window.
    assert tick_labels(masks[0].xaxis) == tick_labels(masks[0].yaxis) == ["0", "1"]
    assert masks[0].get_xlabel() == "key: row of 2 tokens"
    assert figure_to_array(figure).std() > 0


def test_windows_that_are_not_shifted():
    plain, in_place, rolled, mask = panels(plot_windows((4, 4), 4, shift=0))
    for axis in (plain, in_place, rolled):
        assert (shown(axis) == 0).all() and len(axis.texts) == 1
    assert shown(mask).all()
    # Half a window is the default, and nothing if one window is all rows.
    assert len(panels(plot_windows((8, 8), 4))) == 3 + 4
    assert len(panels(plot_windows((4, 8), 4))) == 3 + 1


def test_a_photo_below_the_windows_is_rolled_with_them():
    photo = np.random.default_rng(0).random((8, 16, 3))
    photo[0, :2, 0] = 0, 1  # The range of its values is drawn from black to white.
    plain, in_place, rolled, *_ = panels(plot_windows((2, 4), 2, 1, photo))
    for axis in (plain, in_place):
        np.testing.assert_allclose(shown(axis, 0), photo, atol=1e-6)
        assert shown(axis, 1).shape == (2, 4)
    # A token is 4 pixels.
    moved = np.roll(photo, (-4, -4), axis=(0, 1))
    np.testing.assert_allclose(shown(rolled, 0), moved, atol=1e-6)
    # Of a photo of another aspect, the center.
    tall = np.concatenate([photo[:4], photo, photo[4:]])
    _, in_place, *_ = panels(plot_windows((2, 4), 2, 1, tall))
    np.testing.assert_allclose(shown(in_place, 0), photo, atol=1e-6)
    lines = [x for x in plain.collections if isinstance(x, LineCollection)]
    assert lines[-1].get_segments()[0].tolist() == [[1.5, -0.5], [1.5, 0.5]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": (8, 6)}, r"multiples of `window_size`, 4.*Received: size=\(8, 6\)"),
        ({"size": (68, 4)}, "at most 64 tokens and 10 windows"),
        ({"size": (44, 4)}, r"Received: size=\(44, 4\)"),
        ({"size": "8"}, "`size` must be rows and columns"),
        ({"shift": 4}, "`shift` must be an integer from 0 to less than"),
        ({"shift": -1}, "Received: shift=-1"),
        ({"window_size": 0}, "`window_size`"),
        ({"image": np.zeros((8, 8))}, r"`image` must have the shape"),
    ],
)
def test_windows_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_windows(**arguments)
