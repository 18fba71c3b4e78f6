"""BERT: an encoder that learns by predicting masked tokens.

    x = E[token] + S[segment] + P[position]     position 0 is the first real token
    x <- dropout(norm(x))
    N blocks:  x <- norm(x + dropout(attention(x)))
               x <- norm(x + dropout(FFN(x)))
    `sequence_output` = x                       (B, T, D)
    `pooled_output` = tanh(x_first W + b)       (B, D), of the first real token

    attention(x) = concat of heads softmax(q kᵀ / √H) v, times W_O; padding is masked
    FFN(x) = gelu(x W_1) W_2                    each product with a W has a bias

    build_bert          token ids -> features of each token and of the sequence
    build_bert_<task>   an encoder -> the logits of a task

A task builder takes an encoder, pre-trained or not, and shares its layers; given the
name of a variant, it builds a new encoder.

One block: `layers/blocks/transformer_block.py`; attention:
`layers/attention/multi_head_attention.py`.

Legend: B batch, T length, P masked positions, D width, H size of a head, V vocabulary,
C classes.
Layers: `token_embedding`, `segment_embedding`, `position_embedding`,
`embeddings_norm`, `embeddings_dropout`, `block_0`, …, `first_token`, `pooler`.
"""

import functools
from collections.abc import Sequence

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import TransformerEncoderBlock
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.embeddings.token_pooling import Pooling
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, block_sizes
from keras_attn.models.parts import heads
from keras_attn.models.parts.bert_encoder import bert_embeddings, first_token, pooler
from keras_attn.models.parts.functional import Functional, sequence_inputs
from keras_attn.models.parts.heads import INITIALIZER, Encoder, as_encoder

_sizes = functools.partial(
    block_sizes,
    vocabulary_size=30_522,
    max_sequence_length=512,
    num_segments=2,
    layer_norm_epsilon=1e-12,
)
# Devlin et al. 2019, section 3; the smaller variants: Turc et al. 2019, table 1.
# `block_sizes` adds `mlp_dim` = 4 · `hidden_dim`.
VARIANTS = {
    "tiny": _sizes(num_layers=2, hidden_dim=128, num_heads=2),
    "mini": _sizes(num_layers=4, hidden_dim=256, num_heads=4),
    "small": _sizes(num_layers=4, hidden_dim=512, num_heads=8),
    "medium": _sizes(num_layers=8, hidden_dim=512, num_heads=8),
    "base": _sizes(num_layers=12, hidden_dim=768, num_heads=12),
    "large": _sizes(num_layers=24, hidden_dim=1024, num_heads=16),
}
_cards = functools.partial(
    model_cards,
    "bert_{variant}",
    title="BERT {variant}, an encoder",
    **tasks.text_encoding(
        "a tanh layer over the first real token", segment_ids="(B, T) int32, 0 or 1"
    ),
)
_README = "README of github.com/google-research/bert"
_TEXTS = "BooksCorpus, English Wikipedia"
# Steps with 128 tokens, then steps with 512, of 256 rows.
_training = functools.partial(
    Training,
    _TEXTS,
    "appendix A.2; Yang et al. 2019, section 3.1",
    gigabytes=13,
    tokens=256 * (900_000 * 128 + 100_000 * 512),
    hardware="TPU",
    hours=4 * 24,
)
CARDS = {
    **_cards(
        {"base": 110_000_000, "large": 340_000_000},
        paper="Devlin et al. 2019, arXiv:1810.04805",
        training={"base": _training(devices=16), "large": _training(devices=64)},
        scores=[
            scored("GLUE", "test", "table 1", {"base": 79.6, "large": 82.1}),
            scored(
                "SQuAD 1.1 F1", "development", "table 2", {"base": 88.5, "large": 90.9}
            ),
        ],
    ),
    **_cards(
        {
            "tiny": 4_400_000,
            "mini": 11_300_000,
            "small": 29_100_000,
            "medium": 41_700_000,
        },
        paper="Turc et al. 2019, arXiv:1908.08962",
        training=Training(_TEXTS, _README),
        scores=[
            scored(
                "GLUE",
                "test",
                _README,
                {"tiny": 64.2, "mini": 65.8, "small": 71.2, "medium": 73.5},
            )
        ],
    ),
}


# `@registered` puts the sizes of the variant in the place of each `FROM_VARIANT`.
@registered(CARDS, VARIANTS)
def build_bert(
    variant: str = "base",
    *,
    vocabulary_size: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    max_sequence_length: int = FROM_VARIANT,
    num_segments: int = FROM_VARIANT,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = FROM_VARIANT,
    dropout: Probability = 0.1,
    attention_dropout: Probability = 0.1,
    name: str = "bert",
) -> Functional:
    """Token, segment and position embeddings, then N post-norm encoder blocks.

    Positions are counted from the first real token of a row, so padding on the left
    does not change the outputs. The published code counts from the start of the row and
    pads on the right.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V.
        num_layers: N, number of blocks.
        hidden_dim: D.
        num_heads: Attention heads per block.
        mlp_dim: Width of the feed-forward networks.
        max_sequence_length: Number of positions.
        num_segments: Number of segments.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        name: Name of the model.

    Returns:
        A model from `token_ids`, `padding_mask` and `segment_ids`, each (B, T), to a
        dictionary with `sequence_output` (B, T, D) and `pooled_output` (B, D).

    Reference:
        Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for
        Language Understanding" (arXiv:1810.04805); small sizes: Turc et al. 2019
        (arXiv:1908.08962).
    """
    inputs = sequence_inputs("token_ids", "padding_mask", "segment_ids")
    padding_mask = inputs["padding_mask"]
    hidden = bert_embeddings(
        inputs, vocabulary_size, hidden_dim, max_sequence_length, num_segments
    )
    norm = LayerNormalization(epsilon=layer_norm_epsilon, name="embeddings_norm")
    hidden = Dropout(dropout, name="embeddings_dropout")(norm(hidden))
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
    pooled = pooler(first_token(hidden, padding_mask))
    outputs = {"sequence_output": hidden, "pooled_output": pooled}
    return Functional(inputs, outputs, name=name)


