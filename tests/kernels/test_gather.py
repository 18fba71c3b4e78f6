"""A gather within each example, in both forms."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.kernels.gather import flat_gathers, gather_rows


@pytest.mark.parametrize("form", [contextlib.nullcontext, flat_gathers])
@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 5)])
@pytest.mark.parametrize("width", [(), (3,), (3, 2)])
def test_gathered_rows_are_those_of_their_example(form, shape, width):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 7, *width)).astype("float32")
    indices = rng.integers(0, 7, (3, *shape)).astype("int32")
    with form():
        found = ops.convert_to_numpy(gather_rows(values, indices))
    expected = np.stack([x[i] for x, i in zip(values, indices, strict=True)])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a gradient tape")
def test_rows_that_are_gathered_twice_add_up_their_gradients():
    import tensorflow as tf

    values = tf.Variable(tf.ones((2, 3, 5)))
    weights = np.random.default_rng(1).normal(size=(2, 2, 2, 5)).astype("float32")
    indices = np.array([[[0, 2], [2, 2]], [[1, 1], [0, 1]]], "int32")
    expected = np.zeros((2, 3, 5), "float32")
    np.add.at(expected, (np.arange(2)[:, None, None], indices), weights)
    for form in (contextlib.nullcontext, flat_gathers):
        with form(), tf.GradientTape() as tape:
            total = ops.sum(gather_rows(values, indices) * weights)
        gradient = tf.convert_to_tensor(tape.gradient(total, values))
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)
