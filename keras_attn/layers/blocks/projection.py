"""A dense layer that TensorFlow runs as one operation."""

import keras
from keras import ops

from keras_attn.ops import add_bias


@keras.saving.register_keras_serializable("keras_attn")
class Projection(keras.layers.Dense):
    """`activation(x W + b)`: Keras' `Dense`, with its bias added by `ops.add_bias`.

    Args:
        units: E, width of the outputs.
        **kwargs: As for `keras.layers.Dense`.

    Call arguments:
        inputs: (..., D).

    Returns:
        (..., E).
    """

    def call(self, inputs):
        outputs = ops.matmul(inputs, self.kernel)
        if self.bias is not None:
            outputs = add_bias(outputs, self.bias)
        return self.activation(outputs)  # pyright: ignore[reportOptionalCall]
