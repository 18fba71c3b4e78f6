"""The smallest image that a model of any image size takes."""

import keras

from keras_attn.checks import check_pair, check_rank
from keras_attn.layers.base import BaseLayer


@keras.saving.register_keras_serializable("keras_attn")
class MinimumImageSize(BaseLayer):
    """Passes images on, and refuses those with fewer rows or columns.

    A model that takes images of any size has maps of any size, and of a small image the
    last of them would be empty. The error names the image, where that of a later layer
    would name its map.

    Args:
        minimum_size: Pixels, one number or two, rows first.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, H, W, C).

    Returns:
        (B, H, W, C), the same tensor.

    Raises:
        ValueError: for fewer pixels, wherever H and W are known: in every eager call,
            and when a function is traced for one size. A function that is compiled for
            any size does not check.
    """

    def __init__(self, minimum_size, **kwargs):
        super().__init__(**kwargs)
        self.minimum_size = check_pair("minimum_size", minimum_size)

    def build(self, inputs_shape):
        self._check(inputs_shape)

    def call(self, inputs):
        self._check(inputs.shape)
        return inputs

    def _check(self, inputs_shape):
        meaning = "(batch, height, width, channels)"
        check_rank("inputs", keras.KerasTensor(inputs_shape), 4, meaning)
        sizes = zip(inputs_shape[1:3], self.minimum_size, strict=True)
        if any(size is not None and size < least for size, least in sizes):
            raise ValueError(
                f"The images must have at least {self.minimum_size} pixels, rows "
                "first: of smaller ones the last map of the model would be empty. "
                "Resize or pad them, or build the model with fewer stages. "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )

    def compute_output_shape(self, inputs_shape):
        self._check(inputs_shape)
        return inputs_shape
