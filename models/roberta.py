"""RoBERTa: BERT without segments, pre-trained on masked tokens only.

    token embeddings + one segment vector + positions of the real tokens
        -> norm -> dropout -> N post-norm blocks -> `sequence_output`
                       first token -> dense, tanh -> `pooled_output`

    build_roberta          token ids -> features of each token and of the sequence
    build_roberta_<task>   an encoder -> the logits of a task, as for BERT

The stack of blocks: `models/parts/bert_encoder.py`; blocks:
`layers/blocks/transformer_block.py`; attention:
`layers/attention/multi_head_attention.py`.

Legend: B batch, T length, D width, V vocabulary, C classes.
Layers: as in `bert.py`; the classifier has a hidden layer, `classifier_hidden`.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

from keras import ops

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.docstrings.descriptions import described_as
from keras_attn.kernels.one_operation import one_operation
from keras_attn.layers import Embedding
from keras_attn.layers.embeddings.token_pooling import Pooling
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, block_options, block_sizes
from keras_attn.models.parts import heads
from keras_attn.models.parts.bert_encoder import (
    bert_encoder,
    first_token,
    position_embedding,
    token_embedding,
)
from keras_attn.models.parts.functional import Functional, sequence_inputs
from keras_attn.models.parts.heads import INITIALIZER, Encoder, as_encoder
from keras_attn.ops import token_positions

_sizes = functools.partial(
    block_sizes,
    vocabulary_size=50_265,
    max_sequence_length=512,
    layer_norm_epsilon=1e-5,
)
# Liu et al. 2019, section 3.1 and table 9.
VARIANTS = {
    "base": _sizes(num_layers=12, hidden_dim=768, num_heads=12),
    "large": _sizes(num_layers=24, hidden_dim=1024, num_heads=16),
}
# 500,000 steps of 8,192 rows of 512 tokens.
_TRAINING = Training(
    "BookCorpus, Wikipedia, CC-News, OpenWebText, Stories",
    "sections 3.2 and 5",
    gigabytes=160,
    tokens=500_000 * 8192 * 512,
)
CARDS = model_cards(
    "roberta_{variant}",
    {"base": 125_000_000, "large": 355_000_000},
    notes={"large": "a fifth of its steps took about a day"},
    training={
        "base": _TRAINING,
        "large": replace(_TRAINING, hardware="v100", devices=1024),
    },
    scores=[
        scored("MNLI accuracy", "development", "README of fairseq", {"base": 87.6}),
        scored("SST-2 accuracy", "development", "README of fairseq", {"base": 94.8}),
        scored("MNLI accuracy", "development", "table 5", {"large": 90.2}),
        scored("SST-2 accuracy", "development", "table 5", {"large": 96.4}),
        scored("SQuAD 1.1 F1", "development", "table 6", {"large": 94.6}),
    ],
    family="bert",
    title="RoBERTa {variant}, an encoder",
    paper="Liu et al. 2019, arXiv:1907.11692",
    **tasks.text_encoding("a tanh layer over the first real token"),
)
# The published position table starts with two rows that no real token uses: its
# positions count from the id of the padding token, 1, plus one.
_FIRST_ROW = 2


@registered(CARDS, VARIANTS)
@described_as(bert_encoder)
def build_roberta(
    variant: str = "base",
    *,
    vocabulary_size: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    max_sequence_length: int = FROM_VARIANT,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = FROM_VARIANT,
    dropout: Probability = 0.1,
    attention_dropout: Probability = 0.1,
    name: str = "roberta",
) -> Functional:
    """Token and position embeddings, then N post-norm encoder blocks.

    Positions count only the real tokens.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V.
        hidden_dim: D.
        max_sequence_length: Maximum number of real tokens in a row.
        name: Name of the model.

    Returns:
        A model from `token_ids` and `padding_mask`, each (B, T), to a dictionary with
        `sequence_output` (B, T, D) and `pooled_output` (B, D). Published checkpoints
        have one segment vector; the model adds it to every token.

    Reference:
        Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining Approach"
        (arXiv:1907.11692).
    """
    inputs = sequence_inputs("token_ids", "padding_mask")
    token_ids, padding_mask = inputs["token_ids"], inputs["padding_mask"]
    tokens = token_embedding(vocabulary_size, hidden_dim)(token_ids)
    segments = Embedding(
        1, hidden_dim, embeddings_initializer=INITIALIZER, name="segment_embedding"
    )(ops.zeros_like(token_ids))
    add_positions = position_embedding(max_sequence_length, first_row=_FIRST_ROW)
    embeddings = add_positions(
        ops.add(tokens, segments), roberta_positions(padding_mask)
    )
    options = block_options(activation, layer_norm_epsilon, dropout, attention_dropout)
    sizes = num_layers, num_heads, mlp_dim
    return bert_encoder(inputs, embeddings, *sizes, **options, name=name)


@one_operation
def roberta_positions(padding_mask):
    """Positions of real tokens, and -1, the last of the unused rows, for padding."""
    is_real = ops.cast(padding_mask, "int32")
    after = ops.add(token_positions(padding_mask), 1)
    return ops.subtract(ops.multiply(after, is_real), 1)


@described_as(heads.masked_lm)
def build_roberta_masked_lm(
    encoder: Encoder = "base",
    *,
    masked_positions: bool = False,
    name: str = "roberta_masked_lm",
) -> Functional:
    """Predicts masked tokens: logits (B, T, V), or (B, P, V)."""
    return heads.masked_lm(
        as_encoder(encoder, build_roberta),
        masked_positions=masked_positions,
        transform=True,
        name=name,
    )


@described_as(heads.next_sentence)
def build_roberta_next_sentence(
    encoder: Encoder = "base", *, name: str = "roberta_next_sentence"
) -> Functional:
    """Predicts whether a sentence follows; see `build_bert_next_sentence`.

    RoBERTa is pre-trained without this objective (section 4.2), so the layer is new.
    """
    return heads.next_sentence(as_encoder(encoder, build_roberta), name=name)


@described_as(heads.classifier)
def build_roberta_classifier(
    encoder: Encoder = "base",
    *,
    num_classes: int,
    dropout: Probability = 0.1,
    name: str = "roberta_classifier",
) -> Functional:
    """Classifies a sentence or a pair: logits (B, C).

    A hidden tanh layer of the head reads the first token. The encoder's pooled output,
    which RoBERTa does not train, is not used.
    """
    encoder = as_encoder(encoder, build_roberta)
    features = first_token(
        encoder.output["sequence_output"], encoder.input["padding_mask"]
    )
    return heads.classifier(
        encoder,
        num_classes,
        features=features,
        dropout=dropout,
        hidden="tanh",
        name=name,
    )


@described_as(heads.token_classifier)
def build_roberta_token_classifier(
    encoder: Encoder = "base",
    *,
    num_classes: int,
    dropout: Probability = 0.1,
    name: str = "roberta_token_classifier",
) -> Functional:
    """Classifies each token; see `build_bert_token_classifier`."""
    encoder = as_encoder(encoder, build_roberta)
    return heads.token_classifier(encoder, num_classes, dropout=dropout, name=name)


@described_as(heads.span)
def build_roberta_span_qa(
    encoder: Encoder = "base",
    *,
    dropout: Probability = 0.0,
    name: str = "roberta_span_qa",
) -> Functional:
    """Predicts the start and the end of an answer; see `build_bert_span_qa`."""
    return heads.span(as_encoder(encoder, build_roberta), dropout=dropout, name=name)


@described_as(heads.sentence_encoder)
def build_roberta_sentence_encoder(
    encoder: Encoder = "base",
    *,
    pooling: Pooling | Sequence[Pooling] = "mean",
    normalize: bool = True,
    projections: Sequence[Sequence] = (),
    name: str = "roberta_sentence_encoder",
) -> Functional:
    """One vector per sentence; see `build_bert_sentence_encoder`."""
    encoder = as_encoder(encoder, build_roberta)
    return heads.sentence_encoder(encoder, pooling, normalize, projections, name)
