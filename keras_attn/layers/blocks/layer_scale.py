"""A learned factor per channel of a residual branch."""

import keras
from keras import ops

from keras_attn.layers.base import BaseLayer


@keras.saving.register_keras_serializable("keras_attn")
class LayerScale(BaseLayer):
    """`γ · x`, with γ initially near zero: a deep model starts close to the identity.

    Args:
        initial_value: Initial value of every γ.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (..., D).

    Returns:
        (..., D).

    Reference:
        Touvron et al. 2021, "Going deeper with Image Transformers", section 2
        (arXiv:2103.17239).
    """

    def __init__(self, initial_value: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.initial_value = initial_value

    def build(self, inputs_shape):
        self.gamma = self.add_weight(
            name="gamma",
            shape=(inputs_shape[-1],),
            initializer=keras.initializers.Constant(self.initial_value),
        )

    def call(self, inputs):
        return ops.multiply(inputs, ops.cast(self.gamma, inputs.dtype))

    def compute_output_shape(self, inputs_shape):
        return inputs_shape
