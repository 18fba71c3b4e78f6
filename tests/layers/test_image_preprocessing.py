"""`ImagePreprocessing` against Pillow, to the last bit."""

import keras
import numpy as np
import pytest
from PIL import Image

from keras_attn.layers import ImagePreprocessing
from keras_attn.ops.resampling import resize_like_pillow

MEAN = [0.48145466, 0.4578275, 0.40821073]
STD = [0.26862954, 0.26130258, 0.27577711]
RESAMPLING = {"lanczos": 1, "bilinear": 2, "bicubic": 3}
# Rows and columns before and after: larger, smaller, both, equal, one pixel; and images
# that lose more than twice as many rows as columns, or exactly twice as many.
SIZES = [
    ((37, 53), (17, 11)),
    ((17, 11), (37, 53)),
    ((61, 23), (13, 41)),
    ((23, 61), (41, 13)),
    ((31, 29), (31, 29)),
    ((31, 29), (19, 23)),
    ((31, 29), (18, 23)),
    ((101, 31), (100, 31)),
    ((1, 1), (5, 3)),
    ((401, 7), (3, 5)),
]


def noise(rows, columns, seed=0):
    """Noise, and noise of black and white, which overshoots: (2, rows, columns, 3)."""
    rng = np.random.default_rng(seed)
    gray = rng.integers(0, 256, (rows, columns, 3))
    extreme = rng.integers(0, 2, (rows, columns, 3)) * 255
    return np.stack([gray, extreme]).astype("uint8")


def by_pillow(images, size, method):
    filtered = [
        Image.fromarray(image).resize(size[::-1], RESAMPLING[method])
        for image in images
    ]
    return np.stack([np.asarray(image) for image in filtered])


def numpy_of(tensor):
    return keras.ops.convert_to_numpy(tensor)


@pytest.mark.parametrize("method", RESAMPLING)
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_pixels_are_those_of_pillow(before, after, method):
    images = noise(*before)
    resized = resize_like_pillow(images.astype("float32"), after, method)
    np.testing.assert_array_equal(numpy_of(resized), by_pillow(images, after, method))


def test_the_order_of_passes_before_pillow_13():
    images, size = noise(61, 23), (13, 41)
    first = by_pillow(images, (61, 41), "bicubic")
    expected = by_pillow(first, size, "bicubic")
    found = resize_like_pillow(images.astype("float32"), size, passes="columns_first")
    np.testing.assert_array_equal(numpy_of(found), expected)
    assert (expected != by_pillow(images, size, "bicubic")).mean() > 0.01


def test_a_window_is_a_part_of_the_result_and_zero_outside():
    images, size = noise(37, 53).astype("float32"), (17, 11)
    whole = numpy_of(resize_like_pillow(images, size))
    found = numpy_of(resize_like_pillow(images, size, window=(5, -2, 14, 9)))
    assert found.shape == (2, 14, 9, 3)
    np.testing.assert_array_equal(found[:, :12, 2:], whole[:, 5:, :7])
    assert not found[:, 12:].any() and not found[:, :, :2].any()


