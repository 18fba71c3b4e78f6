"""RoI align and RoI pooling, against their written definitions in loops."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.ops.roi_align import roi_align
from keras_attn.ops.roi_pool import roi_pool

B, H, W, C = 2, 11, 13, 3
STRIDE = 4
# Fractional, on the border, across it, outside, empty, of negative size, huge.
BOXES = np.array(
    [
        [[3.3, 5.7, 29.1, 40.9], [0, 0, 52, 44], [-9, -7, 20, 15], [70, 80, 90, 95]],
        [[7, 9, 7, 9], [30, 20, 12, 8], [45, 1, 52, 44], [-300, -99, 400, 500]],
    ],
    "float32",
)


def sample_map(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def bilinear(features, y, x):
    """The feature at a place between others; zeros more than one place outside."""
    rows, columns = features.shape[:2]
    if y < -1 or y > rows or x < -1 or x > columns:
        return np.zeros(features.shape[-1])
    y, x = min(max(y, 0), rows - 1), min(max(x, 0), columns - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
    below, beside = y - top, x - left
    return (
        (1 - below) * (1 - beside) * features[top, left]
        + (1 - below) * beside * features[top, right]
        + below * (1 - beside) * features[bottom, left]
        + below * beside * features[bottom, right]
    )


def aligned_by_definition(features, box, stride, size, ratio, aligned):
    left, top, right, bottom = box / stride - (0.5 if aligned else 0)
    width, height = right - left, bottom - top
    if not aligned:
        width, height = max(width, 1), max(height, 1)
    output = np.zeros((*size, features.shape[-1]))
    for i, j, a, b in np.ndindex(*size, ratio, ratio):
        y = top + (i + (a + 0.5) / ratio) * height / size[0]
        x = left + (j + (b + 0.5) / ratio) * width / size[1]
        output[i, j] += bilinear(features, y, x) / ratio**2
    return output


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_roi_align_follows_its_definition(aligned, ratio):
    features = sample_map(B, H, W, C)
    found = ops.convert_to_numpy(
        roi_align(
            [features],
            BOXES,
            strides=[STRIDE],
            output_size=(5, 7),
            sampling_ratio=ratio,
            aligned=aligned,
        )
    )
    assert found.shape == (B, 4, 5, 7, C)
    for b in range(B):
        for r, box in enumerate(BOXES[b]):
            expected = aligned_by_definition(
                features[b], box, STRIDE, (5, 7), ratio, aligned
            )
            np.testing.assert_allclose(found[b, r], expected, rtol=0, atol=1e-5)
    assert not found[0, 3].any()  # Outside.


def test_each_box_reads_the_map_of_its_level():
    maps = [sample_map(B, 23, 19, C), sample_map(B, 11, 10, C, seed=1)]
    levels = np.array([[0, 1, 1, 0], [1, 0, 1, 0]], "int32")
    strides = [2, 4]
    options: Any = {"strides": strides, "levels": levels, "output_size": (2, 3)}
    found = roi_align(maps, BOXES, **options)
    pooled = roi_pool(maps, BOXES, **options)
    for b in range(B):
        for r, level in enumerate(levels[b]):
            stride = strides[level]
            expected = aligned_by_definition(
                maps[level][b], BOXES[b, r], stride, (2, 3), 2, False
            )
            np.testing.assert_allclose(found[b, r], expected, rtol=0, atol=1e-5)
            expected = pooled_by_definition(maps[level][b], BOXES[b, r], stride, (2, 3))
            np.testing.assert_array_equal(pooled[b, r], expected)


def away_from_zero(x):
    return int(np.sign(x) * np.floor(abs(x) + 0.5))


def pooled_by_definition(features, box, stride, size):
    left, top, right, bottom = (away_from_zero(side / stride) for side in box)
    height, width = max(bottom - top + 1, 1), max(right - left + 1, 1)
    rows, columns = features.shape[:2]
    output = np.zeros((*size, features.shape[-1]), "float32")
    for i in range(size[0]):
        for j in range(size[1]):
            first = i * height // size[0] + top
            last = -(-(i + 1) * height // size[0]) + top
            start = j * width // size[1] + left
            end = -(-(j + 1) * width // size[1]) + left
            first, last = (min(max(x, 0), rows) for x in (first, last))
            start, end = (min(max(x, 0), columns) for x in (start, end))
            window = features[first:last, start:end]
            if window.size:
                output[i, j] = window.max((0, 1))
    return output


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (2, 3)])
def test_roi_pool_follows_its_definition(size):
    features = sample_map(B, H, W, C)
    found = ops.convert_to_numpy(
        roi_pool([features], BOXES, strides=[STRIDE], output_size=size)
    )
    for b in range(B):
        for r, box in enumerate(BOXES[b]):
            expected = pooled_by_definition(features[b], box, STRIDE, size)
            np.testing.assert_array_equal(found[b, r], expected)
    assert not found[0, 3].any()


def test_halves_are_rounded_away_from_zero():
    features = sample_map(1, H, W, C)
    boxes = np.array([[[-6, 2, 10, 14], [6, 10, 6, 10]]], "float32")
    found = roi_pool([features], boxes, strides=[4], output_size=(3, 2))
    for r in range(2):
        expected = pooled_by_definition(features[0], boxes[0, r], 4, (3, 2))
        np.testing.assert_array_equal(found[0, r], expected)


@pytest.mark.parametrize("pool", [roi_align, roi_pool])
def test_a_box_that_is_not_a_number_gives_finite_features(pool):
    features = sample_map(1, H, W, C)
    boxes = np.full((1, 2, 4), float("nan"), "float32")
    boxes[0, 1] = [float("inf"), 3, 5, float("-inf")]
    found = pool([features], boxes, strides=[4], output_size=(3, 2))
    assert np.isfinite(ops.convert_to_numpy(found)).all()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="uses tapes")
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("pool", [roi_align, roi_pool])
@pytest.mark.compiled
def test_gradients_are_those_of_the_definition(pool, jit_compile):
    """The output is linear in the map, at least nearby."""
    import tensorflow as tf

    features, change = sample_map(B, H, W, C), sample_map(B, H, W, C, seed=1)
    factors = sample_map(B, 4, 3, 2, C, seed=2)

    def total(features):
        pooled = pool([features], BOXES, strides=[STRIDE], output_size=(3, 2))
        return tf.reduce_sum(pooled * factors)

    @tf.function(jit_compile=jit_compile)
    def gradient(features):
        with tf.GradientTape() as tape:
            tape.watch(features)
            value = total(features)
        return tape.gradient(value, features)

    step = 1e-3
    expected = (total(features + step * change) - total(features - step * change)) / (
        2 * step
    )
    found = np.sum(gradient(tf.constant(features)) * change)
    np.testing.assert_allclose(found, expected, rtol=1e-2)
