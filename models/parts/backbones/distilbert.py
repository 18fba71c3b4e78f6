"""DistilBERT: BERT without segments and without a pooler.

    token + position embeddings -> norm -> dropout -> N post-norm blocks
        -> `sequence_output`; first token -> `pooled_output`

It is trained to predict what BERT predicts, with half the blocks. It exists only for
checkpoints: `load_checkpoint` reads and `save_checkpoint` writes them. All heads but
the classifier are BERT's.

Legend: B batch, T length, D width, V vocabulary, C classes.
Layers: as in `bert.py`, without `segment_embedding` and `pooler`; the classifier has a
hidden layer, `classifier_hidden`.

Reference:
    Sanh et al. 2019, "DistilBERT, a distilled version of BERT: smaller, faster, cheaper
    and lighter" (arXiv:1910.01108).
"""

from keras_attn.checks.argument_types import Activation
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import Dense
from keras_attn.models.catalog.variants import block_options
from keras_attn.models.parts import heads
from keras_attn.models.parts.bert_encoder import (
    bert_encoder,
    position_embedding,
    token_embedding,
)
from keras_attn.models.parts.functional import Functional, sequence_inputs
from keras_attn.models.parts.heads import INITIALIZER
from keras_attn.ops import row_positions


@described_as(bert_encoder)
def distilbert(
    *,
    vocabulary_size: int,
    num_layers: int,
    hidden_dim: int,
    num_heads: int,
    mlp_dim: int,
    max_sequence_length: int,
    layer_norm_epsilon: float,
    activation: Activation = "gelu",
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    name: str = "distilbert",
) -> Functional:
    """The encoder.

    Args:
        vocabulary_size: V.
        hidden_dim: D.
        max_sequence_length: Number of positions.
        name: Name of the model.

    Returns:
        A model from `token_ids` and `padding_mask`, each (B, T), to a dictionary with
        `sequence_output` (B, T, D) and `pooled_output` (B, D), the first token's.
    """
    inputs = sequence_inputs("token_ids", "padding_mask")
    tokens = token_embedding(vocabulary_size, hidden_dim)(inputs["token_ids"])
    positions = row_positions(inputs["padding_mask"])
    embeddings = position_embedding(max_sequence_length)(tokens, positions)
    options = block_options(activation, layer_norm_epsilon, dropout, attention_dropout)
    sizes = num_layers, num_heads, mlp_dim
    return bert_encoder(
        inputs, embeddings, *sizes, **options, tanh_pooler=False, name=name
    )


def distilbert_classifier(
    encoder,
    *,
    num_classes: int,
    dropout: float = 0.2,
    name: str = "distilbert_classifier",
) -> Functional:
    """Logits (B, C) of a text; a hidden layer with ReLU reads the first token."""
    pooled = encoder.output["pooled_output"]
    hidden = Dense(
        pooled.shape[-1],
        activation="relu",
        kernel_initializer=INITIALIZER,
        name="classifier_hidden",
    )(pooled)
    return heads.classifier(
        encoder, num_classes, features=hidden, dropout=dropout, name=name
    )
