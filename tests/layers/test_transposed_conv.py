"""Transposed convolution against the sum of stamped kernels; max unpooling layers."""

import numpy as np
import pytest
from keras import ops
from layer_contract import built_on, normal

from keras_attn import layers
from keras_attn.layers.initializers import BilinearKernel

# Kernel size, strides, padding and output padding, rows first.
GEOMETRIES = [
    ((1, 1), (1, 1), (0, 0), (0, 0)),
    ((3, 3), (1, 1), (1, 1), (0, 0)),
    ((2, 2), (2, 2), (0, 0), (0, 0)),
    ((3, 3), (2, 2), (1, 1), (1, 1)),
    ((4, 5), (2, 3), (1, 0), (1, 2)),
    ((2, 1), (3, 3), (0, 0), (2, 1)),
    ((3, 2), (5, 2), (2, 1), (4, 1)),
    ((7, 7), (1, 1), (0, 0), (0, 0)),
]


def stamped(inputs, kernel, bias, strides, padding, output_padding):
    """Adds the kernel, times a value, for each value of each channel."""
    batch, rows, columns, _ = inputs.shape
    size = [
        (n - 1) * s + k + o
        for n, s, k, o in zip(
            (rows, columns), strides, kernel.shape, output_padding, strict=False
        )
    ]
    total = np.zeros((batch, *size, kernel.shape[2]))
    for b, i, j, c in np.ndindex(inputs.shape):
        top, left = i * strides[0], j * strides[1]
        stamp = inputs[b, i, j, c] * kernel[..., c]
        total[b, top : top + kernel.shape[0], left : left + kernel.shape[1]] += stamp
    height, width = (n - p for n, p in zip(size, padding, strict=True))
    return total[:, padding[0] : height, padding[1] : width] + bias


@pytest.mark.parametrize("kernel_size, strides, padding, output_padding", GEOMETRIES)
def test_the_output_is_the_sum_of_stamped_kernels(
    kernel_size, strides, padding, output_padding
):
    layer = layers.TransposedConv2D(
        5, kernel_size, strides, padding=padding, output_padding=output_padding
    )
    inputs = normal(2, 4, 3, 7)
    kernel, bias = (ops.convert_to_numpy(x) for x in built_on(layer, inputs).weights)
    found = ops.convert_to_numpy(layer(inputs))
    expected = stamped(inputs, kernel, bias, strides, padding, output_padding)
    assert found.shape == expected.shape == layer.compute_output_shape(inputs.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("factor", [2, 3, 4, 8])
def test_a_bilinear_kernel_interpolates(factor):
    """Between the centres of the first and last pixel; zeros surround the map."""
    layer = layers.TransposedConv2D(
        3,
        2 * factor - factor % 2,
        factor,
        padding=factor // 2,
        kernel_initializer=BilinearKernel(),
    )
    images = normal(2, 5, 4, 3)
    found = ops.convert_to_numpy(layer(images))
    expected = ops.image.resize(images, (5 * factor, 4 * factor))
    inner = slice(factor // 2, -(factor // 2) or None)
    np.testing.assert_allclose(
        found[:, inner, inner], expected[:, inner, inner], rtol=0, atol=1e-6
    )


def test_a_bilinear_kernel_is_loaded_with_its_layer():
    layer = layers.TransposedConv2D(3, 4, 2, kernel_initializer=BilinearKernel())
    again = type(layer).from_config(layer.get_config())
    assert isinstance(again.kernel_initializer, BilinearKernel)
    with pytest.raises(ValueError, match="as many filters as .*filters=3, channels=5"):
        again.build((None, 7, 7, 5))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"padding": 3}, r"less than `kernel_size`.*padding=3, kernel_size=\(3, 3\)"),
        ({"padding": (1, True)}, r"`padding` must be .*padding=\(1, True\)"),
        ({"padding": "same"}, "`padding` must be a non-negative .*padding='same'"),
        ({"output_padding": 2}, r"less than `strides`.*output_padding=2, strides=\(2"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, message):
    given = {"filters": 5, "kernel_size": 3, "strides": 2, **arguments}
    with pytest.raises(ValueError, match=message):
        layers.TransposedConv2D(**given)


def test_maps_that_cannot_be_enlarged_are_refused():
    layer = layers.TransposedConv2D(5, 3, padding=2)
    with pytest.raises(ValueError, match=r"empty: .*\(2, 2, 7, 3\), padding=\(2, 2\)"):
        layer(normal(2, 2, 7, 3))
    with pytest.raises(ValueError, match=r"channels of `inputs` must be known.*None\)"):
        layer.build((None, 7, 7, None))


def test_unpooling_needs_the_size_of_the_map_that_was_pooled():
    images = normal(2, 7, 5, 3)
    values, indices = layers.MaxPoolWithIndices()(images)
    layer = layers.MaxUnpool2D()
    restored = ops.convert_to_numpy(layer(values, indices, images))
    kept = restored != 0
    np.testing.assert_array_equal(restored[kept], images[kept])
    assert kept.sum() == np.prod(values.shape)
