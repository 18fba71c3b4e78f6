"""Maxout, the activation of RNNsearch's readout layer."""

import keras

from keras_attn.checks.arguments import check_positive
from keras_attn.layers.base import BaseLayer
from keras_attn.ops import maxout


@keras.saving.register_keras_serializable("keras_attn")
class Maxout(BaseLayer):
    """The maximum of each group of `pieces` adjacent units.

    Args:
        pieces: Number of units in a group.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (..., D·pieces).

    Returns:
        (..., D).

    Raises:
        ValueError: If the width is not a multiple of `pieces`.

    Reference:
        Goodfellow et al. 2013, "Maxout Networks" (arXiv:1302.4389).
    """

    def __init__(self, pieces: int = 2, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.pieces = check_positive("pieces", pieces)

    def build(self, inputs_shape):
        if inputs_shape[-1] % self.pieces:
            raise ValueError(
                "The width must be a multiple of `pieces`. Received: "
                f"width={inputs_shape[-1]}, pieces={self.pieces}"
            )

    def call(self, inputs):
        return maxout(inputs, self.pieces)

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:-1], inputs_shape[-1] // self.pieces)
