"""XLM: one encoder for many languages, trained on texts and translations.

    token + position + language embeddings
        -> norm -> dropout -> N post-norm blocks -> `sequence_output`
                              first token        -> `pooled_output`

    build_xlm          token ids -> features of each token and of the sequence
    build_xlm_<task>   an encoder -> the logits of a task, as for BERT

The stack of blocks: `models/parts/bert_encoder.py`; blocks:
`layers/blocks/transformer_block.py`; attention:
`layers/attention/multi_head_attention.py`.

Legend: B batch, T length, P masked positions, D width, V vocabulary, C classes.
Layers: `token_embedding`, `position_embedding`, `language_embedding`,
`embeddings_norm`, `embeddings_dropout`, `block_0`, …, `first_token`.
"""

from collections.abc import Sequence

from keras import ops

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import Embedding
from keras_attn.layers.embeddings.token_pooling import Pooling
from keras_attn.layers.initializers import normal
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, block_options, block_sizes
from keras_attn.models.parts import heads
from keras_attn.models.parts.bert_encoder import (
    bert_encoder,
    position_embedding,
    token_embedding,
)
from keras_attn.models.parts.functional import Functional, sequence_inputs
from keras_attn.models.parts.heads import Encoder, as_encoder
from keras_attn.ops import row_positions

# Lample and Conneau 2019, section 5.1, for the 15 languages of XNLI.
VARIANTS = {
    "mlm_tlm_xnli15": {
        "vocabulary_size": 95_000,
        "num_languages": 15,
        "max_sequence_length": 512,
        "layer_norm_epsilon": 1e-12,
        **block_sizes(num_layers=12, hidden_dim=1024, num_heads=8),
    }
}
CARDS = model_cards(
    "xlm_{variant}",
    {"mlm_tlm_xnli15": None},
    training=Training(
        "Wikipedia and parallel texts", "section 5.1", hardware="v100", devices=64
    ),
    scores=[
        scored(
            "XNLI accuracy",
            "mean of 15 languages, MLM and TLM",
            "table 1",
            {"mlm_tlm_xnli15": 75.1},
        )
    ],
    title="XLM, an encoder of 15 languages",
    paper="Lample and Conneau 2019, arXiv:1901.07291",
    **tasks.text_encoding(
        "the features of the first real token",
        language_ids="(B, T) int32, the language of each token",
    ),
)
_EMBEDDINGS = normal(2048**-0.5)


@registered(CARDS, VARIANTS)
@described_as(bert_encoder)
def build_xlm(
    variant: str = "mlm_tlm_xnli15",
    *,
    vocabulary_size: int = FROM_VARIANT,
    num_languages: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    max_sequence_length: int = FROM_VARIANT,
    position_ids: bool = False,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = FROM_VARIANT,
    dropout: Probability = 0.1,
    attention_dropout: Probability = 0.1,
    name: str = "xlm",
) -> Functional:
    """Token, position and language embeddings, then N post-norm encoder blocks.

    The pooled output is the features of the first real token, `</s>`, without BERT's
    tanh layer: XLM's heads read these features directly.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V, shared by all languages.
        num_languages: Number of languages.
        hidden_dim: D.
        max_sequence_length: Number of positions.
        position_ids: Whether to add an input of this name, int32 (B, T), with the
            position of each token, as `translation_lm_dataset` provides it: the
            positions of a translation start again at 0. Otherwise positions are counted
            from the first real token of a row, so padding on the left does not change
            the outputs. The weights are the same.
        name: Name of the model.

    Returns:
        A model from `token_ids`, `padding_mask` and `language_ids`, each (B, T), to a
        dictionary with `sequence_output` (B, T, D) and `pooled_output` (B, D).

    Reference:
        Lample and Conneau 2019, "Cross-lingual Language Model Pretraining"
        (arXiv:1901.07291).
    """
    inputs = sequence_inputs("token_ids", "padding_mask", "language_ids")
    if position_ids:
        inputs |= sequence_inputs("position_ids")
        positions = inputs["position_ids"]
    else:
        positions = row_positions(inputs["padding_mask"])
    embed = token_embedding(vocabulary_size, hidden_dim, _EMBEDDINGS)
    tokens = embed(inputs["token_ids"])
    hidden = position_embedding(max_sequence_length, _EMBEDDINGS)(tokens, positions)
    languages = Embedding(
        num_languages,
        hidden_dim,
        embeddings_initializer=_EMBEDDINGS,
        name="language_embedding",
    )(inputs["language_ids"])
    embeddings = ops.add(hidden, languages)
    options = block_options(activation, layer_norm_epsilon, dropout, attention_dropout)
    sizes = num_layers, num_heads, mlp_dim
    return bert_encoder(
        inputs, embeddings, *sizes, **options, tanh_pooler=False, name=name
    )


