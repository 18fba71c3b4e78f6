"""Quantized weights: their numbers, and everything that is computed with them."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.layers.adaptation.quantized import QuantizedKernel, count_bytes

KINDS = [
    ("int8", None),
    ("int4", None),
    ("int4", 2),
    ("int4", 6),
    ("int4", 128),
]
every_kind = pytest.mark.parametrize(("mode", "block_size"), KINDS)


def normal(*shape):
    return np.random.default_rng(3).normal(size=shape).astype("float32")


def rounded(value, mode, block_size):
    """W from its codes, block by block."""
    largest = {"int8": 127, "int4": 7}[mode]
    rows = value.reshape(-1, value.shape[-1]).copy()
    size = block_size or len(rows)
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        scale = np.abs(block).max(0) / np.float32(largest)
        scale[scale == 0] = 1
        block[:] = scale * np.rint(block / scale)
    return rows.reshape(value.shape)


def quantized(value, mode, block_size, **options):
    kernel = QuantizedKernel(value.shape, mode, block_size, **options)
    kernel.assign(value)
    return kernel


# Rows in blocks that are whole, and not; an even number of rows, and an odd one.
@every_kind
@pytest.mark.parametrize("shape", [(12, 5), (13, 3), (1, 7), (3, 3, 5, 2)])
def test_numbers_are_the_nearest_multiples(mode, block_size, shape):
    value = normal(*shape)
    value[..., 1] = 0
    kernel = quantized(value, mode, block_size)
    expected = rounded(value, mode, block_size)
    found = ops.convert_to_numpy(kernel.value_as_tensor())
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    stored = sum(w.dtype.itemsize * w.size for w in kernel.get_weights())
    assert stored == count_bytes(shape, mode, block_size)
    half_a_step = np.abs(value).max() / {"int8": 127, "int4": 7}[mode] / 2
    assert np.abs(found - value).max() <= half_a_step * 1.0001
    # The largest of a column keeps its value, whatever its sign.
    np.testing.assert_allclose(
        np.abs(found).max(axis=tuple(range(len(shape) - 1))),
        np.abs(value).max(axis=tuple(range(len(shape) - 1))),
        rtol=1e-6,
    )


@every_kind
@pytest.mark.parametrize("rows", [12, 13])
def test_products_rows_and_convolutions_are_those_of_the_numbers(
    mode, block_size, rows
):
    kernel = quantized(normal(rows, 5), mode, block_size)
    value = ops.convert_to_numpy(kernel.value_as_tensor())
    x, y = normal(2, 3, rows), normal(2, 3, 5)
    indices = np.random.default_rng(0).permutation(rows).reshape(1, -1)
    for found, expected in (
        (kernel.product(x), x @ value),
        (kernel.transposed_product(y), y @ value.T),
        (kernel.kernel_rows(indices), value[indices]),
    ):
        found = ops.convert_to_numpy(found)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    kernel = quantized(normal(3, 3, 5, 2), mode, block_size)
    value = ops.convert_to_numpy(kernel.value_as_tensor())
    image = normal(1, 7, 7, 5)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(kernel.convolution(ops.conv, image)),
        ops.convert_to_numpy(ops.conv(image, value)),
    )


@pytest.mark.parametrize(("mode", "block_size"), [("int8", None), ("int4", 6)])
def test_half_precision_keeps_the_integers(mode, block_size):
    value, x = normal(13, 5), normal(3, 13)
    kernel = quantized(value, mode, block_size, dtype="bfloat16")
    exact = quantized(value, mode, block_size)
    for half, full in zip(kernel.get_weights(), exact.get_weights(), strict=True):
        assert half.dtype == full.dtype
        np.testing.assert_array_equal(half, full)
    found = kernel.product(ops.cast(x, "bfloat16"))
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    found = ops.convert_to_numpy(ops.cast(found, "float32"))
    expected = ops.convert_to_numpy(exact.product(x))
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("int2",), r"`mode` must be one of .*'int8', 'int4'.*mode='int2'"),
        (("int8", 32), "`block_size` is for int4.*block_size=32"),
        (("int4", 0), "`block_size` must be .*block_size=0"),
        (("int4", 33), "`block_size` must be even.*block_size=33"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        QuantizedKernel((12, 5), *arguments)
