"""XLM: one encoder for many languages, which learns from texts and translations.

    build_xlm         token ids -> a vector a token, and one for all
    build_xlm_<head>  an encoder -> the logits of a task

Legend: B batch, T length, P positions asked for, D width, V vocabulary, C classes.
Layers: `token_embedding`, `position_embedding`, `language_embedding`,
`embeddings_norm`, `embeddings_dropout`, `block_0`, …, `first_token`.
"""

import keras
from keras import ops
from keras.layers import Embedding

from keras_attn.layers import (
    LearnedPositionEmbedding,
    TokenEmbedding,
    TokenPooling,
    TransformerEncoderBlock,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import normal
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.models.parts import heads
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import INITIALIZER, as_encoder
from keras_attn.models.parts.registry import ModelCard, register
from keras_attn.models.parts.variants import resolve
from keras_attn.ops import row_positions

# Lample and Conneau 2019, section 5.1, for the 15 languages of XNLI.
VARIANTS = {
    "mlm_tlm_xnli15": {
        "vocabulary_size": 95_000,
        "num_languages": 15,
        "max_sequence_length": 512,
        "num_layers": 12,
        "hidden_dim": 1024,
        "num_heads": 8,
        "mlp_dim": 4096,
    }
}
_EMBEDDINGS = normal(2048**-0.5)


def build_xlm(
    variant="mlm_tlm_xnli15",
    *,
    vocabulary_size=None,
    num_languages=None,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    mlp_dim=None,
    max_sequence_length=None,
    position_ids=False,
    activation="gelu",
    layer_norm_epsilon=1e-12,
    dropout=0.1,
    attention_dropout=0.1,
    name="xlm",
):
    """Token, position and language embeddings, then N post-norm encoder blocks.

    The pooled output is the state of the first real token, `</s>`, as it is: XLM's
    heads read it without a layer in between.

    Args:
        variant: A row of `VARIANTS`; what is None below is as it says.
        vocabulary_size: V, of all languages together.
        num_languages: Languages there are.
        num_layers: Blocks.
        hidden_dim: D.
        num_heads: Attention heads a block.
        mlp_dim: Width of the feed-forward networks.
        max_sequence_length: Positions there are.
        position_ids: Whether there is an input of that name, int32 (B, T), the number
            of each token. `translation_lm_dataset` gives it: a translation begins
            anew at 0. Without it they count from a row's first real token, so padding
            on the left moves nothing. The weights are the same.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        name: Of the model.

    Returns:
        A model from `token_ids`, `padding_mask` and `language_ids`, each (B, T), to a
        dictionary of `sequence_output` (B, T, D) and `pooled_output` (B, D).

    Reference:
        Lample and Conneau 2019, "Cross-lingual Language Model Pretraining"
        (arXiv:1901.07291).
    """
    numbers = resolve(
        VARIANTS,
        variant,
        vocabulary_size=vocabulary_size,
        num_languages=num_languages,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        max_sequence_length=max_sequence_length,
    )
    types = {"token_ids": "int32", "padding_mask": "bool", "language_ids": "int32"}
    if position_ids:
        types["position_ids"] = "int32"
    inputs = {
        key: keras.Input((None,), dtype=dtype, name=key) for key, dtype in types.items()
    }
    width = numbers["hidden_dim"]
    hidden = TokenEmbedding(
        numbers["vocabulary_size"],
        width,
        embeddings_initializer=_EMBEDDINGS,
        name="token_embedding",
    )(inputs["token_ids"])
    positions = inputs.get("position_ids")
    if positions is None:
        positions = row_positions(inputs["padding_mask"])
    hidden = LearnedPositionEmbedding(
        numbers["max_sequence_length"],
        embeddings_initializer=_EMBEDDINGS,
        name="position_embedding",
    )(hidden, positions)
    languages = Embedding(
        numbers["num_languages"],
        width,
        embeddings_initializer=_EMBEDDINGS,
        name="language_embedding",
    )(inputs["language_ids"])
    hidden = ops.add(hidden, languages)
    hidden = LayerNormalization(epsilon=layer_norm_epsilon, name="embeddings_norm")(
        hidden
    )
    hidden = Dropout(dropout, name="embeddings_dropout")(hidden)
    for index in range(numbers["num_layers"]):
        hidden = TransformerEncoderBlock(
            numbers["num_heads"],
            numbers["mlp_dim"],
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            dropout=dropout,
            attention_dropout=attention_dropout,
            kernel_initializer=INITIALIZER,
            name=f"block_{index}",
        )(hidden, padding_mask=inputs["padding_mask"])
    first = TokenPooling("first", name="first_token")(hidden, inputs["padding_mask"])
    outputs = {"sequence_output": hidden, "pooled_output": first}
    return Functional(inputs, outputs, name=name)


def build_xlm_masked_lm(
    encoder="mlm_tlm_xnli15", *, masked_positions=False, name="xlm_masked_lm"
):
    """What stood where a token is masked, in a text or in a text and its translation.

    Args:
        encoder: A model from `build_xlm`, or the name of a variant.
        masked_positions: Whether there is an input of that name, (B, P), and logits
            at these positions alone.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, T, V), or (B, P, V).

    Reference:
        Lample and Conneau 2019, sections 3.3 and 3.4 (arXiv:1901.07291).
    """
    encoder = as_encoder(encoder, build_xlm)
    positions = heads.masked_positions_input(masked_positions)
    logits = heads.masked_lm_logits(encoder, transform=None, **positions)
    return Functional({**encoder.input, **positions}, logits, name=name)


def build_xlm_next_sentence(encoder="mlm_tlm_xnli15", *, name="xlm_next_sentence"):
    """Whether the second sentence follows the first; XLM is trained without it.

    Args:
        encoder: A model from `build_xlm`, or the name of a variant.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, 2), 0 = it follows.
    """
    return heads.next_sentence(as_encoder(encoder, build_xlm), name=name)


def build_xlm_classifier(
    encoder="mlm_tlm_xnli15", *, num_classes, dropout=0.1, name="xlm_classifier"
):
    """The class of a sentence or a pair, in any language: XNLI's head.

    Args:
        encoder: A model from `build_xlm`, or the name of a variant.
        num_classes: C.
        dropout: Probability of dropping a unit of the first token's state.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, C).

    Reference:
        Lample and Conneau 2019, section 4.1 (arXiv:1901.07291).
    """
    encoder = as_encoder(encoder, build_xlm)
    pooled = encoder.output["pooled_output"]
    return heads.classifier(encoder, pooled, num_classes, dropout=dropout, name=name)


def build_xlm_token_classifier(
    encoder="mlm_tlm_xnli15", *, num_classes, dropout=0.1, name="xlm_token_classifier"
):
    """The class of each token.

    Args:
        encoder: A model from `build_xlm`, or the name of a variant.
        num_classes: C.
        dropout: Probability of dropping a unit of the sequence output.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, T, C).
    """
    encoder = as_encoder(encoder, build_xlm)
    tokens = encoder.output["sequence_output"]
    return heads.classifier(encoder, tokens, num_classes, dropout=dropout, name=name)


def build_xlm_span_qa(encoder="mlm_tlm_xnli15", *, dropout=0.0, name="xlm_span_qa"):
    """Where in a passage the answer to a question starts and ends.

    Args:
        encoder: A model from `build_xlm`, or the name of a variant.
        dropout: Probability of dropping a unit of the sequence output.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to a dictionary of logits, `start_logits`
        and `end_logits`, each (B, T).
    """
    return heads.span(as_encoder(encoder, build_xlm), dropout=dropout, name=name)


def build_xlm_sentence_encoder(
    encoder="mlm_tlm_xnli15",
    *,
    pooling="mean",
    normalize=True,
    name="xlm_sentence_encoder",
):
    """One vector a sentence, to compare sentences of any two languages by.

    Args:
        encoder: A model from `build_xlm`, or the name of a variant.
        pooling: `"mean"` over the real tokens, or the `"first"` or `"last"` of them.
        normalize: Whether vectors have length 1: their dot product is the cosine.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to embeddings (B, D) in float32.
    """
    return heads.sentence_encoder(
        as_encoder(encoder, build_xlm), pooling=pooling, normalize=normalize, name=name
    )


register(
    ModelCard(
        name="xlm_mlm_tlm_xnli15",
        family="xlm",
        title="XLM, an encoder of 15 languages",
        paper="Lample and Conneau 2019, arXiv:1901.07291",
        year=2019,
        task="encoder",
        parameters=None,
        inputs={
            "token_ids": "(B, T) int32",
            "padding_mask": "(B, T) bool, True = a real token",
            "language_ids": "(B, T) int32, the language of each token",
        },
        outputs={
            "sequence_output": "(B, T, D), a vector a token",
            "pooled_output": "(B, D), that of the first real token",
        },
        notes="XNLI, mean of 15 languages: 75.1 (MLM and TLM)",
    ),
    build_xlm,
    "mlm_tlm_xnli15",
)
