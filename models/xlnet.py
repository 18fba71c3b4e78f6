"""XLNet: a bidirectional language model that predicts tokens in any order.

    build_xlnet                  token ids -> features of each token and of the sequence
    build_xlnet_permutation_lm   the pre-training objective, with two streams
    build_xlnet_<task>           an encoder -> the logits of a task, as for BERT

                      content stream                    query stream
    input             token embeddings                  one vector w for all targets
    block             token t attends to itself and     target p attends to the tokens
                      the tokens before it in the order before it in the order
    output            `sequence_output`                 logits of the target tokens

Both streams share their weights. An encoder for fine-tuning is only the content stream,
in which every token attends to all others. Positions are relative, so the length of a
sequence is not limited.

Blocks: `layers/blocks/xlnet_block.py`; attention:
`layers/attention/relative_attention.py`.

Legend: B batch, T length, P targets, M memory length, D width, V vocabulary, C classes.
Layers: `token_embedding`, `embeddings_dropout`, `target_embedding`,
`relative_positions`, `positions_dropout`, `block_0`, …, `output_dropout`,
`last_token`; with a memory `segment_memory`.
"""

import functools
from collections.abc import Sequence

import keras
from keras import ops

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.checks.arguments import check_boolean
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers.blocks.xlnet_block import (
    SegmentMemory,
    TargetEmbedding,
    XLNetBlock,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.embeddings.relative_position_encoding import (
    RelativePositionEncoding,
)
from keras_attn.layers.embeddings.token_pooling import Pooling, TokenPooling
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, block_options, block_sizes
from keras_attn.models.parts import heads
from keras_attn.models.parts.bert_encoder import bert_encoder, token_embedding
from keras_attn.models.parts.decoders.pair_builders import inputs_like
from keras_attn.models.parts.functional import (
    Functional,
    by_name,
    numbered,
    sequence_inputs,
)
from keras_attn.models.parts.heads import INITIALIZER, Encoder, as_encoder

_sizes = functools.partial(block_sizes, vocabulary_size=32_000)
# Yang et al. 2019, appendix A.4, table 8; the base model is from the published code.
VARIANTS = {
    "base": _sizes(num_layers=12, hidden_dim=768, num_heads=12),
    "large": _sizes(num_layers=24, hidden_dim=1024, num_heads=16),
}
CARDS = model_cards(
    "xlnet_{variant}",
    {"base": 117_000_000, "large": 340_000_000},
    notes={"base": "the published code's smaller model"},
    training={
        # 500,000 steps of 8,192 rows of 512 tokens.
        "large": Training(
            "BooksCorpus, Wikipedia, Giga5, ClueWeb, Common Crawl",
            "section 3.1",
            gigabytes=158,
            tokens=500_000 * 8192 * 512,
            hardware="tpu_v3",
            devices=512,
            hours=5.5 * 24,
        )
    },
    scores=[
        scored("RACE accuracy", "test", "table 2", {"large": 85.4}),
        scored("SQuAD 2.0 F1", "development", "table 3", {"large": 90.6}),
        scored("MNLI accuracy", "development", "table 5", {"large": 90.8}),
    ],
    title="XLNet {variant}, an encoder",
    paper="Yang et al. 2019, arXiv:1906.08237",
    **tasks.text_encoding(
        "the features of the last real token",
        segment_ids="(B, T) int32, a number for each segment",
    ),
)


@registered(CARDS, VARIANTS)
@described_as(bert_encoder)
def build_xlnet(
    variant: str = "base",
    *,
    vocabulary_size: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    memory_length: int | None = None,
    max_distance: int | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = 1e-12,
    dropout: Probability = 0.1,
    attention_dropout: Probability = 0.1,
    name: str = "xlnet",
) -> Functional:
    """Token embeddings, then N blocks of attention by content, distance and segment.

    Padding may be anywhere; XLNet usually pads on the left and ends a text with
    `<sep><cls>`. Attention depends only on whether two tokens are in the same segment,
    so `segment_ids` may be any integers. The pooled output is the features of the last
    real token, `<cls>`; the tanh layer that BERT applies to them is part of XLNet's
    classifier.

    The weights include `target_embedding`, the vector that starts the query stream, as
    in published checkpoints. Only `build_xlnet_permutation_lm` uses it, so it is frozen
    until that builder is called with the encoder.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V.
        hidden_dim: D.
        memory_length: M, the number of states that a segment passes to the next. None =
            no memory. With a memory, the model has inputs and outputs `memory_0`,
            `memory_1`, …, the inputs of block 0, 1, … for earlier tokens. Every token
            attends to the whole memory, which counts as segment 0. The memory of a
            first segment has length 0.
        max_distance: Larger distances between tokens are clipped to this one. None = no
            limit.
        dropout: Probability of dropping a unit of an embedding, a position, a
            sub-layer or the output.
        name: Name of the model.

    Returns:
        A model from `token_ids`, `padding_mask` and `segment_ids`, each (B, T), to a
        dictionary with `sequence_output` (B, T, D) and `pooled_output` (B, D). Each
        memory is (B, up to M, D).

    Reference:
        Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language
        Understanding" (arXiv:1906.08237).
    """
    inputs = sequence_inputs("token_ids", "padding_mask", "segment_ids")
    memory_names = [f"memory_{index}" for index in range(num_layers)]
    if memory_length is not None:
        for memory in memory_names:
            inputs[memory] = keras.Input((None, hidden_dim), name=memory)
    options = {
        "num_heads": num_heads,
        "mlp_dim": mlp_dim,
        **block_options(activation, layer_norm_epsilon, dropout, attention_dropout),
        "kernel_initializer": INITIALIZER,
        "bias_initializer": INITIALIZER,
    }
    layers = by_name(
        [
            token_embedding(vocabulary_size, hidden_dim),
            Dropout(dropout, name="embeddings_dropout"),
            TargetEmbedding(INITIALIZER, trainable=False, name="target_embedding"),
            RelativePositionEncoding(max_distance, name="relative_positions"),
            Dropout(dropout, name="positions_dropout"),
            *(XLNetBlock(**options, name=f"block_{i}") for i in range(num_layers)),
            Dropout(dropout, name="output_dropout"),
        ]
    )
    content, _, block_inputs = _two_streams(layers, inputs)
    pooled = TokenPooling("last", name="last_token")(content, inputs["padding_mask"])
    outputs = {"sequence_output": content, "pooled_output": pooled}
    if memory_length is not None:
        keep = SegmentMemory(memory_length, name="segment_memory")
        for memory, states in zip(memory_names, block_inputs, strict=True):
            outputs[memory] = keep(states, inputs[memory])
    return Functional(inputs, outputs, name=name)


def _two_streams(layers, inputs, permutation_mask=None, target_mapping=None):
    """Both streams through all blocks.

    Args:
        layers: Layers by name.
        inputs: `token_ids`, `padding_mask`, `segment_ids`, and perhaps memories.
        permutation_mask: (B, T, T), True = token t may attend to token s; None for all.
        target_mapping: (B, P, T), 1 where target p is token t; None for no targets.

    Returns:
        The content stream (B, T, D), the query stream (B, P, D) or None, and the
        content stream before each block, (B, T, D).
    """
    segment_ids, memory = inputs["segment_ids"], inputs.get("memory_0")
    padding_mask, key_segments = ops.cast(inputs["padding_mask"], "bool"), segment_ids
    if memory is not None:
        # The memory precedes the tokens; all of it is real and in segment 0.
        slots = memory[:, :, 0]
        visible, zeros = ops.ones_like(slots, "bool"), ops.zeros_like(slots, "int32")
        padding_mask = ops.concatenate([visible, padding_mask], axis=1)
        key_segments = ops.concatenate([zeros, segment_ids], axis=1)
    same_segment = ops.equal(
        ops.expand_dims(segment_ids, 2), ops.expand_dims(key_segments, 1)
    )
    embedded = layers["token_embedding"](inputs["token_ids"])
    positions = layers["relative_positions"](embedded, memory)
    start, drop = layers["target_embedding"], layers["embeddings_dropout"]
    content, targets, block_inputs = drop(start(embedded)), None, []
    if target_mapping is not None:
        targets = drop(start(embedded, target_mapping))
    attention = {
        "positions": layers["positions_dropout"](positions),
        "same_segment": same_segment,
        "permutation_mask": permutation_mask,
        "padding_mask": padding_mask,
    }
    for index, block in enumerate(numbered(layers, "block")):
        attention["memory"] = inputs.get(f"memory_{index}")
        block_inputs.append(content)
        if targets is not None:
            targets = block(
                content, targets, target_mapping=target_mapping, **attention
            )
        content = block(content, **attention)
    drop = layers["output_dropout"]
    return drop(content), None if targets is None else drop(targets), block_inputs


def build_xlnet_permutation_lm(
    encoder: Encoder = "base",
    *,
    two_stream: bool = True,
    name: str = "xlnet_permutation_lm",
) -> Functional:
    """Predicts targets in a random order of the tokens: the pre-training objective.

    The logits of a target depend on the tokens that its row of `permutation_mask`
    allows and on its position, never on its own token. `PermutationLMMasking` of
    `keras_attn.training` samples both inputs. A target with an empty row is predicted
    only from its position; in that case, the published code lets it attend to all
    tokens, including itself.

    With `two_stream=False` the logits come from the content stream. That is not a
    language model, because every token is visible where it is predicted; it can fill in
    tokens that were replaced by `<mask>`.

    Args:
        encoder: A model from `build_xlnet`, or the name of a variant.
        two_stream: Whether to add the inputs `permutation_mask` (B, T, T), True = t may
            attend to s, and `target_mapping` (B, P, T), 1 where target p is token t; a
            row of zeros is not a target.
        name: Name of the model.

    Returns:
        A model from the encoder's inputs and these two to logits (B, P, V); with
        `two_stream=False` (B, T, V).

    Reference:
        Yang et al. 2019, sections 2.2 and 2.3 (arXiv:1906.08237).
    """
    check_boolean("two_stream", two_stream)
    encoder = as_encoder(encoder, build_xlnet)
    if not two_stream:
        return heads.masked_lm(encoder, name=name)
    inputs = inputs_like(encoder.input)
    order = keras.Input((None, None), dtype="bool", name="permutation_mask")
    target_mapping = keras.Input((None, None), name="target_mapping")
    layers = by_name(encoder.layers)
    layers["target_embedding"].trainable = True
    _, targets, _ = _two_streams(layers, inputs, order, target_mapping)
    logits = heads.tied_logits(layers["token_embedding"], targets)
    inputs |= {"permutation_mask": order, "target_mapping": target_mapping}
    return Functional(inputs, logits, name=name)


@described_as(heads.next_sentence)
def build_xlnet_next_sentence(
    encoder: Encoder = "base", *, name: str = "xlnet_next_sentence"
) -> Functional:
    """Predicts whether a sentence follows; see `build_bert_next_sentence`.

    XLNet is pre-trained without this objective (section 3.1), so the layer is new.
    """
    return heads.next_sentence(as_encoder(encoder, build_xlnet), name=name)


@described_as(heads.classifier)
def build_xlnet_classifier(
    encoder: Encoder = "base",
    *,
    num_classes: int,
    dropout: Probability = 0.1,
    name: str = "xlnet_classifier",
) -> Functional:
    """Classifies a sentence or a pair, by a hidden tanh layer over `<cls>`.

    Logits are as in `build_bert_classifier`.

    Reference:
        Yang et al. 2019, section 3.4 (arXiv:1906.08237), and its published code.
    """
    encoder = as_encoder(encoder, build_xlnet)
    return heads.classifier(
        encoder, num_classes, dropout=dropout, hidden="tanh", name=name
    )


@described_as(heads.token_classifier)
def build_xlnet_token_classifier(
    encoder: Encoder = "base",
    *,
    num_classes: int,
    dropout: Probability = 0.1,
    name: str = "xlnet_token_classifier",
) -> Functional:
    """Classifies each token; see `build_bert_token_classifier`."""
    encoder = as_encoder(encoder, build_xlnet)
    return heads.token_classifier(encoder, num_classes, dropout=dropout, name=name)


@described_as(heads.span)
def build_xlnet_span_qa(
    encoder: Encoder = "base",
    *,
    dropout: Probability = 0.0,
    name: str = "xlnet_span_qa",
) -> Functional:
    """Predicts the start and the end of an answer; see `build_bert_span_qa`.

    The end does not depend on the start, unlike in the paper's SQuAD model.
    """
    return heads.span(as_encoder(encoder, build_xlnet), dropout=dropout, name=name)


@described_as(heads.sentence_encoder)
def build_xlnet_sentence_encoder(
    encoder: Encoder = "base",
    *,
    pooling: Pooling | Sequence[Pooling] = "mean",
    normalize: bool = True,
    projections: Sequence[Sequence] = (),
    name: str = "xlnet_sentence_encoder",
) -> Functional:
    """One vector per sentence; see `build_bert_sentence_encoder`."""
    encoder = as_encoder(encoder, build_xlnet)
    return heads.sentence_encoder(encoder, pooling, normalize, projections, name)
