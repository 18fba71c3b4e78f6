"""Convolution with weight standardization, for networks without batch norm."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_attn")
class StandardizedConv2D(keras.layers.Conv2D):
    """A convolution with the kernel `(W - mean) / √(variance + ε)`.

    Mean and variance are over the weights of each output channel.

    Args:
        filters: Number of output channels.
        kernel_size: Height and width of the kernel.
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

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        *,
        epsilon: float = 1e-8,
        **kwargs,
    ):
        super().__init__(filters, kernel_size, **kwargs)
        self.epsilon = epsilon

    def convolution_op(self, inputs, kernel):
        """The convolution with the standardized kernel."""
        # In float32: half precision is too coarse for the variance.
        kernel = ops.cast(kernel, "float32")
        mean, variance = ops.moments(kernel, axes=(0, 1, 2), keepdims=True)
        normed = (kernel - mean) * ops.rsqrt(variance + self.epsilon)
        return super().convolution_op(inputs, ops.cast(normed, inputs.dtype))

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}
