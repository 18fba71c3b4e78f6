"""The numbers of the worked examples, derived by hand."""

import numpy as np
import pytest

from keras_attn.viz import (
    worked_convolution,
    worked_transposed_convolution,
    worked_unpooling,
)


def test_a_fully_connected_layer_is_a_convolution():
    text, arrays = worked_convolution()
    # Sobel's kernel and Laplace's on the window at the top left.
    assert arrays["dense"].tolist() == [4.0, 2.0]
    assert arrays["convolution"].tolist() == [4.0, 2.0]
    np.testing.assert_array_equal(
        arrays["convolution_everywhere"], arrays["dense_everywhere"]
    )
    assert arrays["convolution_everywhere"].shape == (2, 3, 2)
    # Sobel's at the bottom right: 0 + 2 · 1 + 0 - (2 + 2 · 1 + 3).
    assert arrays["convolution_everywhere"][1, 2, 0] == -5
    assert "Dense, of the flattened map       4       2" in text
    assert "each of 6 locations" in text and "differs by at most 0." in text


def test_a_kernel_that_is_not_square():
    image = np.arange(15.0).reshape(3, 5)
    kernel = np.arange(6.0).reshape(3, 2, 1)
    arrays = worked_convolution(image, kernel).arrays
    expected = [(kernel[..., 0] * image[:, j : j + 2]).sum() for j in range(4)]
    assert arrays["convolution_everywhere"][0, :, 0].tolist() == expected
    assert arrays["dense"].tolist() == expected[:1]


def test_unpooling_puts_values_where_the_maxima_were():
    text, arrays = worked_unpooling()
    assert arrays["maxima"].tolist() == [[7, 4], [8, 9]]
    assert arrays["places"].tolist() == [[2, 3], [3, 0]]
    assert arrays["unpooled"].tolist() == [
        [0, 0, 0, 0],
        [1, 0, 0, 2],
        [0, 0, 4, 0],
        [0, 3, 0, 0],
    ]
    # Window, place, location, maximum, value.
    lines = [" ".join(line.split()) for line in text.split("\n")]
    assert "(0, 0) 2 (1, 0) 7 1" in lines and "(0, 1) 3 (1, 3) 4 2" in lines


def test_unpooling_of_other_values_and_windows():
    image = np.zeros((3, 6))
    image[2, 1] = image[0, 5] = 1
    arrays = worked_unpooling(image, [[-7, 0.5]], pool_size=3).arrays
    assert arrays["places"].tolist() == [[7, 2]]
    expected = np.zeros((3, 6))
    expected[2, 1], expected[0, 5] = -7, 0.5
    np.testing.assert_array_equal(arrays["unpooled"], expected)


def test_a_transposed_convolution_of_a_row():
    text, arrays = worked_transposed_convolution()
    assert arrays["copies"].tolist() == [
        [1, 2, 1, 0, 0, 0, 0],
        [0, 0, 2, 4, 2, 0, 0],
        [0, 0, 0, 0, 3, 6, 3],
    ]
    assert arrays["sum"].tolist() == [1, 2, 3, 4, 5, 6, 3]
    assert arrays["count"].tolist() == [1, 1, 2, 1, 2, 1, 1]
    assert arrays["output"].tolist() == arrays["sum"].tolist()
    assert "x[1] · w = 2 · w" in text and "cropped" not in text
    # No negative zero.
    assert "-0" not in worked_transposed_convolution([-1, 2], [0, 1]).text.split()


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(("strides", "size"), [(1, 3), (2, 2), (2, 3), (3, 2)])
def test_the_sum_of_the_copies_is_what_the_layer_returns(strides, size, padding):
    """Also where a stride is longer than the kernel, which leaves gaps of zeros."""
    random = np.random.default_rng(3)
    for axes in (1, 2):
        inputs = random.integers(-5, 6, (4, 3)[:axes])
        kernel = random.integers(-5, 6, (size,) * axes)
        text, arrays = worked_transposed_convolution(inputs, kernel, strides, padding)
        keep = slice(padding, -padding or None)
        np.testing.assert_array_equal(arrays["output"], arrays["sum"][(keep,) * axes])
        np.testing.assert_array_equal(arrays["copies"].sum(0), arrays["sum"])
        assert arrays["count"].sum() == inputs.size * kernel.size
        assert ("cropped" in text) == (padding > 0 or axes == 2)


def test_a_transposed_convolution_of_a_map():
    text, arrays = worked_transposed_convolution(
        [[1, 2], [3, 4]], [[1, 10], [100, 1000]], strides=1, padding=1
    )
    assert arrays["sum"].tolist() == [[1, 12, 20], [103, 1234, 2040], [300, 3400, 4000]]
    assert arrays["output"].tolist() == [[1234]]
    assert arrays["count"].tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]
    assert "TransposedConv2D: the sum, 1 cropped at each side" in text


def test_tables_fit_a_terminal():
    texts = [worked_convolution(), worked_unpooling(), worked_transposed_convolution()]
    texts.append(worked_transposed_convolution([[1, 2], [3, 4]], padding=1))
    for text, _ in texts:
        assert max(map(len, text.split("\n"))) <= 80
        assert "nan" not in text


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (worked_convolution, {"image": [1, 2]}, r"`image` must .* Received: image"),
        (worked_convolution, {"image": np.zeros((13, 3))}, "each of 1 to 12"),
        (worked_convolution, {"kernel": np.zeros((5, 1, 1))}, "`kernel` must be at"),
        (worked_unpooling, {"image": np.zeros((3, 4))}, "multiples of `pool_size`"),
        (worked_unpooling, {"values": [[1]]}, r"`values` must have the shape \(2, 2\)"),
        (worked_unpooling, {"image": [[1, np.nan]] * 2}, "`image` must be finite"),
        (worked_convolution, {"image": [[1, 2], [3]]}, "`image` must be numbers"),
        (worked_transposed_convolution, {"inputs": "abc"}, "Received: inputs='abc'"),
        (worked_transposed_convolution, {"inputs": 3.0}, r"shape \(n\) or \(h, w\)"),
        (worked_transposed_convolution, {"padding": -1}, "Received: padding=-1"),
        (worked_transposed_convolution, {"padding": (1, 1)}, "`padding` must be a non"),
        (worked_transposed_convolution, {"kernel": [[1]]}, r"the shape \(k\)"),
        (worked_transposed_convolution, {"padding": 3}, "less than `kernel_size`"),
        (worked_transposed_convolution, {"strides": 12}, "Received: 27"),
        (worked_transposed_convolution, {"inputs": [1], "padding": 2}, "leave at"),
    ],
)  # fmt: skip
def test_what_is_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(**arguments)
