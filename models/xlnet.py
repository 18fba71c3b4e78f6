"""XLNet: a language model that learns from both sides, by predicting in any order.

    build_xlnet                  token ids -> a vector a token, and one for all
    build_xlnet_permutation_lm   the published objective: two streams, any order
    build_xlnet_<head>           an encoder -> the logits of a task

                      content stream                    query stream
    start             the tokens' embeddings            one vector w for all targets
    a block           a token sees what comes before    a target sees what comes
                      it in the order, and itself       before it in the order
    end               `sequence_output`                 logits of the targets' tokens

Both streams use the same weights, so an encoder for fine-tuning is the content stream
alone, where every token sees every other. Positions are relative: there is no longest
sequence.

Legend: B batch, T length, P targets, M places of memory, D width, V vocabulary,
C classes. Layers: `token_embedding`, `embeddings_dropout`, `target_embedding`,
`relative_positions`, `positions_dropout`, `block_0`, …, `output_dropout`,
`last_token`; with a memory `segment_memory`.
"""

import keras
from keras import ops

from keras_attn.layers.dropout import Dropout
from keras_attn.layers.relative_position_encoding import RelativePositionEncoding
from keras_attn.layers.token_embedding import OutputBias, TokenEmbedding
from keras_attn.layers.token_pooling import TokenPooling
from keras_attn.layers.xlnet_block import SegmentMemory, TargetEmbedding, XLNetBlock
from keras_attn.models.parts import heads
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import INITIALIZER, as_encoder
from keras_attn.models.parts.registry import ModelCard, register
from keras_attn.models.parts.variants import resolve

VARIANTS = {
    # Yang et al. 2019, appendix A.4, table 8; the base model: of the published code.
    "base": {
        "vocabulary_size": 32_000,
        "num_layers": 12,
        "hidden_dim": 768,
        "num_heads": 12,
        "mlp_dim": 3072,
    },
    "large": {
        "vocabulary_size": 32_000,
        "num_layers": 24,
        "hidden_dim": 1024,
        "num_heads": 16,
        "mlp_dim": 4096,
    },
}


def build_xlnet(
    variant="base",
    *,
    vocabulary_size=None,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    mlp_dim=None,
    memory_length=None,
    max_distance=None,
    activation="gelu",
    layer_norm_epsilon=1e-12,
    dropout=0.1,
    attention_dropout=0.1,
    name="xlnet",
):
    """Token embeddings, then N blocks of attention by content, distance and segment.

    Padding may be anywhere; XLNet's habit is on the left, with `<sep><cls>` at the
    end. Only whether two tokens are of one segment counts, so `segment_ids` may be any
    numbers. The pooled output is the state of the last real token, `<cls>`, as it is:
    the tanh layer that BERT has there belongs to XLNet's classifier.

    The vector `target_embedding` that targets start from counts among the encoder's
    weights, as published, but is read by `build_xlnet_permutation_lm` alone. So it is
    frozen until that is called with the encoder.

    Args:
        variant: A row of `VARIANTS`; the next five override it.
        vocabulary_size: V.
        num_layers: Blocks.
        hidden_dim: D.
        num_heads: Attention heads a block.
        mlp_dim: Width of the feed-forward networks.
        memory_length: States of earlier segments to hand on to the next, M. None =
            there is no memory. With one, the model has inputs and outputs `memory_0`,
            `memory_1`, …, what block 0, 1, … read in the tokens' places, and a token
            sees all of it, as of segment 0. A first segment is given a memory of
            length 0.
        max_distance: Tokens further apart count as this far apart. None = no limit.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding, a position, a
            sub-layer or the output.
        attention_dropout: Probability of dropping an attention probability.
        name: Of the model.

    Returns:
        A model from `token_ids`, `padding_mask` and `segment_ids`, each (B, T), to a
        dictionary of `sequence_output` (B, T, D) and `pooled_output` (B, D). Each
        memory is (B, up to M, D).

    Reference:
        Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language
        Understanding" (arXiv:1906.08237).
    """
    numbers = resolve(
        VARIANTS,
        variant,
        vocabulary_size=vocabulary_size,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
    )
    width = numbers["hidden_dim"]
    inputs = _inputs()
    if memory_length is not None:
        for memory in _memories(numbers["num_layers"]):
            inputs[memory] = keras.Input((None, width), name=memory)
    parts = [
        TokenEmbedding(
            numbers["vocabulary_size"],
            width,
            embeddings_initializer=INITIALIZER,
            name="token_embedding",
        ),
        Dropout(dropout, name="embeddings_dropout"),
        TargetEmbedding(INITIALIZER, trainable=False, name="target_embedding"),
        RelativePositionEncoding(max_distance, name="relative_positions"),
        Dropout(dropout, name="positions_dropout"),
        *(
            XLNetBlock(
                numbers["num_heads"],
                numbers["mlp_dim"],
                activation=activation,
                layer_norm_epsilon=layer_norm_epsilon,
                dropout=dropout,
                attention_dropout=attention_dropout,
                kernel_initializer=INITIALIZER,
                bias_initializer=INITIALIZER,
                name=f"block_{index}",
            )
            for index in range(numbers["num_layers"])
        ),
        Dropout(dropout, name="output_dropout"),
    ]
    part = {layer.name: layer for layer in parts}.__getitem__
    content, _, read = _read(part, numbers["num_layers"], inputs)
    pooled = TokenPooling("last", name="last_token")(content, inputs["padding_mask"])
    outputs = {"sequence_output": content, "pooled_output": pooled}
    if memory_length is not None:
        remember = SegmentMemory(memory_length, name="segment_memory")
        for memory, states in zip(_memories(len(read)), read, strict=True):
            outputs[memory] = remember(states, inputs[memory])
    return Functional(inputs, outputs, name=name)


