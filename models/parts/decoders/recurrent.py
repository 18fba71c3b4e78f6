"""What recurrent encoder-decoders share: embeddings, recurrent layers, decoding.

Legend: B batch, S source length, T target length, E embedding width, M width of the
memory, U units, V target vocabulary.
"""

from typing import Any, TypedDict

import keras
from keras import ops
from keras.layers import Concatenate, Dense, Embedding, GRUCell

from keras_attn.decoding import IncrementalPair
from keras_attn.layers import Maxout
from keras_attn.layers.blocks.dropout import Dropout
from keras_attn.layers.recurrent.recurrent import Recurrent
from keras_attn.models.parts.functional import by_name, sequence_inputs
from keras_attn.models.parts.heads import logits_layer
from keras_attn.models.parts.variants import FROM_VARIANT


class EmbeddingOptions(TypedDict, total=False):
    """Types of the options of `embedding_layers`, which all builders pass on."""

    source_vocabulary_size: int
    target_vocabulary_size: int
    embedding_dim: int
    dropout: float


def embedding_layers(
    *,
    source_vocabulary_size: int = FROM_VARIANT,
    target_vocabulary_size: int = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    dropout: float = 0.0,
) -> list:
    """Embeddings of source and target tokens, each with dropout."""
    return [
        Embedding(source_vocabulary_size, embedding_dim, name="source_embedding"),
        Dropout(dropout, name="source_dropout"),
        Embedding(target_vocabulary_size, embedding_dim, name="target_embedding"),
        Dropout(dropout, name="target_dropout"),
    ]


def gru_cell(units, name):
    """A GRU cell as in the papers: the reset gate comes before the product."""
    return GRUCell(units, reset_after=False, name=name)


def gru(units, name):
    """A GRU layer that returns all states and the last."""
    return recurrent_layer(gru_cell(units, f"{name}_cell"), name)


def recurrent_layer(cell, name):
    """A layer of any recurrent cell that returns all states and the last."""
    return Recurrent(cell, return_sequences=True, return_state=True, name=name)


def readout_layers(maxout_dim, embeddings) -> list:
    """The layers from a decoder's state, embedding and context to logits.

    Args:
        maxout_dim: Units of the readout.
        embeddings: From `embedding_layers`; the readout has their dropout.
    """
    return [
        Concatenate(name="readout_inputs"),
        Dense(2 * maxout_dim, name="readout"),
        Maxout(name="maxout"),
        Dropout(by_name(embeddings)["target_dropout"].rate, name="readout_dropout"),
        target_logits(embeddings),
    ]


def target_logits(embeddings):
    """The layer to one logit for each target token of `embedding_layers`."""
    return logits_layer(by_name(embeddings)["target_embedding"].input_dim, "logits")


def translation_inputs() -> dict[str, Any]:
    """The inputs of an encoder-decoder: source, its mask, and the target so far."""
    return sequence_inputs("token_ids", "padding_mask", "decoder_token_ids")


def translation_pair(layers, prefill, step) -> IncrementalPair:
    """An `IncrementalPair` that continues the target."""
    return IncrementalPair(
        prefill,
        step,
        prompt="decoder_token_ids",
        source_vocabulary_size=layers["source_embedding"].input_dim,
    )


def attention_pair(layers, encode, decode) -> IncrementalPair:
    """The prefill and step models of a decoder that is an `AttentionRNN`.

    `decoder_state` (B, U) changes with each step. `memory` (B, S, M), its mask
    `padding_mask` and, for scores that project it, `projected_memory` stay the same.

    Args:
        layers: Layers of the model by name.
        encode: From layers and inputs to the memory (B, S, M), its mask (B, S) or
            None, and s_0 (B, U).
        decode: From layers, target tokens (B, T), memory and state to logits (B, T, V)
            and the outputs of the `AttentionRNN`; takes `memory_padding_mask` and
            `projected_memory`.
    """
    inputs = translation_inputs()
    memory, memory_mask, state = encode(layers, inputs)
    logits, decoded = decode(
        layers,
        inputs["decoder_token_ids"],
        memory,
        state,
        memory_padding_mask=memory_mask,
    )
    (decoder_state,) = decoded["final_state"]
    states = {"decoder_state": decoder_state, "memory": memory}
    if layers["decoder"].attention.projects_key:
        states["projected_memory"] = decoded["projected_memory"]
    prefill = keras.Model(inputs, {"logits": logits[:, -1], **states})

    if memory_mask is not None:
        # Not an output of `prefill`: `generate` passes the input on.
        states["padding_mask"] = memory_mask
    before = {
        name: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=name)
        for name, tensor in states.items()
    }
    token_ids = keras.Input((), dtype="int32", name="token_ids")
    logits, decoded = decode(
        layers,
        ops.expand_dims(token_ids, 1),
        before["memory"],
        before["decoder_state"],
        memory_padding_mask=before.get("padding_mask"),
        projected_memory=before.get("projected_memory"),
    )
    (decoder_state,) = decoded["final_state"]
    step = keras.Model(
        {"token_ids": token_ids, **before},
        {"logits": logits[:, 0], "decoder_state": decoder_state},
    )
    return translation_pair(layers, prefill, step)
