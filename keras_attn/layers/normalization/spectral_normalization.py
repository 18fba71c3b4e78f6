"""Spectral normalization of dense layers and convolutions."""

import keras
import numpy as np
from keras import ops

from keras_attn.ops import project

# The base class of all convolutions, which has no public name.
BaseConv = keras.layers.Conv2D.__base__

# Smallest positive normal number of float32 and of bfloat16.
_SMALLEST = float(np.finfo("float32").tiny)


@keras.saving.register_keras_serializable("keras_attn")
class SpectralNormalization(keras.layers.Layer):
    """`y = (W / σ(W)) x + b`, where σ is the largest singular value of the kernel.

    σ is estimated by power iteration during training, and gradients flow through σ, as
    in the paper. Keras' layer of the same name instead overwrites the kernel with the
    normalized kernel. For a kernel of zeros σ = 1.

    Args:
        layer: A `Dense` or a convolution such as `Conv2D`, without bias and activation.
        use_bias: Whether to add b.
        power_iterations: Number of iterations per training step.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: The inputs of `layer`.

    Returns:
        As for `layer`.

    Raises:
        TypeError: If `layer` is not a `Dense` or a convolution.
        ValueError: If `layer` has a bias or an activation, so that it is not linear.

    Reference:
        Miyato et al. 2018, "Spectral Normalization for Generative Adversarial
        Networks", algorithm 1 (arXiv:1802.05957).
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        *,
        use_bias: bool = True,
        power_iterations: int = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(layer, keras.layers.Dense | BaseConv):
            raise TypeError(
                "`layer` must be a `Dense` or a convolution. "
                f"Received: layer={layer!r} of type {type(layer).__name__}"
            )
        is_linear = layer.activation is keras.activations.linear
        if layer.use_bias or not is_linear:
            raise ValueError(
                "`layer` must be linear: use_bias=False and no activation. "
                f"Received: layer={layer.name!r}, use_bias={layer.use_bias}, "
                f"activation={layer.activation!r}"
            )
        self.layer = layer
        self.use_bias = use_bias
        self.power_iterations = power_iterations

    def build(self, inputs_shape):
        if not self.layer.built:
            self.layer.build(inputs_shape)
        width = self.layer.kernel.shape[-1]
        self.direction = self.add_weight(
            name="direction",
            shape=(width, 1),
            initializer=keras.initializers.RandomNormal(stddev=1.0),
            trainable=False,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(width,), initializer="zeros"
            )

    def call(self, inputs, training=None):
        kernel = ops.convert_to_tensor(self.layer.kernel)
        matrix = ops.reshape(kernel, (-1, kernel.shape[-1]))
        fixed = ops.stop_gradient(matrix)
        u = ops.convert_to_tensor(self.direction)
        v = _unit(ops.matmul(fixed, u))
        if training:
            for _ in range(self.power_iterations):
                # A kernel of zeros has no direction: keep the last direction.
                u = _unit(ops.matmul(ops.transpose(fixed), v), otherwise=u)
                v = _unit(ops.matmul(fixed, u))
            self.direction.assign(u)
        u = _unit(u)
        sigma = ops.sum(ops.multiply(v, ops.matmul(matrix, ops.stop_gradient(u))))
        sigma = ops.where(ops.greater(sigma, _SMALLEST), sigma, 1.0)
        normed = ops.cast(ops.divide(kernel, sigma), inputs.dtype)
        if isinstance(self.layer, keras.layers.Dense):
            outputs = project(inputs, normed)
        else:
            outputs = self.layer.convolution_op(inputs, normed)
        if self.bias is None:
            return outputs
        return ops.add(outputs, ops.cast(self.bias, outputs.dtype))

    def compute_output_shape(self, inputs_shape):
        return self.layer.compute_output_shape(inputs_shape)

    def get_config(self):
        layer = keras.saving.serialize_keras_object(self.layer)
        # This layer builds it, in its own name scope.
        layer.pop("build_config", None)
        return {
            **super().get_config(),
            "layer": layer,
            "use_bias": self.use_bias,
            "power_iterations": self.power_iterations,
        }

    @classmethod
    def from_config(cls, config):
        """Creates a layer from the output of `get_config`."""
        config = dict(config)
        layer = keras.saving.deserialize_keras_object(config.pop("layer"))
        return cls(layer, **config)


def _unit(vector, otherwise=None):
    """The vector divided by its norm; for a zero vector `otherwise`, or zeros."""
    largest = ops.max(ops.abs(vector))
    is_zero = ops.less(largest, _SMALLEST)
    # Scaled first, so that the squares neither overflow nor underflow.
    scaled = ops.divide(vector, ops.where(is_zero, 1.0, largest))
    norm = ops.sqrt(ops.sum(ops.square(scaled)))
    unit = ops.divide(scaled, ops.where(is_zero, 1.0, norm))
    otherwise = ops.zeros_like(vector) if otherwise is None else otherwise
    return ops.stop_gradient(ops.where(is_zero, otherwise, unit))
