"""Co-attention of two streams, words and regions of an image.

Legend: B batch, R regions, T tokens, E width of the regions, D width of the tokens,
N heads.
"""

import keras

from keras_attn.checks.argument_types import Activation, Initializer
from keras_attn.checks.arguments import check_fraction, check_positive, check_rank
from keras_attn.kernels.gelu import get_activation
from keras_attn.layers.attention.attention_checks import check_padding_mask
from keras_attn.layers.attention.multi_head_attention import (
    MultiHeadAttention,
    attention_results,
)
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.blocks.feed_forward import FeedForward
from keras_attn.layers.blocks.sub_layers import build_now, head_size, layer_norm
from keras_attn.layers.dropout import make_dropout
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.output_specs import caches_output_specs


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class CoAttentionBlock(BaseLayer):
    """Regions attend to words while words attend to regions; no stream to itself.

        X' = norm(X + attention(X, Y)),  X'' = norm(X' + FFN(X'))    regions
        Y' = norm(Y + attention(Y, X)),  Y'' = norm(Y' + FFN(Y'))    words

    Both attentions read the inputs of the block. Queries, keys and values have
    `attention_dim` numbers in both, so the streams may have different widths.

    Args:
        num_heads: N.
        attention_dim: Width of the queries, keys and values of all heads together.
        region_mlp_dim: Width of the hidden layer of the regions' feed-forward network.
        text_mlp_dim: Width of the hidden layer of the words' feed-forward network.
        activation: Activation of both hidden layers.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of a sub-layer's output.
        attention_dropout: Probability of dropping an attention probability.
        kernel_initializer: Initializer of every kernel.
        seed: Seed of the dropouts.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        regions: X, (B, R, E).
        tokens: Y, (B, T, D).
        region_padding_mask: (B, R), True = a real region.
        padding_mask: (B, T), True = a real token.
        return_attention_scores: Whether to also return the attention probabilities.

    Returns:
        The regions (B, R, E) and the tokens (B, T, D); with `return_attention_scores`
        then the probabilities of the regions' attention to words (B, N, R, T), and of
        the words' attention to regions (B, N, T, R).

    Raises:
        ValueError: If an input does not have 3 axes, or `attention_dim` is not a
            multiple of `num_heads`.

    Masking:
        As in `MultiHeadAttention`.

    Reference:
        Lu et al. 2019, "ViLBERT: Pretraining Task-Agnostic Visiolinguistic
        Representations for Vision-and-Language Tasks", section 2.2 and figure 2
        (arXiv:1908.02265).
    """

    def __init__(
        self,
        num_heads: int,
        attention_dim: int,
        region_mlp_dim: int,
        text_mlp_dim: int,
        *,
        activation: Activation = "gelu",
        layer_norm_epsilon: float = 1e-12,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = check_positive("num_heads", num_heads)
        self.attention_dim = check_positive("attention_dim", attention_dim)
        self.region_mlp_dim = check_positive("region_mlp_dim", region_mlp_dim)
        self.text_mlp_dim = check_positive("text_mlp_dim", text_mlp_dim)
        self.activation = get_activation(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.dropout = check_fraction("dropout", dropout)
        self.attention_dropout = check_fraction("attention_dropout", attention_dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self._key_dim = head_size(attention_dim, num_heads, None)
        self._residual_dropout = make_dropout(self)

    def build(self, regions_shape, tokens_shape):
        regions, tokens = regions_shape, tokens_shape
        self.region_attention = self._attention("region_attention", regions, tokens)
        self.region_attention_norm = self._norm("region_attention_norm", regions)
        self.region_feed_forward = self._feed_forward(
            "region_feed_forward", self.region_mlp_dim, regions
        )
        self.region_feed_forward_norm = self._norm("region_feed_forward_norm", regions)
        self.text_attention = self._attention("text_attention", tokens, regions)
        self.text_attention_norm = self._norm("text_attention_norm", tokens)
        self.text_feed_forward = self._feed_forward(
            "text_feed_forward", self.text_mlp_dim, tokens
        )
        self.text_feed_forward_norm = self._norm("text_feed_forward_norm", tokens)
        self._residual_dropout.build(tokens)

    def _attention(self, name, queries_shape, memory_shape):
        return build_now(
            MultiHeadAttention(
                self.num_heads,
                self._key_dim,
                dropout=self.attention_dropout,
                kernel_initializer=independent_copy(self.kernel_initializer, name),
                seed=self.seed,
                dtype=self.dtype_policy,
                name=name,
            ),
            queries_shape,
            memory_shape,
        )

    def _feed_forward(self, name, mlp_dim, shape):
        return build_now(
            FeedForward(
                mlp_dim,
                activation=self.activation,
                kernel_initializer=independent_copy(self.kernel_initializer, name),
                seed=self.seed,
                dtype=self.dtype_policy,
                name=name,
            ),
            shape,
        )

    def _norm(self, name, shape):
        return build_now(layer_norm(self, name), shape)

    def call(
        self,
        regions,
        tokens,
        *,
        region_padding_mask=None,
        padding_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        check_rank("regions", regions, 3, "(batch, regions, width)")
        check_rank("tokens", tokens, 3, "(batch, length, width)")
        name, shape = "region_padding_mask", regions.shape[:2]
        check_padding_mask(name, region_padding_mask, *shape)
        options: dict = {"scores": return_attention_scores, "training": training}
        to_words = attention_results(
            self.region_attention, regions, tokens, padding_mask=padding_mask, **options
        )
        to_regions = attention_results(
            self.text_attention,
            tokens,
            regions,
            padding_mask=region_padding_mask,
            **options,
        )
        x = self._residual(
            regions, to_words.output, self.region_attention_norm, training
        )
        hidden = self.region_feed_forward(x, training=training)
        x = self._residual(x, hidden, self.region_feed_forward_norm, training)
        y = self._residual(
            tokens, to_regions.output, self.text_attention_norm, training
        )
        hidden = self.text_feed_forward(y, training=training)
        y = self._residual(y, hidden, self.text_feed_forward_norm, training)
        if return_attention_scores:
            return x, y, to_words.scores, to_regions.scores
        return x, y

    def _residual(self, x, outputs, norm, training):
        """`norm(x + dropout(outputs))`."""
        return norm(x + self._residual_dropout(outputs, training=training))
