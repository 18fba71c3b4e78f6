"""Max pooling that remembers where each maximum was, and the layer that undoes it.

Legend: B batch, H and W rows and columns of a map, h and w of the pooled map, C
channels.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_choice, check_pair, check_rank
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.convolution.switches import chosen
from keras_attn.ops.pooling import (
    AXES,
    PADDINGS,
    Padding,
    check_inputs,
    check_sizes,
    max_pool_with_indices,
    max_unpool,
    pooled_size,
)


class _Windows(BaseLayer):
    """The arguments that both layers share."""

    def __init__(
        self,
        pool_size: int | tuple[int, int] = 2,
        *,
        padding: Padding = "valid",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.pool_size = check_pair("pool_size", pool_size)
        check_choice("padding", padding, PADDINGS)
        self.padding = padding


@keras.saving.register_keras_serializable("keras_attn")
class MaxPoolWithIndices(_Windows):
    """The maximum of each window, and its location within the window.

    As `keras_attn.ops.max_pool_with_indices`. Windows do not overlap, so there are no
    `strides`: overlapping windows could share a maximum, and `MaxUnpool2D` would have
    two values for its location.

    Args:
        pool_size: Rows and columns of a window, one number or two.
        padding: `"valid"` leaves out rows and columns that do not fill a window,
            `"same"` pads them.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, H, W, C).

    Returns:
        The maxima (B, h, w, C), and their locations, int32 of the same shape, for
        `MaxUnpool2D`. h = H / rows, rounded down with `"valid"`, up with `"same"`.

    Raises:
        ValueError: If `inputs` does not have 4 axes, or, with `"valid"`, is known to be
            smaller than a window.
    """

    # Which of two nearly equal values is the maximum depends on rounding, and so does
    # the location where `MaxUnpool2D` puts a value. See `export/switches.py`.
    is_discontinuous = True

    def build(self, inputs_shape):
        self._check(inputs_shape)

    def call(self, inputs):
        maxima, indices = max_pool_with_indices(inputs, self.pool_size, self.padding)
        return maxima, chosen(self, inputs, maxima, indices)

    def compute_output_shape(self, inputs_shape):
        self._check(inputs_shape)
        batch, *size, channels = inputs_shape
        shape = (batch, *pooled_size(size, self.pool_size, self.padding), channels)
        return shape, shape

    def compute_output_spec(self, inputs):
        shape, _ = self.compute_output_shape(inputs.shape)
        values = keras.KerasTensor(shape, dtype=self.compute_dtype)
        return values, keras.KerasTensor(shape, dtype="int32")

    def _check(self, inputs_shape):
        check_inputs(inputs_shape, self.pool_size, self.padding)


@keras.saving.register_keras_serializable("keras_attn")
class MaxUnpool2D(_Windows):
    """Puts each value back at the location of its maximum; the others are zero.

    As `keras_attn.ops.max_unpool`.

    Args:
        pool_size: As in the `MaxPoolWithIndices` that returned the indices.
        padding: As in that `MaxPoolWithIndices`.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, h, w, C).
        indices: int32, of the same shape, from `MaxPoolWithIndices`.
        reference: (B, H, W, …), of which only H and W are used: the map that was
            pooled, or any other map of its size.

    Returns:
        (B, H, W, C).

    Raises:
        ValueError: If `inputs` or `reference` does not have 4 axes, `indices` and
            `inputs` have different shapes, or `reference` is known to pool to a
            different size.
    """

    def build(self, inputs_shape, indices_shape, reference_shape):
        self._check(inputs_shape, indices_shape, reference_shape)

    def call(self, inputs, indices, reference):
        self._check(inputs.shape, indices.shape, reference.shape)
        size = ops.shape(reference)[1:3]
        return max_unpool(inputs, indices, size, self.pool_size, self.padding)

    def compute_output_shape(self, inputs_shape, indices_shape, reference_shape):
        self._check(inputs_shape, indices_shape, reference_shape)
        batch, *_, channels = inputs_shape
        return batch, *reference_shape[1:3], channels

    def _check(self, inputs_shape, indices_shape, reference_shape):
        check_rank("reference", reference_shape, 4, AXES)
        check_sizes(
            inputs_shape,
            indices_shape,
            reference_shape[1:3],
            self.pool_size,
            self.padding,
        )
