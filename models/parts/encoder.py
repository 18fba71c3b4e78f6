"""The body of RoBERTa and XLM, a stack of post-norm encoder blocks as in BERT.

    embeddings -> norm -> dropout -> block_0 -> block_1 -> … -> `sequence_output`
                              first token (-> dense, tanh) -> `pooled_output`

Legend: B batch, T length, D width.
"""

from typing import TypedDict

from keras.layers import Dense

from keras_attn.argument_types import Activation
from keras_attn.layers import TransformerEncoderBlock
from keras_attn.layers.blocks.dropout import Dropout
from keras_attn.layers.embeddings.token_pooling import TokenPooling
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import INITIALIZER
from keras_attn.models.parts.variants import FROM_VARIANT


class EncoderOptions(TypedDict, total=False):
    """Types of the options of `text_encoder`, for the builders that pass them on."""

    num_layers: int
    num_heads: int
    mlp_dim: int
    activation: Activation
    layer_norm_epsilon: float
    dropout: float
    attention_dropout: float


def text_encoder(
    inputs,
    embeddings,
    name,
    tanh_pooler=True,
    *,
    num_layers: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = FROM_VARIANT,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
) -> Functional:
    """The encoder with these embeddings, a model as that of `build_bert`.

    Positional arguments:
        inputs: The model's inputs, `padding_mask` (B, T) among them.
        embeddings: Sum of the embeddings of each token, (B, T, D).
        name: Name of the model.
        tanh_pooler: Whether a tanh layer follows the first token's features.

    The keyword arguments are those of `build_bert`.
    """
    padding_mask = inputs["padding_mask"]
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
    pooled = first_token(hidden, padding_mask)
    if tanh_pooler:
        pooled = pooler(pooled)
    outputs = {"sequence_output": hidden, "pooled_output": pooled}
    return Functional(inputs, outputs, name=name)


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