@described_as(heads.masked_lm)
def build_xlm_masked_lm(
    encoder: Encoder = "mlm_tlm_xnli15",
    *,
    masked_positions: bool = False,
    name: str = "xlm_masked_lm",
) -> Functional:
    """Predicts masked tokens in a text, or in a text and its translation.

    Logits are as in `build_bert_masked_lm`.

    Reference:
        Lample and Conneau 2019, sections 3.3 and 3.4 (arXiv:1901.07291).
    """
    encoder = as_encoder(encoder, build_xlm)
    return heads.masked_lm(encoder, masked_positions=masked_positions, name=name)


@described_as(heads.next_sentence)
def build_xlm_next_sentence(
    encoder: Encoder = "mlm_tlm_xnli15", *, name: str = "xlm_next_sentence"
) -> Functional:
    """Predicts whether a sentence follows; see `build_bert_next_sentence`.

    XLM is pre-trained without this objective, so the layer is new.
    """
    return heads.next_sentence(as_encoder(encoder, build_xlm), name=name)


@described_as(heads.classifier)
def build_xlm_classifier(
    encoder: Encoder = "mlm_tlm_xnli15",
    *,
    num_classes: int,
    dropout: Probability = 0.1,
    name: str = "xlm_classifier",
) -> Functional:
    """Classifies a sentence or a pair in any language, as for XNLI.

    Logits are as in `build_bert_classifier`.

    Reference:
        Lample and Conneau 2019, section 4.1 (arXiv:1901.07291).
    """
    encoder = as_encoder(encoder, build_xlm)
    return heads.classifier(encoder, num_classes, dropout=dropout, name=name)


@described_as(heads.token_classifier)
def build_xlm_token_classifier(
    encoder: Encoder = "mlm_tlm_xnli15",
    *,
    num_classes: int,
    dropout: Probability = 0.1,
    name: str = "xlm_token_classifier",
) -> Functional:
    """Classifies each token; see `build_bert_token_classifier`."""
    encoder = as_encoder(encoder, build_xlm)
    return heads.token_classifier(encoder, num_classes, dropout=dropout, name=name)


@described_as(heads.span)
def build_xlm_span_qa(
    encoder: Encoder = "mlm_tlm_xnli15",
    *,
    dropout: Probability = 0.0,
    name: str = "xlm_span_qa",
) -> Functional:
    """Predicts the start and the end of an answer; see `build_bert_span_qa`."""
    return heads.span(as_encoder(encoder, build_xlm), dropout=dropout, name=name)


@described_as(heads.sentence_encoder)
def build_xlm_sentence_encoder(
    encoder: Encoder = "mlm_tlm_xnli15",
    *,
    pooling: Pooling | Sequence[Pooling] = "mean",
    normalize: bool = True,
    projections: Sequence[Sequence] = (),
    name: str = "xlm_sentence_encoder",
) -> Functional:
    """One vector per sentence, for comparing sentences across languages.

    Outputs are as in `build_bert_sentence_encoder`.
    """
    encoder = as_encoder(encoder, build_xlm)
    return heads.sentence_encoder(encoder, pooling, normalize, projections, name)
