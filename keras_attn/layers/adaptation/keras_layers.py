"""Keras' layers with kernels that may have LoRA weights or be quantized."""

import keras
from keras import ops

from keras_attn.checks.indices import check_indices
from keras_attn.layers.adaptation.kernel_layer import KernelLayer
from keras_attn.layers.adaptation.quantization import Quantizable
from keras_attn.ops import add_bias
from keras_attn.ops.weight_products import (
    convolution,
    kernel_rows,
    product,
)

_register = keras.saving.register_keras_serializable("keras_attn")


class SavedByNumber(KernelLayer, Quantizable):
    """Saves the weights by number, as Keras does for layers of its users.

    Keras' own layers would write the value of the kernel, also with LoRA weights.
    """

    def save_own_variables(self, store):
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store):
        keras.layers.Layer.load_own_variables(self, store)


@_register
class Dense(SavedByNumber, keras.layers.Dense):
    """`activation(x W + b)`: Keras' `Dense`, whose kernel may be adapted or quantized.

    Args:
        units: E, width of the outputs.
        **kwargs: As for `keras.layers.Dense`.

    Call arguments:
        inputs: (..., D).

    Returns:
        (..., E).
    """

    kernel_name = "_kernel"

    def __init__(self, units: int, **kwargs):
        super().__init__(units, **kwargs)

    def call(self, inputs):
        outputs = product(inputs, self._kernel)
        if self.bias is not None:
            outputs = add_bias(outputs, self.bias)
        return self.activation(outputs)  # pyright: ignore[reportOptionalCall]


@_register
class Conv2D(SavedByNumber, keras.layers.Conv2D):
    """Keras' `Conv2D`, whose kernel may be adapted or quantized.

    Args:
        filters: Number of output channels.
        kernel_size: Height and width of the kernel.
        **kwargs: As for `keras.layers.Conv2D`.

    Call arguments:
        inputs: (B, H, W, C).

    Returns:
        (B, H', W', filters).
    """

    kernel_name = "_kernel"

    def __init__(self, filters: int, kernel_size: int | tuple[int, int], **kwargs):
        super().__init__(filters, kernel_size, **kwargs)

    def convolution_op(self, inputs, kernel):
        """The convolution, without the bias."""
        return convolution(super().convolution_op, inputs, kernel)


@_register
class Embedding(SavedByNumber, keras.layers.Embedding):
    """Keras' `Embedding`, whose table may be adapted or quantized.

    Args:
        input_dim: V, number of ids.
        output_dim: D.
        **kwargs: As for `keras.layers.Embedding`.

    Call arguments:
        inputs: Ids (...).

    Returns:
        (..., D).

    Raises:
        ValueError: If an id is outside [0, V), in an eager call; a compiled graph does
            not check.
    """

    kernel_name = "_embeddings"

    def __init__(self, input_dim: int, output_dim: int, **kwargs):
        super().__init__(input_dim, output_dim, **kwargs)

    def call(self, inputs):
        check_indices("inputs", inputs, (0, self.input_dim))
        if inputs.dtype not in ("int32", "int64"):
            inputs = ops.cast(inputs, "int32")
        rows = kernel_rows(self._embeddings, inputs)
        return ops.cast(rows, self.compute_dtype)
