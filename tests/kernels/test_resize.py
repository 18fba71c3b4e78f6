"""Bilinear resizing against its definition."""

import keras
import numpy as np
import pytest

from keras_attn.ops import resize_bilinear

# XLA's own operation is wrong at the first four, whose centres meet.
SIZES = [
    ((4, 5), (12, 9)),
    ((5, 9), (19, 27)),
    ((7, 8), (21, 24)),
    ((6, 10), (10, 18)),
    ((3, 5), (11, 13)),
    ((1, 2), (7, 1)),
    ((13, 17), (5, 7)),
    ((3, 7), (3, 7)),
]
TENSORFLOW = keras.backend.backend() == "tensorflow"


def sample(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def expected(images, size):
    """In float64: each place from its four neighbours, one after the other."""
    for axis, after in enumerate(size, 1):
        before = images.shape[axis]
        centres = (np.arange(after) + 0.5) * before / after - 0.5
        centres = np.clip(centres, 0, before - 1)
        first = np.floor(centres + 1e-9).astype(int)
        second = np.minimum(first + 1, before - 1)
        share = (centres - first).reshape(-1, *[1] * (3 - axis))
        one, two = (images.take(index, axis) for index in (first, second))
        images = one * (1 - share) + two * share
    return images


@pytest.mark.parametrize("before, after", SIZES)
def test_every_pixel_is_the_mean_of_its_neighbours_by_distance(before, after):
    images = sample(2, *before, 3)
    found = keras.ops.convert_to_numpy(resize_bilinear(images, after))
    np.testing.assert_allclose(found, expected(images, after), rtol=0, atol=1e-5)


@pytest.mark.skipif(not TENSORFLOW, reason="of the TensorFlow backend")
@pytest.mark.parametrize("known", [True, False])
def test_xla_computes_the_same_and_the_same_gradient(known):
    import tensorflow as tf

    def run(images, reference):
        with tf.GradientTape() as tape:
            tape.watch(images)
            resized = resize_bilinear(images, keras.ops.shape(reference)[1:3])
            loss = tf.reduce_sum(resized**2)
        return resized, tape.gradient(loss, images)

    unknown = tf.TensorSpec((None, None, None, 3))
    compiled = tf.function(
        run, jit_compile=True, input_signature=None if known else (unknown, unknown)
    )
    for before, after in SIZES:
        images, reference = (
            tf.constant(sample(2, *size, 3)) for size in (before, after)
        )
        found, plain = compiled(images, reference), run(images, reference)
        for one, other in zip(
            map(np.asarray, found), map(np.asarray, plain), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)
