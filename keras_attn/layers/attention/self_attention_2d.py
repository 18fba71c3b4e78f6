"""Self-attention over the positions of a feature map.

Legend: B batch, R rows, S columns, T = R·S positions, C channels, K channels of a key.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import (
    check_positive_or_none,
    check_rank,
)
from keras_attn.layers import recorder
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.normalization.spectral_normalization import SpectralNormalization
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.ops import scaled_dot_product_attention


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class SelfAttention2D(BaseLayer):
    """`y = x + γ · v(softmax(g(x) f(x)ᵀ) h(x))` over all positions of a feature map.

    f, g, h and v are 1 × 1 convolutions. γ is a learned scalar, initially 0: the layer
    starts as the identity, so the network learns local structure first.

    Args:
        key_dim: K, the channels of f, g and h. Default: C / 8.
        use_bias: Whether the convolutions have biases.
        spectral_normalization: Whether to divide their kernels by the largest singular
            value, as in the networks of the paper.
        kernel_initializer: For each of the kernels.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, R, S, C).
        return_attention_scores: Whether to return the probabilities as well.

    Returns:
        (B, R, S, C). With `return_attention_scores` also the probabilities,
        (B, 1, T, T).

    Raises:
        ValueError: If `inputs` does not have 4 axes, or has fewer than 8 channels and
            `key_dim` is None.

    Reference:
        Zhang et al. 2019, "Self-Attention Generative Adversarial Networks", section 3
        (arXiv:1805.08318). Its f, g and h project keys, queries and values.
    """

    def __init__(
        self,
        key_dim: int | None = None,
        *,
        use_bias: bool = True,
        spectral_normalization: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.key_dim = check_positive_or_none("key_dim", key_dim)
        self.use_bias = use_bias
        self.spectral_normalization = spectral_normalization
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape):
        channels = inputs_shape[-1]
        key_dim = self.key_dim or channels // 8
        if key_dim < 1:
            raise ValueError(
                "`key_dim` must be given for inputs with fewer than 8 channels. "
                f"Received: channels={channels}, key_dim={self.key_dim}"
            )
        self.query = self._convolution("query", channels, key_dim)
        self.key = self._convolution("key", channels, key_dim)
        self.value = self._convolution("value", channels, key_dim)
        self.output_projection = self._convolution(
            "output_projection", key_dim, channels
        )
        self.gamma = self.add_weight(name="gamma", shape=(), initializer="zeros")

    def _convolution(self, name, width, units):
        """A built 1 × 1 convolution, which is a dense layer over the channels."""
        layer = keras.layers.Dense(
            units,
            use_bias=self.use_bias and not self.spectral_normalization,
            kernel_initializer=independent_copy(self.kernel_initializer, name),
            dtype=self.dtype_policy,
            name=name,
        )
        if self.spectral_normalization:
            layer = SpectralNormalization(
                layer, use_bias=self.use_bias, dtype=self.dtype_policy, name=name
            )
        layer.build((None, None, width))
        return layer

    def call(self, inputs, return_attention_scores=False, training=None):
        check_rank("inputs", inputs, 4, "(batch, rows, columns, channels)")
        batch, rows, columns, _ = shape = ops.shape(inputs)
        flat = ops.reshape(inputs, (batch, rows * columns, inputs.shape[-1]))
        query, key, value = (
            ops.expand_dims(self._project(layer, flat, training), 1)  # (B, 1, T, K)
            for layer in (self.query, self.key, self.value)
        )
        heads, weights = scaled_dot_product_attention(
            query,
            key,
            value,
            scale=1.0,
            return_weights=return_attention_scores or recorder.is_recording(),
        )
        if weights is not None:
            recorder.record(self, weights)
        branch = self._project(self.output_projection, heads[:, 0], training)
        gamma = ops.cast(self.gamma, branch.dtype)
        outputs = ops.add(inputs, ops.multiply(gamma, ops.reshape(branch, shape)))
        return (outputs, weights) if return_attention_scores else outputs

    def _project(self, layer, inputs, training):
        if self.spectral_normalization:
            return layer(inputs, training=training)
        return layer(inputs)
