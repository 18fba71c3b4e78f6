"""Resizes or crops maps to the size of a reference map.

A fully convolutional network needs this if the size of the image is unknown until the
call.

Legend: B batch, h and w rows and columns, C channels.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_not_negative, check_rank
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers.base import BaseLayer
from keras_attn.ops import resize_bilinear

_AXES = "(batch, rows, columns, channels)"


class MatchSize(BaseLayer):
    """Base class of layers that give a map the rows and columns of a reference."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)

    def build(self, inputs_shape, reference_shape):
        self._check(inputs_shape, reference_shape)

    def compute_output_shape(self, inputs_shape, reference_shape):
        self._check(inputs_shape, reference_shape)
        batch, *_, channels = inputs_shape
        return batch, *reference_shape[1:3], channels

    def _check(self, inputs_shape, reference_shape):
        check_rank("inputs", inputs_shape, 4, _AXES)
        check_rank("reference", reference_shape, 4, _AXES)


@keras.saving.register_keras_serializable("keras_attn")
class ResizeLike(MatchSize):
    """Resizes a map to the rows and columns of a reference, by bilinear interpolation.

    As `keras_attn.ops.resize_bilinear`.

    Args:
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, h, w, C).
        reference: (B, H, W, …), of which only H and W are used.

    Returns:
        (B, H, W, C).

    Raises:
        ValueError: If `inputs` or `reference` does not have 4 axes.
    """

    def call(self, inputs, reference):
        self._check(inputs.shape, reference.shape)
        return resize_bilinear(inputs, ops.shape(reference)[1:3])


@keras.saving.register_keras_serializable("keras_attn")
@described_as(ResizeLike)
class CropLike(MatchSize):
    """Crops a map to the rows and columns of a reference.

    Args:
        offset: Number of rows to crop at the top and of columns to crop on the left;
            the remaining excess is cropped at the bottom and on the right.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Returns:
        (B, H, W, C).

    Raises:
        ValueError: If `offset` is negative, `inputs` or `reference` does not have 4
            axes, or `inputs` is known to have fewer than H + `offset` rows or W +
            `offset` columns.
    """

    def __init__(self, offset: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.offset = check_not_negative("offset", offset)

    def _check(self, inputs_shape, reference_shape):
        super()._check(inputs_shape, reference_shape)
        pairs = zip(inputs_shape[1:3], reference_shape[1:3], strict=True)
        if any(None not in pair and pair[0] < pair[1] + self.offset for pair in pairs):
            raise ValueError(
                f"`inputs` must have at least {self.offset} rows and columns more than "
                "`reference`, the `offset`. "
                f"Received: inputs.shape={tuple(inputs_shape)}, "
                f"reference.shape={tuple(reference_shape)}"
            )

    def call(self, inputs, reference):
        self._check(inputs.shape, reference.shape)
        top = left = self.offset
        rows, columns = ops.shape(reference)[1:3]
        # Without the size of the batch, which would keep tf2onnx from moving
        # transposes past the slice.
        return inputs[:, top : top + rows, left : left + columns]