def _read(part, num_layers, inputs, permutation_mask=None, target_mapping=None):
    """Both streams through all blocks.

    Returns:
        The content stream (B, T, D), the query stream (B, P, D) or None, and what each
        block read in the tokens' places, (B, T, D).
    """
    token_ids, segment_ids = inputs["token_ids"], inputs["segment_ids"]
    padding_mask, seen_segments = ops.cast(inputs["padding_mask"], "bool"), segment_ids
    memories = [inputs.get(name) for name in _memories(num_layers)]
    if memories[0] is not None:
        place = memories[0][:, :, 0]
        padding_mask = _behind(ops.ones_like(place, dtype="bool"), padding_mask)
        seen_segments = _behind(ops.zeros_like(place, dtype="int32"), segment_ids)
    same_segment = ops.equal(
        ops.expand_dims(segment_ids, 2), ops.expand_dims(seen_segments, 1)
    )
    embedded = part("token_embedding")(token_ids)
    positions = part("relative_positions")(embedded, memories[0])
    start, drop = part("target_embedding"), part("embeddings_dropout")
    content, targets, read = drop(start(embedded)), None, []
    if target_mapping is not None:
        targets = drop(start(embedded, target_mapping))
    attending = {
        "positions": part("positions_dropout")(positions),
        "same_segment": same_segment,
        "permutation_mask": permutation_mask,
        "padding_mask": padding_mask,
    }
    for index, memory in enumerate(memories):
        block, attending["memory"] = part(f"block_{index}"), memory
        read.append(content)
        if targets is not None:
            targets = block(
                content, targets, target_mapping=target_mapping, **attending
            )
        content = block(content, **attending)
    drop = part("output_dropout")
    return drop(content), None if targets is None else drop(targets), read


def _memories(num_layers):
    return [f"memory_{index}" for index in range(num_layers)]


def _behind(first, second):
    return ops.concatenate([first, second], axis=1)


def build_xlnet_permutation_lm(
    encoder="base", *, two_stream=True, name="xlnet_permutation_lm"
):
    """The next token in any order of prediction: what XLNet is pre-trained on.

    A target's logits depend on the tokens that its row of `permutation_mask` allows,
    and on its place, never on its own token. `PermutationLMMasking` of
    `keras_attn.training` draws both. A target that may see nothing gets what its place
    alone says; the published code lets it see everything then, itself included.

    With `two_stream=False` logits are those of the content stream, which is no
    language model: every token is seen where it is predicted. It is for filling in
    tokens that were replaced by `<mask>`.

    Args:
        encoder: A model from `build_xlnet`, or the name of a variant.
        two_stream: Whether there are inputs `permutation_mask` (B, T, T), True = t
            may see s, and `target_mapping` (B, P, T), 1 where target p is token t, a
            row of zeros where there is no target.
        name: Of the model.

    Returns:
        A model from the encoder's inputs, and these, to logits (B, P, V); with
        `two_stream=False` (B, T, V).

    Reference:
        Yang et al. 2019, sections 2.2 and 2.3 (arXiv:1906.08237).
    """
    encoder = as_encoder(encoder, build_xlnet)
    if not two_stream:
        logits = heads.masked_lm_logits(encoder, transform=None)
        return Functional(encoder.input, logits, name=name)
    inputs = {
        key: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=key)
        for key, tensor in encoder.input.items()
    }
    inputs["permutation_mask"] = keras.Input(
        (None, None), dtype="bool", name="permutation_mask"
    )
    inputs["target_mapping"] = keras.Input((None, None), name="target_mapping")
    part = encoder.get_layer
    num_layers = sum(layer.name.startswith("block_") for layer in encoder.layers)
    part("target_embedding").trainable = True
    _, targets, _ = _read(
        part, num_layers, inputs, inputs["permutation_mask"], inputs["target_mapping"]
    )
    logits = part("token_embedding")(targets, reverse=True)
    logits = OutputBias(name="masked_lm_logits")(logits)
    return Functional(inputs, logits, name=name)