def reference(image, size, crop, offset):
    """The steps of transformers (`floor`) and torchvision (`round`) for one image."""
    rows, columns, _ = image.shape
    shorter = min(rows, columns)
    resized = (size * rows // shorter, size * columns // shorter)
    (pixels,) = by_pillow(image[None], resized, "bicubic")
    for axis in (0, 1):
        rest = pixels.shape[axis] - crop
        begin = rest // 2 if offset == "floor" else round(rest / 2)
        if rest < 0:
            before = -begin if offset == "floor" else -rest // 2
            padding = [(0, 0)] * 3
            padding[axis] = (before, -rest - before)
            pixels = np.pad(pixels, padding)
        else:
            pixels = np.take(pixels, range(begin, begin + crop), axis)
    return (pixels / 255 - MEAN) / STD


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("offset", ["floor", "round"])
@pytest.mark.parametrize("crop", [13, 16, 22])
def test_resize_crop_and_normalize(crop, offset, known):
    if not known and keras.config.backend() != "tensorflow":
        pytest.skip("Other backends have no unknown sizes.")
    layer = ImagePreprocessing(
        16, crop_size=crop, crop_offset=offset, mean=MEAN, std=STD
    )
    # Widths after resizing of 16 to 23: the rest is 0 to 3 modulo 4, and negative.
    for columns in range(31, 46, 2):
        for shape in ((31, columns), (columns, 31)):
            images = noise(*shape, seed=columns)
            inputs = keras.Input(
                (*(shape if known else (None, None)), 3), dtype="uint8"
            )
            model = keras.Model(inputs, layer(inputs))
            expected = [reference(image, 16, crop, offset) for image in images]
            assert model.output.shape == (None, crop, crop, 3)
            found = numpy_of(model(images))
            np.testing.assert_allclose(found, expected, atol=2e-6)


def test_two_sides_squash_the_image_and_none_leaves_its_size():
    images = noise(31, 17)
    squashed = ImagePreprocessing((16, 16), mean=0.5, std=0.5)(images)
    expected = by_pillow(images, (16, 16), "bicubic") / 127.5 - 1
    np.testing.assert_allclose(numpy_of(squashed), expected, atol=1e-6)
    cropped = ImagePreprocessing(None, crop_size=(12, 19), scale=1.0)(images)
    expected = np.pad(images[:, 9:21], [(0, 0), (0, 0), (1, 1), (0, 0)])
    np.testing.assert_array_equal(numpy_of(cropped), expected)
    same = ImagePreprocessing(None, scale=1.0)(images)
    np.testing.assert_array_equal(numpy_of(same), images)
    longer = ImagePreprocessing(16, scale=1.0)(images)
    assert longer.shape == (2, 16 * 31 // 17, 16, 3)


def test_floats_are_rounded_and_clipped_and_gray_has_one_channel():
    images = noise(19, 23)
    layer = ImagePreprocessing(11, scale=1.0)
    floats = images + np.where(images > 100, 0.4, -0.4).astype("float32")
    floats = np.where(images == 255, 300.0, floats)
    np.testing.assert_array_equal(numpy_of(layer(floats)), numpy_of(layer(images)))
    gray = ImagePreprocessing(11, scale=1.0, mean=[1.0])(images[..., :1])
    expected = numpy_of(layer(images))[..., :1] - 1.0
    np.testing.assert_array_equal(numpy_of(gray), expected)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"std": [1.0, 0.0]}, r"`std` must be positive\. Received: std=\[1"),
        ({"mean": float("nan")}, "`mean` must be a finite number or a list"),
        ({"scale": float("inf")}, "`scale` must be a finite number"),
        ({"mean": [[0.0]]}, "`mean` must be a finite number or a list"),
    ],
)
def test_bad_arguments_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        ImagePreprocessing(**{"size": 8, **options})


def test_bad_images_are_named():
    layer = ImagePreprocessing(8, mean=[0.5, 0.5, 0.5])
    match = "`mean` must be one number or one for each channel .* with 1 channels"
    with pytest.raises(ValueError, match=match):
        layer(np.zeros((1, 9, 9, 1), "uint8"))
    with pytest.raises(TypeError, match="pixels from 0 to 255.*dtype bool"):
        ImagePreprocessing(8)(np.zeros((1, 9, 9, 3), "bool"))
    with pytest.raises(ValueError, match="`method` must be one of 'bilinear'"):
        resize_like_pillow(np.zeros((1, 9, 9, 3), "float32"), (3, 3), "box")
    with pytest.raises(ValueError, match="`passes` must be one of 'auto'"):
        resize_like_pillow(np.zeros((1, 9, 9, 3), "float32"), (3, 3), passes="rows")
