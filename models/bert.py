"""BERT and RoBERTa: encoders that learn by filling in what was masked.

    build_bert, build_roberta           token ids -> a vector a token, and one for all
    build_bert_<head>, build_roberta_…  an encoder -> the logits of a task

A head takes an encoder, pre-trained or not, and shares its layers; the name of a
variant builds a fresh one.

Legend: B batch, T length, P positions asked for, D width, V vocabulary, C classes.
Layers: `token_embedding`, `segment_embedding`, `position_embedding`,
`embeddings_norm`, `embeddings_dropout`, `block_0`, …, `first_token`, `pooler`.
"""

import keras
from keras import ops
from keras.layers import Dense, Embedding

from keras_attn.layers import LearnedPositionEmbedding, TransformerEncoderBlock
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.token_embedding import TokenEmbedding
from keras_attn.layers.token_pooling import TokenPooling
from keras_attn.models.parts import heads
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import INITIALIZER, as_encoder
from keras_attn.models.parts.registry import ModelCard, register
from keras_attn.models.parts.variants import resolve
from keras_attn.ops import row_positions, token_positions


def _sizes(num_layers, hidden_dim, num_heads):
    return {
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * hidden_dim,
    }


_BERT = {
    "vocabulary_size": 30_522,
    "max_sequence_length": 512,
    "num_segments": 2,
    "layer_norm_epsilon": 1e-12,
}
_ROBERTA = {
    "vocabulary_size": 50_265,
    "max_sequence_length": 512,
    "layer_norm_epsilon": 1e-5,
}
VARIANTS = {
    # Devlin et al. 2019, section 3; the smaller ones: Turc et al. 2019, table 1.
    "bert": {
        "tiny": {**_BERT, **_sizes(2, 128, 2)},
        "mini": {**_BERT, **_sizes(4, 256, 4)},
        "small": {**_BERT, **_sizes(4, 512, 8)},
        "medium": {**_BERT, **_sizes(8, 512, 8)},
        "base": {**_BERT, **_sizes(12, 768, 12)},
        "large": {**_BERT, **_sizes(24, 1024, 16)},
    },
    # Liu et al. 2019, section 3.1 and table 9.
    "roberta": {
        "base": {**_ROBERTA, **_sizes(12, 768, 12)},
        "large": {**_ROBERTA, **_sizes(24, 1024, 16)},
    },
}
# The published position table begins with two rows that no token is at, because 1, the
# id of the padding, was the last number that was taken.
_ROBERTA_FIRST_ROW = 2


def build_bert(
    variant="base",
    *,
    vocabulary_size=None,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    mlp_dim=None,
    max_sequence_length=None,
    num_segments=None,
    activation="gelu",
    layer_norm_epsilon=None,
    dropout=0.1,
    attention_dropout=0.1,
    name="bert",
):
    """Token, segment and position embeddings, then N post-norm encoder blocks.

    Positions count from a row's first real token, so padding on the left moves nothing;
    the published code counts from the row's start, and pads on the right.

    Args:
        variant: A row of `VARIANTS["bert"]`; what is None below is as it says.
        vocabulary_size: V.
        num_layers: Blocks.
        hidden_dim: D.
        num_heads: Attention heads a block.
        mlp_dim: Width of the feed-forward networks.
        max_sequence_length: Positions there are.
        num_segments: Segments there are.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        name: Of the model.

    Returns:
        A model from `token_ids`, `padding_mask` and `segment_ids`, each (B, T), to a
        dictionary of `sequence_output` (B, T, D) and `pooled_output` (B, D), a tanh
        layer over the first real token.

    Reference:
        Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for
        Language Understanding" (arXiv:1810.04805); small sizes: Turc et al. 2019
        (arXiv:1908.08962).
    """
    numbers = resolve(
        VARIANTS["bert"],
        variant,
        vocabulary_size=vocabulary_size,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        max_sequence_length=max_sequence_length,
        num_segments=num_segments,
        layer_norm_epsilon=layer_norm_epsilon,
    )
    inputs = {**_inputs(), "segment_ids": _input("segment_ids")}
    width = numbers["hidden_dim"]
    hidden = ops.add(
        TokenEmbedding(
            numbers["vocabulary_size"],
            width,
            embeddings_initializer=INITIALIZER,
            name="token_embedding",
        )(inputs["token_ids"]),
        _segment_embedding(numbers["num_segments"], width)(inputs["segment_ids"]),
    )
    hidden = LearnedPositionEmbedding(
        numbers["max_sequence_length"],
        embeddings_initializer=INITIALIZER,
        name="position_embedding",
    )(hidden, row_positions(inputs["padding_mask"]))
    outputs = _encode(
        hidden, inputs["padding_mask"], numbers, activation, dropout, attention_dropout
    )
    return Functional(inputs, outputs, name=name)