@described_as(heads.masked_lm)
def build_bert_masked_lm(
    encoder: Encoder = "base",
    *,
    masked_positions: bool = False,
    name: str = "bert_masked_lm",
) -> Functional:
    """Predicts the original token at masked positions.

    `norm(activation(x W + b))`, then the product with the token embeddings, and a bias.

    Returns:
        A model from the encoder's inputs to logits (B, T, V), or (B, P, V).

    Reference:
        Devlin et al. 2019, section 3.1, task 1 (arXiv:1810.04805).
    """
    return heads.masked_lm(
        as_encoder(encoder, build_bert),
        masked_positions=masked_positions,
        transform=True,
        name=name,
    )


@described_as(build_bert_masked_lm)
def build_bert_pretrainer(
    encoder: Encoder = "base",
    *,
    masked_positions: bool = False,
    name: str = "bert_pretrainer",
) -> Functional:
    """Both pre-training objectives: masked tokens and next sentence.

    Returns:
        A model from the encoder's inputs to a dictionary of logits: `masked_lm`
        (B, T, V) or (B, P, V), and `next_sentence` (B, 2), where class 0 means that
        the second segment follows the first.

    Reference:
        Devlin et al. 2019, section 3.1 (arXiv:1810.04805).
    """
    encoder = as_encoder(encoder, build_bert)
    masked_lm = build_bert_masked_lm(encoder, masked_positions=masked_positions)
    next_sentence = build_bert_next_sentence(encoder)
    outputs = {"masked_lm": masked_lm.output, "next_sentence": next_sentence.output}
    return Functional(masked_lm.input, outputs, name=name)


@described_as(heads.next_sentence)
def build_bert_next_sentence(
    encoder: Encoder = "base", *, name: str = "bert_next_sentence"
) -> Functional:
    """Predicts whether the second segment follows the first in a text.

    Returns:
        A model from the encoder's inputs to logits (B, 2), where class 0 means that
        the second segment follows the first.

    Reference:
        Devlin et al. 2019, section 3.1, task 2 (arXiv:1810.04805).
    """
    return heads.next_sentence(as_encoder(encoder, build_bert), name=name)


@described_as(heads.classifier)
def build_bert_classifier(
    encoder: Encoder = "base",
    *,
    num_classes: int,
    dropout: Probability = 0.1,
    name: str = "bert_classifier",
) -> Functional:
    """Classifies a sentence or a pair of sentences.

    Returns:
        A model from the encoder's inputs to logits (B, C).

    Reference:
        Devlin et al. 2019, section 4.1 and figure 4 a, b (arXiv:1810.04805).
    """
    encoder = as_encoder(encoder, build_bert)
    return heads.classifier(encoder, num_classes, dropout=dropout, name=name)


@described_as(heads.token_classifier)
def build_bert_token_classifier(
    encoder: Encoder = "base",
    *,
    num_classes: int,
    dropout: Probability = 0.1,
    name: str = "bert_token_classifier",
) -> Functional:
    """Classifies each token.

    Returns:
        A model from the encoder's inputs to logits (B, T, C).

    Reference:
        Devlin et al. 2019, section 5.3 and figure 4 d (arXiv:1810.04805).
    """
    encoder = as_encoder(encoder, build_bert)
    return heads.token_classifier(encoder, num_classes, dropout=dropout, name=name)


@described_as(heads.span)
def build_bert_span_qa(
    encoder: Encoder = "base",
    *,
    dropout: Probability = 0.0,
    name: str = "bert_span_qa",
) -> Functional:
    """Predicts the start and the end of an answer in a passage.

    Returns:
        A model from the encoder's inputs to a dictionary of logits, `start_logits`
        and `end_logits`, each (B, T).

    Reference:
        Devlin et al. 2019, section 4.2 and figure 4 c (arXiv:1810.04805).
    """
    return heads.span(as_encoder(encoder, build_bert), dropout=dropout, name=name)


@described_as(heads.sentence_encoder)
def build_bert_sentence_encoder(
    encoder: Encoder = "base",
    *,
    pooling: Pooling | Sequence[Pooling] = "mean",
    normalize: bool = True,
    projections: Sequence[Sequence] = (),
    name: str = "bert_sentence_encoder",
) -> Functional:
    """One vector per sentence, for comparing sentences.

    Returns:
        A model from the encoder's inputs to embeddings (B, D) in float32.

    Reference:
        Reimers and Gurevych 2019, "Sentence-BERT" (arXiv:1908.10084), section 3.
    """
    encoder = as_encoder(encoder, build_bert)
    return heads.sentence_encoder(encoder, pooling, normalize, projections, name)
