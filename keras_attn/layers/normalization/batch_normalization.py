"""Batch normalization, by the fastest kernel for the call."""

import keras
from keras import ops

from keras_attn.docstrings.descriptions import described_as
from keras_attn.kernels.batch_norm import batch_norm, batch_norm_for_training
from keras_attn.kernels.runtime import is_compiled_by_xla, is_tensorflow_on_cpu
from keras_attn.layers.adaptation.kernel_layer import RestoresAdapters


@keras.saving.register_keras_serializable("keras_attn")
@described_as(keras.layers.BatchNormalization)
class BatchNormalization(RestoresAdapters, keras.layers.BatchNormalization):
    """`γ (x - mean) / √(variance + ε) + β`, by channel.

    The same as Keras' layer, but faster for maps on a CPU with TensorFlow: see
    `keras_attn.kernels.batch_norm`. Inputs other than maps with the channels last,
    masks, renormalization, synchronized norms and float64 are left to Keras'
    implementation.

    Args:
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, H, W, C), or any other shape that Keras' layer takes.
        mask: As for Keras' layer.

    Returns:
        As the inputs.

    Reference:
        Ioffe and Szegedy 2015 (arXiv:1502.03167).
    """

    def call(self, inputs, training=None, mask=None):
        # A norm that is not trained uses the means and variances that it has learned.
        is_trained = training and self.trainable
        if (training and not is_trained) or not self._has_kernel(inputs, mask):
            return super().call(inputs, training=training, mask=mask)
        weights = self.gamma, self.beta, self.epsilon
        if not is_trained:
            return batch_norm(inputs, self.moving_mean, self.moving_variance, *weights)
        outputs, mean, variance = batch_norm_for_training(inputs, *weights)
        for moving, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            old = ops.cast(moving, "float32")
            moving.assign(old * self.momentum + new * (1.0 - self.momentum))
        return outputs

    def _has_kernel(self, inputs, mask):
        """Whether a kernel can compute this norm, and is faster than XLA."""
        return (
            is_tensorflow_on_cpu()
            and not is_compiled_by_xla()
            and len(inputs.shape) == 4
            and self.axis in (-1, 3)
            and inputs.dtype == self.compute_dtype
            and self.compute_dtype in ("float32", "bfloat16", "float16")
            and mask is None
            and not self.renorm
            and not self.synchronized
        )