def build_roberta(
    variant="base",
    *,
    vocabulary_size=None,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    mlp_dim=None,
    max_sequence_length=None,
    activation="gelu",
    layer_norm_epsilon=None,
    dropout=0.1,
    attention_dropout=0.1,
    name="roberta",
):
    """BERT without segments; positions count the real tokens alone.

    Args:
        variant: A row of `VARIANTS["roberta"]`.
        vocabulary_size: V.
        num_layers: Blocks.
        hidden_dim: D.
        num_heads: Attention heads a block.
        mlp_dim: Width of the feed-forward networks.
        max_sequence_length: Real tokens that a sequence may have.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        name: Of the model.

    Returns:
        A model from `token_ids` and `padding_mask`, each (B, T), to a dictionary as
        that of `build_bert`. It keeps the one segment vector that published
        checkpoints have, and adds it to every token.

    Reference:
        Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining Approach"
        (arXiv:1907.11692).
    """
    numbers = resolve(
        VARIANTS["roberta"],
        variant,
        vocabulary_size=vocabulary_size,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        max_sequence_length=max_sequence_length,
        layer_norm_epsilon=layer_norm_epsilon,
    )
    inputs = _inputs()
    width = numbers["hidden_dim"]
    token_ids, mask = inputs["token_ids"], inputs["padding_mask"]
    hidden = ops.add(
        TokenEmbedding(
            numbers["vocabulary_size"],
            width,
            embeddings_initializer=INITIALIZER,
            name="token_embedding",
        )(token_ids),
        _segment_embedding(1, width)(ops.zeros_like(token_ids)),
    )
    # Padding stands at -1, in the last row that no token is at.
    real = ops.cast(mask, "int32")
    positions = ops.subtract(ops.multiply(ops.add(token_positions(mask), 1), real), 1)
    hidden = LearnedPositionEmbedding(
        numbers["max_sequence_length"],
        first_row=_ROBERTA_FIRST_ROW,
        embeddings_initializer=INITIALIZER,
        name="position_embedding",
    )(hidden, positions)
    outputs = _encode(hidden, mask, numbers, activation, dropout, attention_dropout)
    return Functional(inputs, outputs, name=name)


def _encode(hidden, padding_mask, numbers, activation, dropout, attention_dropout):
    """The blocks above the embeddings, and the two outputs."""
    epsilon = numbers["layer_norm_epsilon"]
    hidden = LayerNormalization(epsilon=epsilon, name="embeddings_norm")(hidden)
    hidden = Dropout(dropout, name="embeddings_dropout")(hidden)
    for index in range(numbers["num_layers"]):
        hidden = TransformerEncoderBlock(
            numbers["num_heads"],
            numbers["mlp_dim"],
            activation=activation,
            layer_norm_epsilon=epsilon,
            dropout=dropout,
            attention_dropout=attention_dropout,
            kernel_initializer=INITIALIZER,
            name=f"block_{index}",
        )(hidden, padding_mask=padding_mask)
    first = TokenPooling("first", name="first_token")(hidden, padding_mask)
    pooled = Dense(
        numbers["hidden_dim"],
        activation="tanh",
        kernel_initializer=INITIALIZER,
        name="pooler",
    )(first)
    return {"sequence_output": hidden, "pooled_output": pooled}


def build_bert_masked_lm(
    encoder="base", *, masked_positions=False, name="bert_masked_lm"
):
    """What stood where a token is masked.

    Args:
        encoder: A model from `build_bert`, or the name of a variant.
        masked_positions: Whether there is an input of that name, (B, P), and logits
            at these positions alone: the product with the vocabulary is the most
            expensive of a small model, and 85 % of it are not trained on.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, T, V), or (B, P, V).

    Reference:
        Devlin et al. 2019, section 3.1, task 1 (arXiv:1810.04805).
    """
    encoder = as_encoder(encoder, build_bert)
    return _masked_lm(encoder, masked_positions, name)