def build_xlnet_next_sentence(encoder="base", *, name="xlnet_next_sentence"):
    """Whether the second segment follows the first in a text.

    XLNet is pre-trained without it (section 3.1): the head starts from nothing.

    Args:
        encoder: A model from `build_xlnet`, or the name of a variant.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, 2), 0 = it follows.
    """
    return heads.next_sentence(as_encoder(encoder, build_xlnet), name=name)


def build_xlnet_classifier(
    encoder="base", *, num_classes, dropout=0.1, name="xlnet_classifier"
):
    """The class of a sentence, or of a pair of them, by a tanh layer over `<cls>`.

    Args:
        encoder: A model from `build_xlnet`, or the name of a variant.
        num_classes: C; 1 for a regression.
        dropout: Probability of dropping a unit, in front of each layer of the head.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, C).

    Reference:
        Yang et al. 2019, section 3.4 (arXiv:1906.08237), and its published code.
    """
    encoder = as_encoder(encoder, build_xlnet)
    pooled = encoder.output["pooled_output"]
    return heads.classifier(
        encoder, pooled, num_classes, dropout=dropout, hidden="tanh", name=name
    )


def build_xlnet_token_classifier(
    encoder="base", *, num_classes, dropout=0.1, name="xlnet_token_classifier"
):
    """The class of each token.

    Args:
        encoder: A model from `build_xlnet`, or the name of a variant.
        num_classes: C.
        dropout: Probability of dropping a unit of the sequence output.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to logits (B, T, C).
    """
    encoder = as_encoder(encoder, build_xlnet)
    tokens = encoder.output["sequence_output"]
    return heads.classifier(encoder, tokens, num_classes, dropout=dropout, name=name)


def build_xlnet_span_qa(encoder="base", *, dropout=0.0, name="xlnet_span_qa"):
    """Where in a passage the answer to a question starts and ends.

    The end does not depend on the start, as it does in the paper's own SQuAD model.

    Args:
        encoder: A model from `build_xlnet`, or the name of a variant.
        dropout: Probability of dropping a unit of the sequence output.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to a dictionary of logits, `start_logits`
        and `end_logits`, each (B, T).
    """
    encoder = as_encoder(encoder, build_xlnet)
    return heads.span(encoder, dropout=dropout, name=name)


def build_xlnet_sentence_encoder(
    encoder="base", *, pooling="mean", normalize=True, name="xlnet_sentence_encoder"
):
    """One vector a sentence, to compare sentences by.

    Args:
        encoder: A model from `build_xlnet`, or the name of a variant.
        pooling: `"mean"` over the real tokens, or the `"first"` or `"last"` of them.
        normalize: Whether vectors have length 1: their dot product is the cosine.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to embeddings (B, D) in float32.
    """
    encoder = as_encoder(encoder, build_xlnet)
    return heads.sentence_encoder(
        encoder, pooling=pooling, normalize=normalize, name=name
    )


def _inputs():
    names = {"token_ids": "int32", "padding_mask": "bool", "segment_ids": "int32"}
    return {
        name: keras.Input((None,), dtype=dtype, name=name)
        for name, dtype in names.items()
    }


for _variant, _count, _notes in (
    ("base", 117_000_000, "the published code's smaller model"),
    ("large", 340_000_000, "RACE 85.4; SQuAD 2.0 F1 90.7; MNLI 90.8"),
):
    register(
        ModelCard(
            name=f"xlnet_{_variant}",
            family="xlnet",
            title=f"XLNet {_variant}, an encoder",
            paper="Yang et al. 2019, arXiv:1906.08237",
            year=2019,
            task="encoder",
            parameters=_count,
            inputs={
                "token_ids": "(B, T) int32",
                "padding_mask": "(B, T) bool, True = a real token",
                "segment_ids": "(B, T) int32, a number for each segment",
            },
            outputs={
                "sequence_output": "(B, T, D), a vector a token",
                "pooled_output": "(B, D), the state of the last real token",
            },
            notes=_notes,
        ),
        build_xlnet,
        _variant,
    )
