"""Activation functions that Keras has no name for."""

import keras


@keras.saving.register_keras_serializable("keras_attn")
def gelu_tanh(inputs):
    """The tanh approximation of GELU, as in GPT.

    `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`.

    Args:
        inputs: (...).

    Returns:
        (...).

    Reference:
        Hendrycks and Gimpel 2016 (arXiv:1606.08415).
    """
    return keras.activations.gelu(inputs, approximate=True)
