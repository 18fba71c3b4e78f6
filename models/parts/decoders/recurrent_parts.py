"""Shared by recurrent encoder-decoders: embeddings, recurrent layers, decoding.

Legend: B batch, S source length, T target length, E embedding width, M width of the
memory, U units, V target vocabulary.
"""

import functools
from typing import Any

from keras.layers import Concatenate, GRUCell

from keras_attn.decoding import IncrementalPair
from keras_attn.layers import Dense, Embedding, Maxout
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.recurrent.recurrent import Recurrent
from keras_attn.models.parts.decoders.pair_builders import build_pair, recurrent_pair
from keras_attn.models.parts.functional import by_name, sequence_inputs
from keras_attn.models.parts.heads import logits_layer


def embedding_layers(
    source_vocabulary_size, target_vocabulary_size, embedding_dim, dropout
) -> list:
    """Embeddings of source and target tokens, each with dropout.

    Builders take the descriptions of their arguments from here.

    Args:
        source_vocabulary_size: Number of source tokens.
        target_vocabulary_size: V, the number of target tokens.
        embedding_dim: Width of the token embeddings.
        dropout: Probability of dropping a unit of an embedding, and of the readout if
            there is one; the papers use no dropout.
    """
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
    """The layer that outputs one logit per target token of `embedding_layers`."""
    return logits_layer(by_name(embeddings)["target_embedding"].input_dim, "logits")


def translation_inputs() -> dict[str, Any]:
    """The inputs of an encoder-decoder: source, its mask, and the target so far."""
    return sequence_inputs("token_ids", "padding_mask", "decoder_token_ids")


def translation_pair(layers, prefill, step) -> IncrementalPair:
    """The pair of models for functions that continue the target; see `build_pair`."""
    return build_pair(
        translation_inputs(), prefill, step, **_translation_fields(layers)
    )


def captioner_pair(model, look, tell) -> IncrementalPair:
    """The pair of models of a captioner whose image is the layer `places`.

    Args:
        model: The captioner.
        look: `(layers, locations) -> state`, before the first word.
        tell: `(layers, decoder_token_ids, state) -> logits, changes`.
    """
    layers = by_name(model.layers)
    return recurrent_pair(
        model.input,
        lambda _: look(layers, layers["places"].output),
        functools.partial(tell, layers),
    )


def attention_pair(layers, encode, decode) -> IncrementalPair:
    """The prefill and step models of a decoder that is an `AttentionRNN`.

    The state is `decoder_state` (B, U), which changes with each step, and `memory`
    (B, S, M), perhaps with a `padding_mask` (B, S), and `projected_memory` for scores
    that project it, which stay the same.

    Args:
        layers: Layers of the model by name.
        encode: From layers and inputs to the state before the first token.
        decode: From layers, target tokens (B, T) and the state to logits (B, T, V) and
            the outputs of the `AttentionRNN`.
    """

    def advance(decoder_token_ids, state):
        logits, decoded = decode(layers, decoder_token_ids, state)
        return logits, decoder_changes(layers, decoded, state)

    return recurrent_pair(
        translation_inputs(),
        functools.partial(encode, layers),
        advance,
        **_translation_fields(layers),
    )


def _translation_fields(layers):
    vocabulary_size = layers["source_embedding"].input_dim
    return {"prompt": "decoder_token_ids", "source_vocabulary_size": vocabulary_size}


def decoder_changes(layers, decoded, state) -> dict[str, Any]:
    """The states changed by the layer `decoder`, an `AttentionRNN`, by name.

    They are `decoder_state` and, if the cell is an LSTM, `cell_state`, (B, U). The
    first time, `projected_memory` is added if the scores project the memory.

    Args:
        layers: Layers of the model by name.
        decoded: What the decoder returned.
        state: The state before.
    """
    last = decoded["final_state"]
    names = ("decoder_state", "cell_state")[: len(last)]
    changes: dict[str, Any] = dict(zip(names, last, strict=True))
    if "projected_memory" not in state and layers["decoder"].attention.projects_key:
        changes["projected_memory"] = decoded["projected_memory"]
    return changes


def step_of_cells(lstms, hidden, state):
    """One step of stacked LSTMs, by their cells, without loops.

    LiteRT would have to run a loop.

    Args:
        lstms: The layers, from `recurrent_layer`.
        hidden: The input of the first one, (B, E).
        state: The states named by `layer_states`.

    Returns:
        The output of the last one, (B, U), and the states after the step, by name.
    """
    after = []
    for index, lstm in enumerate(lstms):
        hidden, last = lstm.cell(hidden, [state[f"{x}_{index}"] for x in "hc"])
        after.append(last)
    return hidden, layer_states(after)


def layer_states(states) -> dict[str, Any]:
    """Names `h_0`, `c_0`, `h_1`, … for the states [h, c] of every layer."""
    return {
        f"{kind}_{index}": tensor
        for index, state in enumerate(states)
        for kind, tensor in zip("hc", state, strict=True)
    }
