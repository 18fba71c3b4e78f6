"""Adding a bias so that TensorFlow fuses it with the product before it."""

import keras
from keras import ops


def add_bias(inputs, bias):
    """`inputs + bias`, by the operation that TensorFlow makes one with its neighbours.

    On a CPU TensorFlow (2.21) runs a product, a bias and GELU as one operation if the
    bias was added by its own `bias_add`; a sum it joins with the product alone.

    Args:
        inputs: (..., D).
        bias: (D,).

    Returns:
        (..., D).
    """
    is_tensorflow = keras.backend.backend() == "tensorflow"
    if is_tensorflow and not isinstance(inputs, keras.KerasTensor):
        import tensorflow as tf

        return tf.nn.bias_add(inputs, ops.cast(bias, inputs.dtype))
    return ops.add(inputs, bias)
