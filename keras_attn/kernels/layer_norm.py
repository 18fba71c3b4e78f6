"""Layer normalization over the last axis, in the form that runs fastest.

`layer_norm` is the equation, `(x - mean) / √(variance + ε) · γ + β`. Each of its
operations reads and writes all of `x`, so TensorFlow on a CPU has two faster forms:

- In training XLA fuses the norm, and fuses its gradient (`layer_norm_for_training`).
- At inference oneDNN has one operation for it, which TensorFlow's graph optimizer
  substitutes for a batch norm of one image whose channels are the positions
  (`layer_norm_onednn`): a forward pass of BERT takes a fifth less time in bfloat16, a
  twentieth less in float32 (TensorFlow 2.21).

The mean is subtracted before anything is multiplied. Keras'
`x / deviation - mean / deviation` yields noise for a row of equal numbers, whose
deviation is √ε. XLA computes the variance of a batch norm as `E[x²] - E[x]²`, which
loses every digit if the mean is a thousand times the deviation.
"""

import os
import platform

from keras import ops

from keras_attn.kernels.runtime import (
    has_fixed_shape,
    is_compiled_by_xla,
    is_tensorflow_on_cpu,
    is_tracing,
)
from keras_attn.kernels.xla import xla_fused


def select_layer_norm(inputs, training, use_onednn):
    """Which of the functions below is the fastest for a call.

    Args:
        inputs: (..., D).
        training: Whether gradients are needed.
        use_onednn: Whether oneDNN's operation may be used.

    Returns:
        A function of `inputs`, `gamma`, `beta` and `epsilon`, or None where Keras' own
        norm is as fast.
    """
    if training and is_tensorflow_on_cpu() and has_fixed_shape(inputs):
        return layer_norm_for_training
    if not is_tracing() or is_compiled_by_xla():
        return layer_norm
    # Setting up oneDNN's operation takes longer than the norm of a single position.
    is_one_position = inputs.shape[-2] == 1
    if not training and use_onednn and not is_one_position:
        return layer_norm_onednn
    return None


def has_onednn() -> bool:
    """Whether TensorFlow runs on an x86 CPU with oneDNN, as far as can be known.

    Without oneDNN the batch norm takes twice as long as Keras' norm, and cuDNN's batch
    norm does not accept a small ε.
    """
    if not is_tensorflow_on_cpu():
        return False
    option = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower()
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and option not in ("0", "false")


def layer_norm(inputs, gamma, beta, epsilon):
    """The equation, in float32.

    Args:
        inputs: (..., D).
        gamma: (D,).
        beta: (D,).
        epsilon: ε.

    Returns:
        (..., D), in the dtype of the inputs.
    """
    normalized, _ = _normalize(inputs, epsilon)
    gamma, beta = (ops.cast(weight, "float32") for weight in (gamma, beta))
    return ops.cast(normalized * gamma + beta, inputs.dtype)


def layer_norm_for_training(inputs, gamma, beta, epsilon):
    """As `layer_norm`: norm and gradient are one XLA kernel each."""
    import tensorflow as tf

    @ops.custom_gradient
    def call(inputs, gamma, beta, epsilon):
        def gradient(upstream):
            return (*_fused_gradient(inputs, gamma, epsilon, upstream), None)

        # Without `stop_gradient` an outer tape would record every operation.
        constants = (ops.stop_gradient(x) for x in (inputs, gamma, beta, epsilon))
        return _fused_norm(*constants), gradient

    # Converted, because TensorFlow passes variables to a custom gradient separately.
    return call(*map(tf.convert_to_tensor, (inputs, gamma, beta, epsilon)))


def layer_norm_onednn(inputs, gamma, beta, epsilon):
    """As `layer_norm`: the graph that TensorFlow's optimizer turns into oneDNN's."""
    import tensorflow as tf

    shape, width = tf.shape(inputs), inputs.shape[-1]
    rows = tf.reduce_prod(shape[:-1])
    is_sequence = len(inputs.shape) == 3
    if not is_sequence:
        # The optimizer takes three axes only. Without the placeholder it would merge
        # this reshape with the next one.
        sequence = tf.reshape(inputs, (1, rows, width))
        inputs = _kept(sequence, (1, None, width))
    # The optimizer looks for two `Fill` operations, which must not have been folded
    # into constants.
    channels = _kept([rows], (1,))
    empty = tf.constant([], tf.float32)
    normalized = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(inputs, (1, rows, width, 1)),
        scale=tf.fill(channels, 1.0),
        offset=tf.fill(channels, 0.0),
        mean=empty,
        variance=empty,
        epsilon=epsilon,
        data_format="NCHW",
        is_training=True,
    )[0]
    gamma, beta = (ops.cast(weight, inputs.dtype) for weight in (gamma, beta))
    outputs = tf.reshape(normalized, tf.shape(inputs)) * gamma + beta
    return outputs if is_sequence else tf.reshape(outputs, shape)


def _kept(value, shape):
    """The value, which TensorFlow's optimizer neither folds nor merges."""
    import tensorflow as tf

    return tf.raw_ops.PlaceholderWithDefault(input=value, shape=shape)


def _normalize(inputs, epsilon):
    """`(x - mean) / deviation` and `1 / deviation`, in float32."""
    x = ops.cast(inputs, "float32")
    x = x - ops.mean(x, axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.mean(x * x, axis=-1, keepdims=True) + epsilon)
    return x * scale, scale


_fused_norm = xla_fused(layer_norm)


@xla_fused
def _fused_gradient(inputs, gamma, epsilon, upstream):
    """Gradients of the inputs (..., D), of γ (D,) and of β (D,)."""
    normalized, scale = _normalize(inputs, epsilon)
    upstream = ops.cast(upstream, "float32")
    slope = upstream * ops.cast(gamma, "float32")
    projection = ops.mean(slope * normalized, axis=-1, keepdims=True)
    slope = slope - ops.mean(slope, axis=-1, keepdims=True) - normalized * projection
    positions = tuple(range(len(inputs.shape) - 1))
    return (
        ops.cast(scale * slope, inputs.dtype),
        ops.cast(ops.sum(upstream * normalized, axis=positions), gamma.dtype),
        ops.cast(ops.sum(upstream, axis=positions), gamma.dtype),
    )
