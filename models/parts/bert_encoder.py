"""BERT's embeddings and pooler, and the encoder of RoBERTa, XLM and DistilBERT.

    embeddings -> norm -> dropout -> block_0 -> block_1 -> … -> `sequence_output`
                              first token (-> dense, tanh) -> `pooled_output`

Legend: B batch, T length, D width.
"""

from keras import ops

from keras_attn.layers import (
    Dense,
    Embedding,
    LearnedPositionEmbedding,
    TransformerEncoderBlock,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.embeddings.token_embedding import TokenEmbedding
from keras_attn.layers.embeddings.token_pooling import TokenPooling
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog.variants import block_options
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import INITIALIZER
from keras_attn.ops import row_positions


def bert_encoder(
    inputs,
    embeddings,
    num_layers,
    num_heads,
    mlp_dim,
    *,
    activation,
    layer_norm_epsilon,
    dropout,
    attention_dropout,
    tanh_pooler=True,
    name,
) -> Functional:
    """BERT's encoder with other embeddings, a model as from `build_bert`.

    Builders of text models take the descriptions of their arguments from here.

    Args:
        inputs: The model's inputs, `padding_mask` (B, T) among them.
        embeddings: Sum of the embeddings of each token, (B, T, D).
        num_layers: Number of blocks.
        num_heads: Attention heads per block.
        mlp_dim: Width of the feed-forward networks.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        tanh_pooler: Whether a tanh layer follows the first token's features.
        name: Name of the model.
    """
    padding_mask = inputs["padding_mask"]
    norm = LayerNormalization(epsilon=layer_norm_epsilon, name="embeddings_norm")
    hidden = Dropout(dropout, name="embeddings_dropout")(norm(embeddings))
    options = block_options(activation, layer_norm_epsilon, dropout, attention_dropout)
    for index in range(num_layers):
        hidden = TransformerEncoderBlock(
            num_heads,
            mlp_dim,
            kernel_initializer=INITIALIZER,
            name=f"block_{index}",
            **options,
        )(hidden, padding_mask=padding_mask)
    pooled = first_token(hidden, padding_mask)
    if tanh_pooler:
        pooled = pooler(pooled)
    outputs = {"sequence_output": hidden, "pooled_output": pooled}
    return Functional(inputs, outputs, name=name)


def bert_embeddings(
    inputs, vocabulary_size, hidden_dim, max_sequence_length, num_segments
):
    """Sum of the token, segment and position vectors of BERT, (B, T, D).

    Args:
        inputs: `token_ids`, `padding_mask` and `segment_ids`, each (B, T).
        vocabulary_size: Rows of the table of tokens.
        hidden_dim: D.
        max_sequence_length: Rows of the table of positions.
        num_segments: Rows of the table of segments.
    """
    tokens = token_embedding(vocabulary_size, hidden_dim)(inputs["token_ids"])
    segments = Embedding(
        num_segments,
        hidden_dim,
        embeddings_initializer=INITIALIZER,
        name="segment_embedding",
    )(inputs["segment_ids"])
    # Adds the vectors of the positions to its first input. The first real token is at
    # position 0, and the count continues through padding on the right, as in the
    # published code.
    add_positions = position_embedding(max_sequence_length)
    embedded = ops.add(tokens, segments)
    return add_positions(embedded, row_positions(inputs["padding_mask"]))


def token_embedding(vocabulary_size, hidden_dim, initializer=INITIALIZER):
    """The layer `token_embedding`: a vector (D,) for each token."""
    return TokenEmbedding(
        vocabulary_size,
        hidden_dim,
        embeddings_initializer=initializer,
        name="token_embedding",
    )


def position_embedding(
    max_sequence_length, initializer=INITIALIZER, *, first_row=0, name=""
):
    """The layer that adds a vector (D,) for each position, `position_embedding`."""
    return LearnedPositionEmbedding(
        max_sequence_length,
        first_row=first_row,
        embeddings_initializer=initializer,
        name=name or "position_embedding",
    )


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
