"""Layer normalization that TensorFlow runs as one operation on a CPU."""

import os
import platform

import keras
from keras import ops

from keras_attn.kernels.xla import (
    has_fixed_shape,
    is_in_a_graph,
    is_in_xla,
    runs_on_cpu_alone,
    xla_fused,
)


@keras.saving.register_keras_serializable("keras_attn")
class LayerNormalization(keras.layers.LayerNormalization):
    """`γ (x - mean) / √(variance + ε) + β` over the last axis: Keras' own, faster.

    Of a handful of operations each reads and writes all of `x`. On a CPU TensorFlow
    has one for it, of oneDNN, that it puts in where a norm is written as a batch norm
    of one image whose channels are the positions: a forward pass of BERT takes a fifth
    less in bfloat16, a twentieth less in float32 (TensorFlow 2.21). So it is called at
    inference in a graph on an x86 CPU whose oneDNN is not turned off; but not for one
    position, whose norm takes less than setting the operation up: a token of GPT-2
    takes a twentieth less. In the graph of a training step, on any CPU, the norm and
    its gradient are written out and take one pass each, where the shape is known but
    for the batch. Other graphs that XLA does not compile, and other axes, get Keras'
    own.

    Inside a function that XLA compiles the batch norm is never called: XLA computes its
    variance as `E[x²] - E[x]²`, which loses every digit where the mean is a thousand
    times the deviation. TensorFlow does not trace a `tf.function` anew for that: set
    `use_fused` to False before you trace one that a compiled function will call. There,
    in eager calls and on the other backends the mean is subtracted before anything is
    multiplied: Keras' `x / deviation - mean / deviation` is noise for a row of equal
    numbers, whose deviation is √ε.

    Args:
        **kwargs: As for `keras.layers.LayerNormalization`.

    Attributes:
        use_fused: Whether it may be that one operation at inference. Exports turn it
            off while they trace: their converters do not know it.

    Call arguments:
        inputs: (..., D).

    Returns:
        (..., D).

    Reference:
        Ba et al. 2016 (arXiv:1607.06450).
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.use_fused = runs_on_cpu_alone() and _has_onednn()

    def call(self, inputs, training=None):
        if not self._fits(inputs):
            return super().call(inputs)
        weights = self.gamma, self.beta, self.epsilon
        if training and runs_on_cpu_alone() and has_fixed_shape(inputs):
            return _trained(inputs, *weights)
        is_tensorflow = keras.config.backend() == "tensorflow"
        if not is_tensorflow or not is_in_a_graph() or is_in_xla():
            return _affine(inputs, *weights)
        is_one_position = inputs.shape[-2] == 1
        if not training and self.use_fused and not is_one_position:
            return _fused(inputs, *weights)
        return super().call(inputs)

    def _fits(self, inputs):
        rank = len(inputs.shape)
        return (
            rank >= 2
            and self.axis in ([-1], [rank - 1])
            and inputs.dtype == self.compute_dtype
            and self.compute_dtype in ("float32", "bfloat16")
            and self.gamma is not None
            and self.beta is not None
        )


def _has_onednn():
    """Whether TensorFlow runs through oneDNN, as far as one knows.

    Without it the batch norm takes twice as long as Keras' norm, and that of cuDNN
    takes no small ε.
    """
    on = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() not in ("0", "false")
    return on and platform.machine().lower() in ("x86_64", "amd64")


def _trained(inputs, gamma, beta, epsilon):
    """The norm and its gradient, each in one pass."""
    import tensorflow as tf

    @ops.custom_gradient
    def call(inputs, gamma, beta, epsilon):
        def gradient(upstream):
            return (*_gradient(inputs, gamma, epsilon, upstream), None)

        # Stopped, or an outer tape would follow every operation in vain.
        still = (ops.stop_gradient(x) for x in (inputs, gamma, beta, epsilon))
        return _norm(*still), gradient

    # Tensors all: the gradient of a variable would be asked for in another way.
    return call(*map(tf.convert_to_tensor, (inputs, gamma, beta, epsilon)))


def _affine(inputs, gamma, beta, epsilon):
    """(..., D)."""
    normed, _ = _normed(inputs, epsilon)
    gamma, beta = (ops.cast(weight, "float32") for weight in (gamma, beta))
    return ops.cast(normed * gamma + beta, inputs.dtype)


_norm = xla_fused(_affine)


@xla_fused
def _gradient(inputs, gamma, epsilon, upstream):
    """Of the inputs (..., D), of γ and of β (D)."""
    normed, scale = _normed(inputs, epsilon)
    upstream = ops.cast(upstream, "float32")
    slope = upstream * ops.cast(gamma, "float32")
    along = ops.mean(slope * normed, axis=-1, keepdims=True)
    slope = scale * (slope - ops.mean(slope, axis=-1, keepdims=True) - normed * along)
    positions = tuple(range(len(inputs.shape) - 1))
    return (
        ops.cast(slope, inputs.dtype),
        ops.cast(ops.sum(upstream * normed, axis=positions), gamma.dtype),
        ops.cast(ops.sum(upstream, axis=positions), gamma.dtype),
    )


def _normed(inputs, epsilon):
    """`(x - mean) / deviation`, and one by the deviation, in float32."""
    x = ops.cast(inputs, "float32")
    x = x - ops.mean(x, axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.mean(x * x, axis=-1, keepdims=True) + epsilon)
    return x * scale, scale


def _fused(inputs, gamma, beta, epsilon):
    """The graph in which TensorFlow's optimizer finds a layer norm."""
    import tensorflow as tf

    shape = tf.shape(inputs)
    rows = tf.reduce_prod(shape[:-1])
    # The optimizer looks for two `Fill`, so they must not become constants before.
    channels = tf.raw_ops.PlaceholderWithDefault(input=[rows], shape=[1])
    nothing = tf.constant([], tf.float32)
    normed = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(inputs, (1, rows, inputs.shape[-1], 1)),
        scale=tf.fill(channels, 1.0),
        offset=tf.fill(channels, 0.0),
        mean=nothing,
        variance=nothing,
        epsilon=epsilon,
        data_format="NCHW",
        is_training=True,
    )[0]
    gamma, beta = (ops.cast(weight, inputs.dtype) for weight in (gamma, beta))
    return tf.reshape(normed, shape) * gamma + beta
