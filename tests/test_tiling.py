"""Overlap-tile prediction against the prediction of the whole image."""

import keras
import numpy as np
import pytest
from model_cases import numpy

from keras_attn import models
from keras_attn.tiling import predict_tiles

UNET = {"hidden_dims": (2, 3), "num_channels": 3, "num_classes": 5, "dropout": 0.0}


def unet(**options):
    """With small whole weights, so that sums are exact in every order."""
    model = models.build_unet(**{**UNET, **options})
    rng = np.random.default_rng(7)
    for weight in model.weights:
        weight.assign(rng.integers(-1, 2, weight.shape))
    return model


def sample(*shape):
    return np.random.default_rng(3).integers(-2, 3, shape).astype("float32")


def whole(model, image, margin):
    """The prediction of the image with a mirrored border."""
    pad = [(margin, n % 2 + margin) for n in image.shape[:2]]
    padded = np.pad(image, (*pad, (0, 0)), mode="reflect")
    return numpy(model(padded[None]))[0]


@pytest.mark.parametrize("size", [(23, 17), (48, 30), (8, 9)])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_tiles_of_a_valid_unet_equal_the_whole_image(size, batch_size):
    """Everywhere, to the last digit."""
    model, image = unet(), sample(*size, 3)
    margin = 8  # Of 16 pixels.
    found = predict_tiles(model, image, (30, 22), batch_size=batch_size, verbose=False)
    assert found.shape == (*size, 5) and found.dtype == np.float32
    expected = whole(model, image, margin)[: size[0], : size[1]]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "size", [(48, 30), (101, 133), (41, 27), (28, 12), (9, 5), (29, 61)]
)
def test_tiles_of_a_unet_that_keeps_the_size_equal_the_whole_image(size):
    """Everywhere, to the last digit, at the border too."""
    model, image = unet(padding="same"), sample(*size, 3)
    # The output of a pixel depends on the 8 next to it on each side.
    found = predict_tiles(model, image, 28, overlap=8, batch_size=3, verbose=False)
    expected = numpy(model(image[None]))[0]
    np.testing.assert_array_equal(found, expected)


def test_without_an_overlap_the_edges_of_tiles_show():
    model, image = unet(padding="same"), sample(48, 30, 3)
    found = predict_tiles(model, image, 28, verbose=False)
    expected = numpy(model(image[None]))[0]
    inside = (slice(8, -8), slice(8, -8))
    assert (found[inside] != expected[inside]).any()


def test_a_tile_that_the_model_refuses_is_completed_by_mirrored_pixels():
    """A model of one size: 47 columns are not two tiles that share what they must."""
    model = unet(padding="same", image_size=28)
    image = sample(28, 47, 3)
    free = unet(padding="same")
    free.set_weights(model.get_weights())
    found = predict_tiles(model, image, 28, overlap=8, verbose=False)
    expected = numpy(free(image[None]))[0]
    np.testing.assert_array_equal(found[:, :36], expected[:, :36])
    mirrored = np.pad(image, ((0, 0), (0, 28), (0, 0)), "reflect")
    expected = numpy(free(mirrored[None]))[0]
    np.testing.assert_array_equal(found[:, 36:], expected[:, 36:47])
    # Two tiles that end at the border.
    image = sample(28, 40, 3)
    found = predict_tiles(model, image, 28, overlap=8, verbose=False)
    np.testing.assert_array_equal(found, numpy(free(image[None]))[0])


def test_images_and_outputs_may_be_memory_maps(tmp_path, capsys):
    image = np.memmap(tmp_path / "image", "uint8", "w+", shape=(61, 35, 3))
    image[:] = np.random.default_rng(1).integers(0, 5, image.shape)
    output = np.memmap(tmp_path / "output", "float16", "w+", shape=(61, 35, 5))
    model = unet()
    found = predict_tiles(model, image, 24, output=output)
    assert found is output
    expected = predict_tiles(model, np.asarray(image), 24, verbose=False)
    np.testing.assert_array_equal(output, expected.astype("float16"))
    # Steps of 8 pixels.
    assert "40/40" in capsys.readouterr().out


def test_an_image_smaller_than_its_border_is_mirrored_again():
    model = unet()
    for size in ((1, 1), (2, 1), (3, 5)):
        image = sample(*size, 3)
        found = predict_tiles(model, image, 24, verbose=False)
        # Numpy mirrors again and again as well, but not a single pixel.
        pad = [(8, 16 - n) if n > 1 else (0, 0) for n in size]
        padded = np.pad(image, (*pad, (0, 0)), mode="reflect")
        repeats = [24 if n == 1 else 1 for n in size]
        padded = padded.repeat(repeats[0], 0).repeat(repeats[1], 1)
        expected = numpy(model(padded[None]))[0, : size[0], : size[1]]
        np.testing.assert_array_equal(found, expected)


def test_of_several_outputs_the_logits_are_used():
    images = keras.Input((None, None, 3))
    logits = keras.layers.Conv2D(5, 3, padding="same")(images)
    outputs = {"auxiliary_logits": keras.layers.Conv2D(2, 1)(images), "logits": logits}
    model = keras.Model(images, outputs)
    image = sample(21, 13, 3)
    found = predict_tiles(
        model, image, np.int64(8), overlap=(1, np.int64(2)), verbose=False
    )
    expected = numpy(model(image[None]))["logits"][0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def classifier():
    images = keras.Input((24, 24, 3))
    hidden = keras.layers.GlobalAveragePooling2D()(images)
    return keras.Model(images, keras.layers.Dense(2)(hidden))


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"image": sample(1, 9, 9, 3)}, ValueError, r"one by one.*=\(1, 9, 9, 3\)"),
        ({"image": sample(0, 9, 3)}, ValueError, "`image` must be an array"),
        ({"image": [[1.0]]}, ValueError, "`image` must be an array.*shape=None"),
        ({"image": sample(9, 9, 1)}, ValueError, r"channels of `image`, \(24, 24, 1\)"),
        ({"tile_size": (24, 0)}, ValueError, "`tile_size` must be a positive"),
        ({"tile_size": 25}, ValueError, "must have .25, 25.|plus multiples of"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be a positive"),
        ({"overlap": 4}, ValueError, r"less than half .*\(8, 8\).*overlap=4"),
        ({"overlap": True}, ValueError, "`overlap` must be .*overlap=True"),
        ({"overlap": -1}, ValueError, "`overlap` must be .*overlap=-1"),
        ({"overlap": (1, 1, 1)}, ValueError, "`overlap` must be a non"),
        ({"model": classifier()}, ValueError, r"must have an output .* of \(2,\) for"),
        ({"output": [1]}, TypeError, "`output` must be a NumPy array .*type list"),
        ({"output": np.zeros((9, 9, 5), int)}, TypeError, "float dtype.*dtype=int64"),
        ({"output": np.zeros((9, 9, 2))}, ValueError, r"the shape \(9, 9, 5\).*9, 2"),
    ],
)
def test_what_cannot_be_predicted_is_refused(options, error, message):
    given = {"model": unet(), "image": sample(9, 9, 3), "tile_size": 24, **options}
    with pytest.raises(error, match=message):
        predict_tiles(**given, verbose=False)


def test_an_output_that_is_read_only_is_refused():
    output = np.zeros((9, 9, 5))
    output.flags.writeable = False
    with pytest.raises(TypeError, match="can be written into"):
        predict_tiles(unet(), sample(9, 9, 3), 24, output=output, verbose=False)
