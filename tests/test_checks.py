import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.checks.arguments import (
    check_choice,
    check_fraction,
    check_matches,
    check_pair,
    check_positive,
    check_rank,
    check_shape,
)
from keras_attn.kernels.precision import at_least_float32, at_least_float32_dtype


def exactly(message):
    return f"^{re.escape(message)}$"


def test_check_rank():
    check_rank("query", np.zeros((2, 3)), 2, "(batch, width)")
    message = "`query` must have 3 axes, (batch, length, width). "
    message += "Received: query.shape=(2, 5)"
    with pytest.raises(ValueError, match=exactly(message)):
        check_rank("query", np.zeros((2, 5)), 3, "(batch, length, width)")


def test_check_shape():
    for shape in ((2, 5, 3), (None, 5, 3), (2, 5, None), (2, 0, 3)):
        check_shape("boxes", shape, (2, None, 3), "(batch, boxes, 3)")
    message = "`boxes` must have 3 axes, (batch, boxes, 3). Received: boxes.shape=(5,)"
    with pytest.raises(ValueError, match=exactly(message)):
        check_shape("boxes", (5,), (2, None, 3), "(batch, boxes, 3)")
    message = "`boxes` must have the shape (batch, boxes, 3) = (2, None, 3). "
    message += "Received: boxes.shape=(1, 7, 3)"
    with pytest.raises(ValueError, match=exactly(message)):
        check_shape("boxes", (1, 7, 3), (2, None, 3), "(batch, boxes, 3)")


def test_check_matches():
    for shape in ((2, 5), (1, 5), (2, 1), (None, 5), (2, None)):
        check_matches("mask", shape, (2, 5), "(batch, length)")
    check_matches("mask", (2, 5), (None, None), "(batch, length)")
    message = "`mask` must have the shape (batch, length) = (2, None, 5). "
    message += "Received: mask.shape=(2, 7, 3)"
    with pytest.raises(ValueError, match=exactly(message)):
        check_matches("mask", (2, 7, 3), (2, None, 5), "(batch, length)")


@pytest.mark.parametrize("value", [0, -1, 1.0, "3", None, True])
def test_check_positive(value):
    assert check_positive("units", 3) == 3
    message = f"`units` must be a positive integer. Received: units={value!r}"
    with pytest.raises(ValueError, match=exactly(message)):
        check_positive("units", value)


@pytest.mark.parametrize("value", [-0.1, 1.0, 2, float("nan"), "0.5", None])
def test_check_fraction(value):
    assert check_fraction("dropout", 0.0) == 0.0
    assert check_fraction("dropout", 0.999) == 0.999
    message = f"`dropout` must be a probability in [0, 1). Received: dropout={value!r}"
    with pytest.raises(ValueError, match=exactly(message)):
        check_fraction("dropout", value)


def test_check_choice():
    check_choice("merge", "add", ("add", "concatenate"))
    message = "`merge` must be one of 'add', 'concatenate'. Received: merge='sum'"
    with pytest.raises(ValueError, match=exactly(message)):
        check_choice("merge", "sum", ("add", "concatenate"))


class Dimension:
    """A size as TensorFlow 1 has it: neither an `int` nor registered as one."""

    def __init__(self, size):
        self.size = size

    def __index__(self):
        return self.size


# Whatever a user may have at hand as a size: the shape of a batch cut to its sides too.
PAIRS = [
    (3, 5),
    [np.int32(3), np.int64(5)],
    np.array([3, 5]),
    np.zeros((2, 3, 5, 7)).shape[1:3],
    ops.zeros((2, 3, 5, 7)).shape[1:3],  # TensorFlow's is a `TensorShape`.
    ops.shape(ops.zeros((2, 3, 5, 7)))[1:3],
    ops.convert_to_tensor([3, 5]),
    (Dimension(3), Dimension(5)),
]


def test_check_pair():
    assert check_pair("size", 3) == (3, 3)
    for pair in PAIRS:
        found = check_pair("size", pair)
        assert found == (3, 5)
        assert [type(side) for side in found] == [int, int]
    for side in (np.int64(3), np.array(3), ops.convert_to_tensor(3)):
        assert check_pair("size", side) == (3, 3)
    for wrong in ((3,), (3, 5, 7), "35", 3.0, {3, 5}, {3: 5, 5: 3}, None):
        message = "`size` must be a positive integer or a pair of them, (rows, columns)"
        message += f". Received: size={wrong!r}"
        with pytest.raises(ValueError, match=exactly(message)):
            check_pair("size", wrong)
    for wrong in ((3, 0), (3, True), (3.0, 5), (3, None), np.array([3.0, 5.0])):
        with pytest.raises(ValueError, match=r"`size` must be a positive integer\."):
            check_pair("size", wrong)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a TensorShape")
def test_a_size_that_is_not_known_is_no_pair():
    import tensorflow as tf

    with pytest.raises(ValueError, match="`size` must be a positive integer or a pair"):
        check_pair("size", tf.TensorShape(None))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"`size` must be a positive integer\."):
        check_pair("size", tf.TensorShape([None, 5]))

    @tf.function
    def traced(images):
        return check_pair("size", tf.shape(images)[1:3])

    with pytest.raises(ValueError, match="`size` must be a positive integer or a pair"):
        traced(tf.zeros((2, 3, 5, 7)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_half_precision_becomes_float32(dtype):
    if dtype == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has no float64 by default")
    expected = "float64" if dtype == "float64" else "float32"
    outputs = at_least_float32(ops.cast(np.ones(3), dtype))
    assert keras.backend.standardize_dtype(outputs.dtype) == expected
    assert at_least_float32_dtype(dtype) == expected
