"""Layer normalization, by the fastest kernel for the call."""

import keras

from keras_attn.kernels.layer_norm import has_onednn, select_layer_norm
from keras_attn.layers.adaptation.kernel_layer import RestoresAdapters


@keras.saving.register_keras_serializable("keras_attn")
class LayerNormalization(RestoresAdapters, keras.layers.LayerNormalization):
    """`γ (x - mean) / √(variance + ε) + β` over the last axis.

    The same as Keras' layer, but faster on a CPU with TensorFlow, and accurate for rows
    whose mean is many times their standard deviation: see
    `keras_attn.kernels.layer_norm`. Other axes, precisions other than float32 and
    bfloat16, and a norm without γ or β are left to Keras' implementation.

    When XLA compiles a function that calls a `tf.function`, TensorFlow does not trace
    the `tf.function` again. Set `use_fused` to False before tracing a `tf.function` for
    that use: the operation for inference is inaccurate under XLA.

    Args:
        **kwargs: As for `keras.layers.LayerNormalization`.

    Attributes:
        use_fused: Whether oneDNN's operation may be used at inference. Exports turn it
            off while they trace: their converters do not support the operation.

    Call arguments:
        inputs: (..., D).

    Returns:
        (..., D).

    Reference:
        Ba et al. 2016 (arXiv:1607.06450).
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.use_fused = has_onednn()

    def call(self, inputs, training=None):
        kernel = None
        if self._has_kernel(inputs):
            kernel = select_layer_norm(inputs, training, self.use_fused)
        if kernel is None:
            return super().call(inputs)
        return kernel(inputs, self.gamma, self.beta, self.epsilon)

    def _has_kernel(self, inputs):
        """Whether the kernels compute this norm: the last axis, scaled and shifted."""
        rank = len(inputs.shape)
        return (
            rank >= 2
            and self.axis in ([-1], [rank - 1])
            and inputs.dtype == self.compute_dtype
            and self.compute_dtype in ("float32", "bfloat16")
            and self.gamma is not None
            and self.beta is not None
        )
