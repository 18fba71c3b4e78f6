"""GELU: the approximation that Keras has under no name, and gradients in few steps."""

import math
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_attn")
def gelu_tanh(inputs):
    """GELU by its tanh approximation, as GPT has it.

    `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))` (Hendrycks and Gimpel 2016,
    arXiv:1606.08415).
    """
    return keras.activations.gelu(inputs, approximate=True)


def in_training(activation) -> Any:
    """The same function, for where its gradient is asked for.

    TensorFlow differentiates GELU operation by operation, each of which reads and
    writes all units, and in bfloat16 its `erfc` takes five times as long as in float32.
    Written out, from the inputs alone and in float32, GELU and its gradient take two
    thirds of the time, and half of it in bfloat16 (TensorFlow 2.21, CPU). XLA, and so
    JAX, would join the operations anyway.

    Args:
        activation: A function.

    Returns:
        A function; the same one for what is not GELU, and on other backends.
    """
    if keras.backend.backend() != "tensorflow":
        return activation
    return _WRITTEN_OUT.get(activation, activation)


@ops.custom_gradient
def _gelu(inputs):
    """`x Φ(x)`, whose derivative is `Φ(x) + x φ(x)`."""

    def density(x):
        return ops.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))

    def cumulative(x):
        return 0.5 + 0.5 * ops.erf(x * math.sqrt(0.5))

    def gradient(upstream):
        x = ops.cast(inputs, "float32")
        slope = cumulative(x) + x * density(x)
        return ops.cast(ops.cast(upstream, "float32") * slope, inputs.dtype)

    x = ops.cast(inputs, "float32")
    return ops.cast(x * cumulative(x), inputs.dtype), gradient


@ops.custom_gradient
def _gelu_tanh(inputs):
    """`x (1 + t) / 2`, whose derivative is `(1 + t + x u' (1 - t²)) / 2`.

    t is `tanh u`, and u is `√(2/π) (x + 0.044715 x³)`.
    """
    scale, cubic = math.sqrt(2 / math.pi), 0.044715

    def tanh(x):
        return ops.tanh(x * (scale + scale * cubic * x * x))

    def gradient(upstream):
        x = ops.cast(inputs, "float32")
        t = tanh(x)
        inner = x * (scale + 3 * scale * cubic * x * x)
        slope = 0.5 * (1 + t) + 0.5 * inner * (1 - t * t)
        return ops.cast(ops.cast(upstream, "float32") * slope, inputs.dtype)

    x = ops.cast(inputs, "float32")
    return ops.cast(0.5 * x * (1 + tanh(x)), inputs.dtype), gradient


_WRITTEN_OUT = {keras.activations.gelu: _gelu, gelu_tanh: _gelu_tanh}