def build_bert_pretrainer(
    encoder="base", *, masked_positions=False, name="bert_pretrainer"
):
    """Both published objectives: the masked tokens, and whether a sentence follows.

    Args:
        encoder: A model from `build_bert`, or the name of a variant.
        masked_positions: As for `build_bert_masked_lm`.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to a dictionary of logits: `masked_lm`
        (B, T, V) or (B, P, V), and `next_sentence` (B, 2), 0 = it follows.

    Reference:
        Devlin et al. 2019, section 3.1 (arXiv:1810.04805).
    """
    encoder = as_encoder(encoder, build_bert)
    masked_lm = _masked_lm(encoder, masked_positions, name)
    follows = heads.next_sentence(encoder, name=name)
    outputs = {"masked_lm": masked_lm.output, "next_sentence": follows.output}
    return Functional(masked_lm.input, outputs, name=name)


def build_bert_next_sentence(encoder="base", *, name="bert_next_sentence"):
    """Whether the second segment follows the first in a text.

    Args:
        encoder: A model from `build_bert`, or the name of a variant.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, 2), 0 = it follows.

    Reference:
        Devlin et al. 2019, section 3.1, task 2 (arXiv:1810.04805).
    """
    return heads.next_sentence(as_encoder(encoder, build_bert), name=name)


def build_bert_classifier(
    encoder="base", *, num_classes, dropout=0.1, name="bert_classifier"
):
    """The class of a sentence, or of a pair of them.

    Args:
        encoder: A model from `build_bert`, or the name of a variant.
        num_classes: C; 1 for a regression.
        dropout: Probability of dropping a unit of the pooled output.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, C).

    Reference:
        Devlin et al. 2019, section 4.1 and figure 4 a, b (arXiv:1810.04805).
    """
    encoder = as_encoder(encoder, build_bert)
    pooled = encoder.output["pooled_output"]
    return heads.classifier(encoder, pooled, num_classes, dropout=dropout, name=name)


def build_bert_token_classifier(
    encoder="base", *, num_classes, dropout=0.1, name="bert_token_classifier"
):
    """The class of each token.

    Args:
        encoder: A model from `build_bert`, or the name of a variant.
        num_classes: C.
        dropout: Probability of dropping a unit of the sequence output.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, T, C).

    Reference:
        Devlin et al. 2019, section 5.3 and figure 4 d (arXiv:1810.04805).
    """
    encoder = as_encoder(encoder, build_bert)
    tokens = encoder.output["sequence_output"]
    return heads.classifier(encoder, tokens, num_classes, dropout=dropout, name=name)


def build_bert_span_qa(encoder="base", *, dropout=0.0, name="bert_span_qa"):
    """Where in a passage the answer to a question starts and ends.

    Args:
        encoder: A model from `build_bert`, or the name of a variant.
        dropout: Probability of dropping a unit of the sequence output.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to a dictionary of logits, `start_logits`
        and `end_logits`, each (B, T).

    Reference:
        Devlin et al. 2019, section 4.2 and figure 4 c (arXiv:1810.04805).
    """
    encoder = as_encoder(encoder, build_bert)
    return heads.span(encoder, dropout=dropout, name=name)


def build_bert_sentence_encoder(
    encoder="base", *, pooling="mean", normalize=True, name="bert_sentence_encoder"
):
    """One vector a sentence, to compare sentences by.

    Args:
        encoder: A model from `build_bert`, or the name of a variant.
        pooling: `"mean"` over the real tokens, or the `"first"` or `"last"` of them.
        normalize: Whether vectors have length 1: their dot product is the cosine.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to embeddings (B, D) in float32.

    Reference:
        Reimers and Gurevych 2019, "Sentence-BERT" (arXiv:1908.10084), section 3.
    """
    encoder = as_encoder(encoder, build_bert)
    return heads.sentence_encoder(
        encoder, pooling=pooling, normalize=normalize, name=name
    )


def build_roberta_masked_lm(
    encoder="base", *, masked_positions=False, name="roberta_masked_lm"
):
    """What stood where a token is masked; see `build_bert_masked_lm`."""
    encoder = as_encoder(encoder, build_roberta)
    return _masked_lm(encoder, masked_positions, name)


def build_roberta_next_sentence(encoder="base", *, name="roberta_next_sentence"):
    """Whether a sentence follows; see `build_bert_next_sentence`.

    RoBERTa is trained without it (section 4.2): the head starts from nothing.
    """
    return heads.next_sentence(as_encoder(encoder, build_roberta), name=name)


