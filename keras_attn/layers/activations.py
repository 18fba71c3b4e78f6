"""Activations that Keras has under no name of their own."""

import keras


@keras.saving.register_keras_serializable("keras_attn")
def gelu_tanh(inputs):
    """GELU by its tanh approximation, as GPT has it.

    `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))` (Hendrycks and Gimpel 2016,
    arXiv:1606.08415).
    """
    return keras.activations.gelu(inputs, approximate=True)
