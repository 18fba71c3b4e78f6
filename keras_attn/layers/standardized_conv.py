"""A convolution whose kernel is normed, for networks without batch norm."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_attn")
class StandardizedConv2D(keras.layers.Conv2D):
    """A convolution by `(W - mean) / √(variance + ε)`, over the inputs of each channel.

    Args:
        filters: Channels of the output.
        kernel_size: Rows and columns.
        epsilon: ε.
        **kwargs: As for `keras.layers.Conv2D`.

    Call arguments:
        inputs: (B, H, W, C).

    Returns:
        (B, H', W', filters).

    Reference:
        Qiao et al. 2019, "Micro-Batch Training with Batch-Channel Normalization and
        Weight Standardization" (arXiv:1903.10520).
    """

    def __init__(self, filters, kernel_size, *, epsilon=1e-8, **kwargs):
        super().__init__(filters, kernel_size, **kwargs)
        self.epsilon = epsilon

    def convolution_op(self, inputs, kernel):
        """The convolution, by the normed kernel."""
        # In float32: a variance of halves is coarse.
        kernel = ops.cast(kernel, "float32")
        mean, variance = ops.moments(kernel, axes=(0, 1, 2), keepdims=True)
        normed = (kernel - mean) * ops.rsqrt(variance + self.epsilon)
        return super().convolution_op(inputs, ops.cast(normed, inputs.dtype))

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}
