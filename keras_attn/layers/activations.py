"""GELU: the approximation that Keras has under no name, and gradients in few steps."""

import functools
import math
from typing import Any

import keras
from keras import ops

from keras_attn.kernels.xla import xla_fused


@keras.saving.register_keras_serializable("keras_attn")
def gelu_tanh(inputs):
    """GELU by its tanh approximation, as GPT has it.

    `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))` (Hendrycks and Gimpel 2016,
    arXiv:1606.08415).
    """
    return keras.activations.gelu(inputs, approximate=True)


def in_training(activation, fixed=False) -> Any:
    """The same function, for where its gradient is asked for.

    TensorFlow differentiates GELU operation by operation, each of which reads and
    writes all units, and in bfloat16 its `erfc` takes five times as long as in float32.
    Written out, from the inputs alone and in float32, GELU and its gradient take two
    thirds of the time, and half of it in bfloat16; in one pass each, two fifths
    of that (TensorFlow 2.21, CPU).

    Args:
        activation: A function.
        fixed: Whether shapes differ in the batch alone: `xla_fused` is for these.

    Returns:
        A function; the same one for what is not GELU, and on other backends, where XLA
        joins the operations anyway.
    """
    if keras.backend.backend() != "tensorflow":
        return activation
    return _WRITTEN_OUT.get((activation, fixed), activation)


def _gelu(inputs):
    """`x Φ(x)`."""
    x = _precise(inputs)
    return ops.cast(x * _cumulative(x), inputs.dtype)


def _gelu_gradient(inputs, upstream):
    """Its derivative is `Φ(x) + x φ(x)`."""
    x = _precise(inputs)
    density = ops.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    slope = _cumulative(x) + x * density
    return ops.cast(_precise(upstream) * slope, inputs.dtype)


def _precise(x):
    """In float32 at least."""
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


def _cumulative(x):
    return 0.5 + 0.5 * ops.erf(x * math.sqrt(0.5))


_SCALE, _CUBIC = math.sqrt(2 / math.pi), 0.044715


def _gelu_tanh(inputs):
    """`x (1 + t) / 2`, where t is `tanh u`, and u `√(2/π) (x + 0.044715 x³)`."""
    x = _precise(inputs)
    return ops.cast(0.5 * x * (1 + _tanh(x)), inputs.dtype)


def _gelu_tanh_gradient(inputs, upstream):
    """Its derivative is `(1 + t + x u' (1 - t²)) / 2`."""
    x = _precise(inputs)
    t = _tanh(x)
    inner = x * (_SCALE + 3 * _SCALE * _CUBIC * x * x)
    slope = 0.5 * (1 + t) + 0.5 * inner * (1 - t * t)
    return ops.cast(_precise(upstream) * slope, inputs.dtype)


def _tanh(x):
    return ops.tanh(x * (_SCALE + _SCALE * _CUBIC * x * x))


def _with_gradient(function, gradient):
    @ops.custom_gradient
    def call(inputs):
        # Stopped, or an outer tape would follow every operation in vain.
        value = function(ops.stop_gradient(inputs))
        return value, functools.partial(gradient, inputs)

    return call


_WRITTEN_OUT = {
    (activation, fixed): _with_gradient(*(xla_fused(f) if fixed else f for f in pair))
    for activation, pair in {
        keras.activations.gelu: (_gelu, _gelu_gradient),
        gelu_tanh: (_gelu_tanh, _gelu_tanh_gradient),
    }.items()
    for fixed in (False, True)
}