def build_roberta_classifier(
    encoder="base", *, num_classes, dropout=0.1, name="roberta_classifier"
):
    """The class of a sentence or a pair, from the first token, by a hidden layer.

    Arguments and result are those of `build_bert_classifier`; the encoder's pooled
    output, which RoBERTa never trained, plays no part.
    """
    encoder = as_encoder(encoder, build_roberta)
    first = TokenPooling("first", name="first_token")(
        encoder.output["sequence_output"], encoder.input["padding_mask"]
    )
    return heads.classifier(
        encoder, first, num_classes, dropout=dropout, hidden="tanh", name=name
    )


def build_roberta_token_classifier(
    encoder="base", *, num_classes, dropout=0.1, name="roberta_token_classifier"
):
    """The class of each token; see `build_bert_token_classifier`."""
    encoder = as_encoder(encoder, build_roberta)
    tokens = encoder.output["sequence_output"]
    return heads.classifier(encoder, tokens, num_classes, dropout=dropout, name=name)


def build_roberta_span_qa(encoder="base", *, dropout=0.0, name="roberta_span_qa"):
    """Where an answer starts and ends; see `build_bert_span_qa`."""
    encoder = as_encoder(encoder, build_roberta)
    return heads.span(encoder, dropout=dropout, name=name)


def build_roberta_sentence_encoder(
    encoder="base", *, pooling="mean", normalize=True, name="roberta_sentence_encoder"
):
    """One vector a sentence; see `build_bert_sentence_encoder`."""
    encoder = as_encoder(encoder, build_roberta)
    return heads.sentence_encoder(
        encoder, pooling=pooling, normalize=normalize, name=name
    )


def _masked_lm(encoder, masked_positions, name):
    """The head of both: a layer as the published feed-forward networks begin with."""
    positions = heads.masked_positions_input(masked_positions)
    block = encoder.get_layer("block_0")
    logits = heads.masked_lm_logits(
        encoder,
        transform=block.activation,
        epsilon=block.layer_norm_epsilon,
        **positions,
    )
    return Functional({**encoder.input, **positions}, logits, name=name)


def _segment_embedding(num_segments, width):
    return Embedding(
        num_segments,
        width,
        embeddings_initializer=INITIALIZER,
        name="segment_embedding",
    )


def _inputs():
    return {
        "token_ids": _input("token_ids"),
        "padding_mask": _input("padding_mask", "bool"),
    }


def _input(name, dtype="int32"):
    return keras.Input((None,), dtype=dtype, name=name)


def _card(family, variant, paper, year, parameters, notes, **inputs):
    return ModelCard(
        name=f"{family}_{variant}",
        family="bert",
        title=f"{'RoBERTa' if family == 'roberta' else 'BERT'} {variant}, an encoder",
        paper=paper,
        year=year,
        task="encoder",
        parameters=parameters,
        inputs={
            "token_ids": "(B, T) int32",
            "padding_mask": "(B, T) bool, True = a real token",
            **inputs,
        },
        outputs={
            "sequence_output": "(B, T, D), a vector a token",
            "pooled_output": "(B, D), a tanh layer over the first real token",
        },
        notes=notes,
    )


_SEGMENTS = {"segment_ids": "(B, T) int32, 0 or 1"}
_SMALL = "Turc et al. 2019, arXiv:1908.08962"
_DEVLIN = "Devlin et al. 2019, arXiv:1810.04805"
_LIU = "Liu et al. 2019, arXiv:1907.11692"
for _variant, _paper, _count, _notes in (
    ("tiny", _SMALL, 4_400_000, "pre-trained, then distilled: GLUE 64.2"),
    ("mini", _SMALL, 11_300_000, "pre-trained, then distilled: GLUE 65.8"),
    ("small", _SMALL, 29_100_000, "pre-trained, then distilled: GLUE 71.2"),
    ("medium", _SMALL, 41_700_000, "pre-trained, then distilled: GLUE 73.5"),
    ("base", _DEVLIN, 110_000_000, "GLUE 79.6; SQuAD 1.1 F1 88.5"),
    ("large", _DEVLIN, 340_000_000, "GLUE 82.1; SQuAD 1.1 F1 90.9"),
):
    register(
        _card("bert", _variant, _paper, 2019, _count, _notes, **_SEGMENTS),
        build_bert,
        _variant,
    )
for _variant, _count, _notes in (
    ("base", 125_000_000, "MNLI 87.6; SST-2 94.8"),
    ("large", 355_000_000, "MNLI 90.2; SST-2 96.4; SQuAD 1.1 F1 94.6"),
):
    register(
        _card("roberta", _variant, _LIU, 2019, _count, _notes), build_roberta, _variant
    )
