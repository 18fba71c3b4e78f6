"""A bias added so that TensorFlow fuses it with the matrix product before it."""

import keras
from keras import ops

from keras_attn.kernels.runtime import is_tensorflow


def add_bias(inputs, bias):
    """`inputs + bias`, as an operation that TensorFlow fuses with its neighbors.

    On a CPU TensorFlow (2.21) fuses a matrix product, its bias and GELU into one
    operation if the bias is added by `bias_add`; a plain sum is fused with the product
    only.

    Args:
        inputs: (..., D).
        bias: (D,).

    Returns:
        (..., D).
    """
    if is_tensorflow() and not isinstance(inputs, keras.KerasTensor):
        import tensorflow as tf

        return tf.nn.bias_add(inputs, ops.cast(bias, inputs.dtype))
    return ops.add(inputs, bias)
