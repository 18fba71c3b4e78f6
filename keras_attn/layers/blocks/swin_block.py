"""The Swin block: window attention and a feed-forward network.

    x = x + drop(attention(norm(x)))    `WindowAttention`: in windows of w × w tokens,
                                        of the map as it is, or rolled by ⌊w/2⌋
    x = x + drop(FFN(norm(x)))          `FFN(x) = activation(x W1 + b1) W2 + b2`

`drop` is dropout, then stochastic depth.

Legend: B batch, R rows and S columns of tokens, N heads, w side of a window, D width.
"""

import keras

from keras_attn.checks.argument_types import Activation, Initializer
from keras_attn.checks.arguments import check_fraction, check_positive, check_rank
from keras_attn.kernels.gelu import get_activation
from keras_attn.layers.attention.window_attention import WindowAttention
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.blocks.stochastic_depth import StochasticDepth
from keras_attn.layers.blocks.sub_layers import feed_forward, layer_norm
from keras_attn.layers.dropout import make_dropout
from keras_attn.layers.initializers import independent_copy


@keras.saving.register_keras_serializable("keras_attn")
class SwinBlock(BaseLayer):
    """`x = x + attention(norm(x))`, then `x = x + FFN(norm(x))`, on a grid of tokens.

    There is no dropout between the two products of the FFN.

    Args:
        num_heads: N.
        mlp_dim: Width of the feed-forward network's hidden layer.
        window_size: w.
        shifted: Whether the windows are shifted by half a window; see
            `WindowAttention`.
        activation: Activation of the feed-forward network's hidden layer.
        layer_norm_epsilon: Added to the variance.
        attention_bias: Whether the query, key and value projections have biases.
        dropout: Probability of dropping a unit of a sub-layer's output.
        attention_dropout: Probability of dropping an attention probability.
        stochastic_depth: Probability of skipping a sub-layer, for each example.
        kernel_initializer: Initializer of every kernel.
        seed: Seed of the dropouts.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, R, S, D), with known R and S.

    Returns:
        (B, R, S, D).

    Reference:
        Liu et al. 2021, section 3.2, equation 3 (arXiv:2103.14030).
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        window_size: int,
        *,
        shifted: bool = False,
        activation: Activation = "gelu",
        layer_norm_epsilon: float = 1e-5,
        attention_bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = check_positive("num_heads", num_heads)
        self.mlp_dim = check_positive("mlp_dim", mlp_dim)
        self.window_size = check_positive("window_size", window_size)
        self.shifted = shifted
        self.activation = get_activation(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.attention_bias = attention_bias
        self.dropout = check_fraction("dropout", dropout)
        self.attention_dropout = check_fraction("attention_dropout", attention_dropout)
        self.stochastic_depth = check_fraction("stochastic_depth", stochastic_depth)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed

    def build(self, inputs_shape):
        shared = {"dtype": self.dtype_policy, "seed": self.seed}
        self.attention = WindowAttention(
            self.num_heads,
            self.window_size,
            shifted=self.shifted,
            use_bias=self.attention_bias,
            dropout=self.attention_dropout,
            kernel_initializer=independent_copy(self.kernel_initializer, "attention"),
            name="attention",
            **shared,
        )
        self.feed_forward = feed_forward(self)
        self.attention_norm = layer_norm(self, "attention_norm")
        self.feed_forward_norm = layer_norm(self, "feed_forward_norm")
        self.drop = make_dropout(self)
        self.drop_path = StochasticDepth(
            self.stochastic_depth, name="drop_path", **shared
        )
        for layer in (
            self.attention_norm,
            self.attention,
            self.feed_forward_norm,
            self.feed_forward,
            self.drop,
            self.drop_path,
        ):
            layer.build(inputs_shape)

    def call(self, inputs, training=None):
        x = inputs
        attended = self.attention(self.attention_norm(x), training=training)
        x = x + self._branch(attended, training)
        outputs = self.feed_forward(self.feed_forward_norm(x), training=training)
        return x + self._branch(outputs, training)

    def _branch(self, outputs, training):
        """The residual branch: `stochastic_depth(dropout(outputs))`."""
        outputs = self.drop(outputs, training=training)
        return self.drop_path(outputs, training=training)

    def compute_output_shape(self, inputs_shape):
        check_rank("inputs", inputs_shape, 4, "(batch, rows, columns, width)")
        return inputs_shape
