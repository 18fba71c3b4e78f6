"""GELU and its approximations, with gradients written out for training on TensorFlow.

TensorFlow differentiates GELU operation by operation, and each operation reads and
writes all units. Its `erfc` takes five times as long in bfloat16 as in float32. Written
out from the inputs only and in float32, GELU and its gradient take two thirds of the
time (in bfloat16, half of it). Fused by XLA they take two fifths of what is then left
(TensorFlow 2.21, CPU).
"""

import functools
import math
from typing import Any

import keras
from keras import ops

from keras_attn.kernels.precision import at_least_float32
from keras_attn.kernels.runtime import is_tensorflow
from keras_attn.kernels.xla import xla_fused


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


@keras.saving.register_keras_serializable("keras_attn")
def quick_gelu(inputs):
    """The sigmoid approximation of GELU, as in CLIP: `x σ(1.702 x)`.

    Args:
        inputs: (...).

    Returns:
        (...).

    Reference:
        Hendrycks and Gimpel 2016, section 2 (arXiv:1606.08415).
    """
    return ops.multiply(inputs, ops.sigmoid(ops.multiply(inputs, _SIGMOID_SCALE)))


def get_activation(identifier) -> Any:
    """`keras.activations.get`, which also knows `"gelu_tanh"` and `"quick_gelu"`.

    Args:
        identifier: A name, a configuration, a function, or None for no activation.

    Returns:
        A function of a tensor.
    """
    own = {"gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu}
    if isinstance(identifier, str) and identifier in own:
        return own[identifier]
    return keras.activations.get(identifier)


def with_fast_gradient(activation, fixed_shape=False) -> Any:
    """The activation to use in training: GELU's with its gradient written out.

    Args:
        activation: A function: GELU, `gelu_tanh` or `quick_gelu`, or any other.
        fixed_shape: Whether only the batch may change its size; then XLA fuses the
            function and its gradient.

    Returns:
        A function with the same values. Activations other than these, and all
        activations on backends other than TensorFlow, are returned as they are.
    """
    if not is_tensorflow():
        return activation
    return _WITH_GRADIENT.get((activation, fixed_shape), activation)


def _gelu(inputs):
    """`x Φ(x)`."""
    x = at_least_float32(inputs)
    return ops.cast(x * _normal_cdf(x), inputs.dtype)


def _gelu_gradient(inputs, upstream):
    """The derivative is `Φ(x) + x φ(x)`."""
    x = at_least_float32(inputs)
    density = ops.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    slope = _normal_cdf(x) + x * density
    return ops.cast(at_least_float32(upstream) * slope, inputs.dtype)


def _normal_cdf(x):
    return 0.5 + 0.5 * ops.erf(x * math.sqrt(0.5))


_SCALE, _CUBIC = math.sqrt(2 / math.pi), 0.044715


def _gelu_tanh(inputs):
    """`x (1 + t) / 2` with `t = tanh u` and `u = √(2/π) (x + 0.044715 x³)`."""
    x = at_least_float32(inputs)
    return ops.cast(0.5 * x * (1 + _tanh(x)), inputs.dtype)


def _gelu_tanh_gradient(inputs, upstream):
    """The derivative is `(1 + t + x u' (1 - t²)) / 2`."""
    x = at_least_float32(inputs)
    t = _tanh(x)
    inner = x * (_SCALE + 3 * _SCALE * _CUBIC * x * x)
    slope = 0.5 * (1 + t) + 0.5 * inner * (1 - t * t)
    return ops.cast(at_least_float32(upstream) * slope, inputs.dtype)


def _tanh(x):
    return ops.tanh(x * (_SCALE + _SCALE * _CUBIC * x * x))


_SIGMOID_SCALE = 1.702


def _quick_gelu(inputs):
    """`x s` with `s = σ(1.702 x)`."""
    x = at_least_float32(inputs)
    return ops.cast(x * ops.sigmoid(_SIGMOID_SCALE * x), inputs.dtype)


def _quick_gelu_gradient(inputs, upstream):
    """The derivative is `s (1 + 1.702 x (1 - s))`."""
    x = at_least_float32(inputs)
    s = ops.sigmoid(_SIGMOID_SCALE * x)
    slope = s * (1 + _SIGMOID_SCALE * x * (1 - s))
    return ops.cast(at_least_float32(upstream) * slope, inputs.dtype)


def _with_gradient(function, gradient):
    @ops.custom_gradient
    def call(inputs):
        # Without `stop_gradient` an outer tape would record every operation.
        value = function(ops.stop_gradient(inputs))
        return value, functools.partial(gradient, inputs)

    return call


_WITH_GRADIENT = {
    (activation, fixed): _with_gradient(*(xla_fused(f) if fixed else f for f in pair))
    for activation, pair in {
        keras.activations.gelu: (_gelu, _gelu_gradient),
        gelu_tanh: (_gelu_tanh, _gelu_tanh_gradient),
        quick_gelu: (_quick_gelu, _quick_gelu_gradient),
    }.items()
    for fixed in (False, True)
}
