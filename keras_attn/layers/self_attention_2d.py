"""Self-attention inside a convolutional network.

Legend: B batch, R rows, S columns, T = R·S places, C channels, K channels of a key.
"""

import keras
from keras import ops

from keras_attn.checks import check_positive, check_rank
from keras_attn.layers import recorder
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import fork
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.layers.spectral_normalization import SpectralNormalization
from keras_attn.ops import scaled_dot_product_attention


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class SelfAttention2D(BaseLayer):
    """`y = x + γ · v(softmax(g(x) f(x)ᵀ) h(x))`, from each place of a map to all.

    f, g, h and v are convolutions of 1 × 1. γ is one learned number that starts at 0:
    at first the layer passes on what it is given, and the network learns what is near
    before what is far.

    Args:
        key_dim: K, the channels of f, g and h. Default: C / 8.
        use_bias: Whether the convolutions have biases.
        spectral_normalization: Whether their kernels are divided by their largest
            singular value, as in the networks of the paper.
        kernel_initializer: For every kernel.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, R, S, C).
        return_attention_scores: Whether to return the probabilities as well.

    Returns:
        (B, R, S, C), and if asked for (B, 1, T, T).

    Raises:
        ValueError: for inputs of another rank, or fewer than 8 channels and no
            `key_dim`.

    Reference:
        Zhang et al. 2019, "Self-Attention Generative Adversarial Networks", section 3
        (arXiv:1805.08318). There f gives the keys, g the queries and h the values.
    """

    def __init__(
        self,
        key_dim=None,
        *,
        use_bias=True,
        spectral_normalization=False,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.key_dim = None if key_dim is None else check_positive("key_dim", key_dim)
        self.use_bias = use_bias
        self.spectral_normalization = spectral_normalization
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape):
        channels = inputs_shape[-1]
        key_dim = self.key_dim or channels // 8
        if key_dim < 1:
            raise ValueError(
                "`key_dim` must be given where there are fewer than 8 channels. "
                f"Received: channels={channels}, key_dim={self.key_dim}"
            )
        self.query = self._new("query", channels, key_dim)
        self.key = self._new("key", channels, key_dim)
        self.value = self._new("value", channels, key_dim)
        self.output_projection = self._new("output_projection", key_dim, channels)
        self.gamma = self.add_weight(name="gamma", shape=(), initializer="zeros")

    def _new(self, name, width, units):
        """A convolution of 1 × 1, which is a dense layer over the places."""
        normed = self.spectral_normalization
        layer = keras.layers.Dense(
            units,
            use_bias=self.use_bias and not normed,
            kernel_initializer=fork(self.kernel_initializer, name),
            dtype=self.dtype_policy,
            name=name,
        )
        if normed:
            layer = SpectralNormalization(
                layer, use_bias=self.use_bias, dtype=self.dtype_policy, name=name
            )
        layer.build((None, None, width))
        return layer

    def call(self, inputs, return_attention_scores=False, training=None):
        check_rank("inputs", inputs, 4, "(batch, rows, columns, channels)")
        shape = ops.shape(inputs)
        places = ops.reshape(inputs, (shape[0], shape[1] * shape[2], inputs.shape[-1]))
        query, key, value = (
            ops.expand_dims(self._project(layer, places, training), 1)
            for layer in (self.query, self.key, self.value)
        )
        attended, weights = scaled_dot_product_attention(query, key, value, scale=1.0)
        if recorder.is_recording():
            recorder.record(self, weights)
        added = self._project(self.output_projection, attended[:, 0], training)
        gamma = ops.cast(self.gamma, added.dtype)
        outputs = ops.add(inputs, ops.multiply(gamma, ops.reshape(added, shape)))
        return (outputs, weights) if return_attention_scores else outputs

    def _project(self, layer, inputs, training):
        if self.spectral_normalization:
            return layer(inputs, training=training)
        return layer(inputs)
