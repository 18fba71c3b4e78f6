"""Transposed convolution, which enlarges a map.

Legend: B batch, h and w rows and columns of the map, H and W of the output, C
channels, F filters, k kernel size, s stride, p padding, o output padding.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Activation, Initializer
from keras_attn.checks.arguments import (
    as_pair,
    check_pair,
    check_positive,
    check_rank,
    is_whole,
)
from keras_attn.kernels.gelu import get_activation
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy

_AXES = "(batch, rows, columns, channels)"


@keras.saving.register_keras_serializable("keras_attn")
class TransposedConv2D(BaseLayer):
    """Each input value adds a copy of the kernel times that value to the output.

    The copy for the value at row i and column j covers the k × k rows and columns from
    `(s · i, s · j)` on, once per filter, with the kernel of the value's channel and
    that filter. The copies of all locations and channels, which may overlap, add up to
    a map of `(h - 1) · s + k` rows. Of these, p rows are cropped at the top and p - o
    at the bottom, and columns likewise; then the bias is added:

        H = (h - 1) · s + k - 2p + o

    This is the gradient of a convolution of stride s and padding p with respect to its
    input, hence the name. It equals PyTorch's `ConvTranspose2d(kernel_size, stride,
    padding, output_padding)`, with the axes of the kernel in Keras' order.

    Args:
        filters: F.
        kernel_size: k, one number or two, rows first, like the next three.
        strides: s.
        padding: p, at most k - 1.
        output_padding: o, less than s: additional rows at the bottom and columns on the
            right. Maps of several sizes have the same size after a convolution with a
            stride; o selects the size to restore. A location that no copy of the kernel
            reaches gets only the bias.
        activation: Activation of the output.
        use_bias: Whether to add a bias.
        kernel_initializer: Initializer of the kernel (k, k, F, C). With
            `layers.initializers.BilinearKernel()` the layer starts as bilinear
            interpolation.
        bias_initializer: Initializer of the bias (F,).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, h, w, C), with known C.

    Returns:
        (B, H, W, F).

    Raises:
        ValueError: If an argument is out of range, `inputs` does not have 4 axes, or
            the map is so small that the output would be empty.

    Reference:
        Zeiler et al. 2010, "Deconvolutional Networks"; Long et al. 2015, section 3.3
        (arXiv:1411.4038); Noh et al. 2015, section 3.2.2 (arXiv:1505.04366).
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int] = 1,
        *,
        padding: int | tuple[int, int] = 0,
        output_padding: int | tuple[int, int] = 0,
        activation: Activation | None = None,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = check_positive("filters", filters)
        self.kernel_size = check_pair("kernel_size", kernel_size)
        self.strides = check_pair("strides", strides)
        self.padding = _below("padding", padding, "kernel_size", self.kernel_size)
        self.output_padding = _below(
            "output_padding", output_padding, "strides", self.strides
        )
        self.activation = get_activation(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, inputs_shape):
        self.compute_output_shape(inputs_shape)
        self.kernel = self.add_weight(
            shape=(*self.kernel_size, self.filters, inputs_shape[-1]),
            initializer=independent_copy(self.kernel_initializer, "kernel"),
            name="kernel",
        )
        if self.use_bias:
            self.bias = self.add_weight(
                shape=(self.filters,),
                initializer=independent_copy(self.bias_initializer, "bias"),
                name="bias",
            )

    def call(self, inputs):
        self.compute_output_shape(inputs.shape)
        stamped = ops.conv_transpose(
            inputs,
            self.kernel,
            strides=self.strides,
            padding="valid",
            data_format="channels_last",
        )
        outputs = self._cropped(stamped, self._size(ops.shape(inputs)[1:3]))
        if self.use_bias:
            outputs = ops.add(outputs, ops.cast(self.bias, outputs.dtype))
        return self.activation(outputs)

    def _cropped(self, stamped, size):
        """Crops to the output; rows that no copy of the kernel reaches are zeros."""
        # Keras has max(k, s) rows for the last copy of the kernel.
        margins = [
            max(0, o - p - max(0, s - k))
            for o, p, s, k in zip(
                self.output_padding,
                self.padding,
                self.strides,
                self.kernel_size,
                strict=True,
            )
        ]
        if any(margins):
            stamped = ops.pad(stamped, [(0, 0), *((0, n) for n in margins), (0, 0)])
        if tuple(stamped.shape[1:3]) == tuple(size):
            return stamped
        (top, left), (rows, columns) = self.padding, size
        return stamped[:, top : top + rows, left : left + columns]

    def _size(self, size):
        """Rows and columns of the output; None where unknown."""
        return tuple(
            None if n is None else (n - 1) * s + k - 2 * p + o
            for n, s, k, p, o in zip(
                size,
                self.strides,
                self.kernel_size,
                self.padding,
                self.output_padding,
                strict=True,
            )
        )

    def compute_output_shape(self, inputs_shape):
        check_rank("inputs", inputs_shape, 4, _AXES)
        if inputs_shape[-1] is None:
            raise ValueError(
                "The number of channels of `inputs` must be known, because the kernel "
                f"depends on it. Received: inputs.shape={tuple(inputs_shape)}"
            )
        size = self._size(inputs_shape[1:3])
        if any(n is not None and n < 1 for n in size):
            raise ValueError(
                "The output would be empty: use larger `inputs` or a smaller "
                f"`padding`. Received: inputs.shape={tuple(inputs_shape)}, "
                f"padding={self.padding}"
            )
        return inputs_shape[0], *size, self.filters


def _below(name, value, limit_name, limits):
    """Returns a pair, for rows and columns; raises unless 0 <= each < `limits`."""
    pair = as_pair(value)
    if pair is None or not all(
        is_whole(n) and 0 <= n < limit for n, limit in zip(pair, limits, strict=True)
    ):
        raise ValueError(
            f"`{name}` must be a non-negative integer or a pair of them, (rows, "
            f"columns), less than `{limit_name}`. Received: {name}={value!r}, "
            f"{limit_name}={limits}"
        )
    return pair
