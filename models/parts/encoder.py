"""The body of BERT, RoBERTa and XLM: a stack of post-norm Transformer encoder blocks.

    embeddings -> norm -> dropout -> block_0 -> block_1 -> … -> features

Legend: B batch, T length, D width.
"""

from keras.layers import Dense

from keras_attn.layers import TransformerEncoderBlock
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.token_pooling import TokenPooling
from keras_attn.models.parts.heads import INITIALIZER


def encode(
    embeddings,
    padding_mask,
    num_layers,
    num_heads,
    mlp_dim,
    *,
    activation,
    layer_norm_epsilon,
    dropout,
    attention_dropout,
):
    """Features (B, T, D) from the sum of the embeddings, (B, T, D).

    Args:
        embeddings: (B, T, D).
        padding_mask: (B, T), True = a real token.
        num_layers: Number of blocks.
        num_heads: Attention heads per block.
        mlp_dim: Width of the feed-forward networks.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
    """
    norm = LayerNormalization(epsilon=layer_norm_epsilon, name="embeddings_norm")
    hidden = Dropout(dropout, name="embeddings_dropout")(norm(embeddings))
    for index in range(num_layers):
        hidden = TransformerEncoderBlock(
            num_heads,
            mlp_dim,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            dropout=dropout,
            attention_dropout=attention_dropout,
            kernel_initializer=INITIALIZER,
            name=f"block_{index}",
        )(hidden, padding_mask=padding_mask)
    return hidden


def first_token(features, padding_mask):
    """Features (B, D) of the first real token."""
    return TokenPooling("first", name="first_token")(features, padding_mask)


def pooler(features):
    """BERT's pooled output, a tanh layer over the first token's features (B, D)."""
    return Dense(
        features.shape[-1],
        activation="tanh",
        kernel_initializer=INITIALIZER,
        name="pooler",
    )(features)
