"""Max pooling with indices, and unpooling, against their definitions."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.ops import max_pool_with_indices, max_unpool

TENSORFLOW = keras.backend.backend() == "tensorflow"
# Rows and columns of the map, and of a window.
SIZES = [
    ((6, 4), (2, 2)),
    ((7, 5), (2, 2)),
    ((7, 11), (3, 2)),
    ((5, 4), (3, 5)),
    ((9, 5), (4, 1)),
    ((1, 1), (2, 3)),
]
CASES = [
    (size, window, padding)
    for size, window in SIZES
    for padding in ("valid", "same")
    if padding == "same" or all(n >= by for n, by in zip(size, window, strict=True))
]
cases = pytest.mark.parametrize("size, window, padding", CASES)


def sample(*shape):
    """Small whole numbers, so that most windows have several equal maxima."""
    return np.random.default_rng(3).integers(-2, 3, shape).astype("float32")


def before(size, by, padding):
    return (-size % by) // 2 if padding == "same" else 0


def pooled(images, window, padding):
    """Maxima, their places in the window, and in the map; by the definition."""
    batch, *size, channels = images.shape
    pad = [before(n, by, padding) for n, by in zip(size, window, strict=True)]
    shape = [
        -(-n // by) if padding == "same" else n // by
        for n, by in zip(size, window, strict=True)
    ]
    values = np.zeros((batch, *shape, channels), "float32")
    local, places = np.zeros_like(values, int), np.zeros_like(values, int)
    for place in np.ndindex(values.shape):
        b, i, j, c = place
        best = -np.inf
        found = False
        for r in range(window[0]):
            for s in range(window[1]):
                row, column = i * window[0] + r - pad[0], j * window[1] + s - pad[1]
                if not (0 <= row < size[0] and 0 <= column < size[1]):
                    continue
                value = images[b, row, column, c]
                if not (value <= best or np.isnan(best)) or not found:
                    best, found = value, True
                    local[place] = r * window[1] + s
                    places[place] = row * size[1] + column
        values[place] = best
    return values, local, places


def unpooled(values, places, size):
    batch, *_, channels = values.shape
    image = np.zeros((batch, size[0] * size[1], channels), values.dtype)
    for b, i, j, c in np.ndindex(values.shape):
        image[b, places[b, i, j, c], c] = values[b, i, j, c]
    return image.reshape(batch, *size, channels)


def arrays(*tensors):
    return [ops.convert_to_numpy(tensor) for tensor in tensors]


@cases
def test_the_first_of_equal_maxima_counts(size, window, padding):
    images = sample(2, *size, 3)
    values, local, _ = pooled(images, window, padding)
    found, indices = arrays(*max_pool_with_indices(images, window, padding))
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(indices, local)
    # Where the place does not matter, Keras' own layer is the same.
    layer = keras.layers.MaxPooling2D(window, padding=padding)
    np.testing.assert_array_equal(found, ops.convert_to_numpy(layer(images)))


@cases
def test_unpooling_restores_each_maximum_at_its_place(size, window, padding):
    images = sample(2, *size, 3)
    values, local, places = pooled(images, window, padding)
    values = np.random.default_rng(5).normal(size=values.shape).astype("float32")
    found = max_unpool(values, local.astype("int32"), size, window, padding)
    expected = unpooled(values, places, size)
    np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


def test_nothing_but_minus_infinity_and_nan_have_places_in_the_map():
    images = sample(1, 4, 4, 1)
    images[:, :2] = -np.inf
    images[:, 3, 1] = np.nan
    values, local, _ = pooled(images, (3, 3), "same")
    found, indices = arrays(*max_pool_with_indices(images, 3, "same"))
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(indices, local)
    assert np.isnan(found).any() and np.isneginf(found).any()
    found, indices = arrays(*max_pool_with_indices(images, 2))
    np.testing.assert_array_equal(found[0, :, :, 0], [[-np.inf] * 2, [np.nan, 0]])
    np.testing.assert_array_equal(indices[0, :, :, 0], [[0, 0], [3, 1]])


@pytest.mark.skipif(not TENSORFLOW, reason="gradients of the TensorFlow backend")
@pytest.mark.parametrize("known, jit_compile", [(False, False), (False, True), (1, 1)])
@pytest.mark.compiled
def test_gradients_go_to_the_places_of_the_maxima(known, jit_compile):
    import tensorflow as tf

    def run(images, factors, window, padding):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(images)
            values, indices = max_pool_with_indices(images, window, padding)
            # A variable of its own: the gradient of unpooling alone.
            other = tf.cos(values)
            tape.watch(other)
            size = ops.shape(images)[1:3]
            restored = max_unpool(other, indices, size, window, padding)
            loss = tf.reduce_sum(factors * restored)
            first = tf.reduce_sum(values * tf.stop_gradient(values + 1))
        return (
            values,
            indices,
            restored,
            tape.gradient(first, images),
            tape.gradient(loss, other),
        )

    for size, window, padding in (CASES[2], *CASES[4:6]):
        shape = (None, None, None, 3) if not known else (2, *size, 3)
        compiled = tf.function(
            functools.partial(run, window=window, padding=padding),
            jit_compile=jit_compile,
            input_signature=[tf.TensorSpec(shape)] * 2,
        )
        images = sample(2, *size, 3)
        factors = np.random.default_rng(1).normal(size=images.shape).astype("float32")
        found = arrays(*compiled(images, factors))
        values, local, places = pooled(images, window, padding)
        np.testing.assert_array_equal(found[0], values)
        np.testing.assert_array_equal(found[1], local)
        np.testing.assert_array_equal(
            found[2] != 0, unpooled(np.cos(values), places, size) != 0
        )
        np.testing.assert_array_equal(found[3], unpooled(values + 1, places, size))
        flat = factors.reshape(2, -1, 3)
        b, _, _, c = np.indices(values.shape)
        np.testing.assert_array_equal(found[4], flat[b, places, c])


def test_an_index_outside_its_window_drops_the_value():
    values = np.ones((1, 1, 2, 1), "float32")
    indices = np.array([-1, 3], "int32").reshape(values.shape)
    restored = ops.convert_to_numpy(max_unpool(values, indices, (2, 5)))
    assert restored[0, ..., 0].tolist() == [[0, 0, 0, 0, 0], [0, 0, 0, 1, 0]]


def test_what_cannot_be_is_refused():
    images, values = sample(2, 7, 5, 3), sample(2, 3, 2, 3)
    indices = values.astype("int32")
    with pytest.raises(ValueError, match=r"at least \(8, 2\) rows.*\(2, 7, 5, 3\)"):
        max_pool_with_indices(images, (8, 2))
    with pytest.raises(ValueError, match="`padding` must be one of 'valid', 'same'"):
        max_pool_with_indices(images, 2, "full")
    with pytest.raises(ValueError, match="`padding` must be one of 'valid', 'same'"):
        max_unpool(values, indices, (7, 5), 2, "full")
    with pytest.raises(ValueError, match="`inputs` must have 4 axes"):
        max_pool_with_indices(images[0])
    with pytest.raises(ValueError, match="`pool_size` must be a positive integer"):
        max_pool_with_indices(images, (2, 2, 2))
    for wrong in (indices[:, 1:], indices[0]):
        with pytest.raises(
            ValueError, match="`indices` must have (the shape|4 ax).*indices.sha"
        ):
            max_unpool(values, wrong, (7, 5))
    message = (
        r"windows of \(2, 2\) with padding='valid' reduce it to \(4, 2\).*\(8, 5\)"
    )
    with pytest.raises(ValueError, match=message):
        max_unpool(values, indices, (8, 5))
