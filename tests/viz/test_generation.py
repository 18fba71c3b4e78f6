"""Plots of DALL·E: masks, codes and samples, also in TensorBoard."""

import keras
import numpy as np
import pytest
from event_files import pictures_of
from families.dalle import GRID, TEXT, sees
from model_cases import create, inputs_for, numpy, tiny
from viz.figures import panels

from keras_attn.models import GeneratedImages
from keras_attn.viz import plot_codes, plot_generated_images, plot_image_masks
from keras_attn.viz.callbacks import CodeMaps, GeneratedImageMaps

RNG = np.random.default_rng(0)
IMAGES = RNG.random((2, 8, 12, 3)).astype("float32")
CODES = RNG.integers(0, 29, (2, 2, 3))


def shown(axis):
    return np.asarray(axis.images[0].get_array())


def is_attended(axis):
    """Which cells have the color of what is attended to, or of the query."""
    return (shown(axis) != (238, 241, 245)).any(-1)


def test_masks():
    figure = plot_image_masks(tiny("dalle_12b"), (2, 1), title="a $ b")
    axes = panels(figure)
    assert [axis.get_title() for axis in axes[:3]] == ["row", "column", "convolutional"]
    size = GRID[0] * GRID[1]
    for kind, whole, grid in zip(
        ("row", "column", "window"), axes[:3], axes[3:], strict=True
    ):
        expected = np.array(
            [[sees(kind, q, k, GRID[1], 1) for k in range(size)] for q in range(size)]
        )
        np.testing.assert_array_equal(is_attended(whole)[TEXT:, TEXT:], expected)
        text = is_attended(whole)[:, :TEXT]
        np.testing.assert_array_equal(text, np.tri(TEXT + size, TEXT, dtype=bool))
        assert not is_attended(whole)[:TEXT, TEXT:].any()
        query = 2 * GRID[1] + 1
        np.testing.assert_array_equal(is_attended(grid), expected[query].reshape(GRID))
        # Only the query itself is orange.
        colors, counts = np.unique(
            shown(grid).reshape(-1, 3), axis=0, return_counts=True
        )
        assert counts[(colors == (220, 110, 30)).all(-1)] == 1


def test_codes_of_images():
    figure = plot_codes(IMAGES, CODES, 1 - IMAGES)
    axes = panels(figure)
    assert [axis.get_title() for axis in axes[:3]] == ["image", "codes", "decoded"]
    for row in range(2):
        image, grid, decoded = axes[3 * row : 3 * row + 3]
        np.testing.assert_allclose(shown(image), IMAGES[row])
        np.testing.assert_allclose(shown(decoded), 1 - IMAGES[row])
        colors = shown(grid).reshape(-1, 3)
        codes = CODES[row].ravel()
        is_equal = (colors[:, None] == colors).all(-1)
        np.testing.assert_array_equal(is_equal, codes[:, None] == codes)
        assert [text.get_text() for text in grid.texts] == codes.astype(str).tolist()
    # Too small to be read.
    wide = plot_codes(IMAGES[:1], np.zeros((1, 2, 17), int), IMAGES[:1])
    assert not panels(wide)[1].texts


def test_generated_images():
    images = RNG.random((2, 3, 8, 12, 3)).astype("float32")
    scores = np.array([[0.9, 0.5, 0.1], [3, 2, 1]])
    figure = plot_generated_images(images, ["a $ b", "a\x07c"], scores, title="best")
    axes = panels(figure)
    np.testing.assert_allclose(shown(axes[4]), images[1, 1])
    titles = [axis.get_title() for axis in axes]
    assert titles == ["0.90", "0.50", "0.10", "3.00", "2.00", "1.00"]
    plain = panels(plot_generated_images(images, ["a", "b"]))
    assert not any(axis.get_title() for axis in plain)


@pytest.mark.parametrize(
    "plot, arguments, match",
    [
        (plot_image_masks, [keras.Sequential(name="n")], "from `build_dalle`.*'n'"),
        (plot_image_masks, [tiny("dalle_12b"), (3, 0)], r"row below 3 .*\(3, 0\)"),
        (plot_image_masks, [tiny("dalle_12b"), 3], "row below 3 .*place=3"),
        (plot_codes, [IMAGES, CODES, IMAGES[0]], "`reconstructions` must have the"),
        (plot_codes, [IMAGES, CODES[0], IMAGES], "`codes` must have 3 axes"),
        (plot_codes, [IMAGES, CODES * 1.0, IMAGES], "must be integers.*float64"),
        (plot_codes, [IMAGES, CODES - 99, IMAGES], "must be integers of at least 0"),
        (plot_codes, [IMAGES, CODES[:1], IMAGES], "same images. Received: 2, 1 and 2"),
        (plot_generated_images, [IMAGES, ["a", "b"]], "`images` must have 5 axes"),
        (plot_generated_images, [IMAGES[None], "a$"], None),
        (plot_generated_images, [IMAGES[None], ["a", "b"]], "`captions` must be 1"),
        (plot_generated_images, [IMAGES[None], ["a"], [1.0]], r"shape \(1, 2\), one"),
    ],
)
def test_arguments_that_are_refused(plot, arguments, match):
    if match is None:  # One caption may be a string.
        assert len(panels(plot(*arguments))) == 2
        return
    with pytest.raises(ValueError, match=match):
        plot(*arguments)


def fit(model, inputs, *callbacks, epochs=2):
    model.compile("sgd", run_eagerly=True)
    model.fit(inputs, epochs=epochs, verbose=0, callbacks=callbacks)


def test_codes_while_training(tmp_path):
    model = create("dvae_dalle")
    images = inputs_for(model, batch=3)["images"]
    start = numpy(model.get_layer("decoder_output").bias)
    fit(model, images, CodeMaps(tmp_path, images, max_examples=2))
    written = pictures_of(tmp_path)
    assert set(written) == {"codes/0", "codes/1"}
    for events in written.values():
        assert [step for step, _ in events] == [0, 1]
    assert (start != numpy(model.get_layer("decoder_output").bias)).any()
    dense = keras.Sequential([keras.Input((4, 6, 3)), keras.layers.Dense(3)], name="n")
    dense.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`CodeMaps` is for a model .*model='n'"):
        dense.fit(images, images, callbacks=[CodeMaps(tmp_path, images)], verbose=0)


def test_samples_while_training(tmp_path):
    asked = []

    def generate(caption):
        asked.append(caption)
        return GeneratedImages(IMAGES, CODES, np.array([0.5, 0.25]))

    model = create("dvae_dalle")
    images = inputs_for(model)["images"]
    maps = GeneratedImageMaps(
        tmp_path, ["a", "b", "c"], generate, every=2, max_examples=2
    )
    fit(model, images, maps, epochs=3)
    written = pictures_of(tmp_path)
    assert set(written) == {"generated/0", "generated/1"}
    assert [step for step, _ in written["generated/0"]] == [0, 2]
    assert set(asked) == {"a", "b"}
    with pytest.raises(TypeError, match="`captions` must be a list of texts"):
        GeneratedImageMaps(tmp_path, "abc", generate)
