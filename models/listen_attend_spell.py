"""Listen, attend and spell: from the spectrum of speech to its characters.

    h⁰ = BLSTM(x)                               `listener_0`
    hˡ_i = BLSTM([hˡ⁻¹_2i; hˡ⁻¹_2i+1], hˡ_i-1)    `listener_1` … `listener_3`: pyramid
    s_i = LSTMs([y_i-1; c_i-1], s_i-1)          `speller`: state
    e_ij = ⟨φ(s_i), ψ(h_j)⟩                      `speller`: score of position j
    α_i = softmax(e_i)                          `speller`: alignment
    c_i = Σ_j α_ij h_j                           `speller`: context
    p(y_i) = softmax(MLP([s_i; c_i]))           `speller`: logits, before the softmax

The forward pass is `_listen`, then the speller of
`layers/recurrent/attention_speller.py`. The listener's layers are in
`layers/recurrent/pyramidal_blstm.py`. In training on TensorFlow, `kernels/lstm.py`
computes the gradient of every LSTM: of the listener's by `lstm`, of the speller's by
`LoopLSTM`.

The paper states neither the width of the character embeddings nor the sizes of φ, ψ and
the last MLP. Here the embeddings have 256 numbers, φ and ψ are one tanh layer of 512
units each, and the MLP has one such layer below the logits. s_0 and c_0 are zero.
Weights have Keras' default initializers, not U(-0.1, 0.1). The model has 14,284,587
parameters; the paper does not report a count.

Section 3.4 ranks the texts of a beam by log P(y|x) / |y|_c + λ log P_LM(y): the first
term is `decoding.Beam(32, 1.0, normalization="length")`, both are `decoding.rescore`.

Legend: B batch, T frames, F filters, S = ⌈T / 8⌉ positions of the memory, U characters
(in the speller's file T, and U units), V vocabulary.
Layers: `listener_0`, `listener_1`, …, `speller`, and `front_end` in a model that reads
waveforms. `incremental()` finds them by these names.
"""

from typing import Any

import keras

from keras_attn.checks.argument_types import Index
from keras_attn.decoding import IncrementalPair
from keras_attn.layers import AttentionSpeller, LogMelSpectrogram, PyramidalBLSTM
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.decoders.pair_builders import recurrent_pair
from keras_attn.models.parts.functional import (
    Functional,
    by_name,
    numbered,
    sequence_inputs,
)
from keras_attn.ops import move_to_front

# Chan et al. 2016, sections 3.2 and 4. The characters are a to z, 0 to 9, space, comma,
# period, apostrophe, and the tokens for unknown characters, the start and the end.
VARIANTS = {
    "base": {
        "vocabulary_size": 43,
        "num_mels": 40,
        "listener_dim": 256,
        "num_pyramid_layers": 3,
        "embedding_dim": 256,
        "hidden_dim": 512,
        "num_layers": 2,
        "attention_dim": 512,
        "readout_dim": 512,
        "sampling_probability": 0.1,
    }
}
CARDS = model_cards(
    "listen_attend_spell",
    {"base": None},
    training=Training("3 million queries of Google voice search", "section 4"),
    scores=[
        scored("word error rate", setting, "table 1", {"base": score})
        for setting, score in (
            ("with sampling, beam of 32", 14.1),
            ("with sampling, beam of 32, rescored by a language model", 10.3),
        )
    ],
    title="Speech to characters: a pyramid of bidirectional LSTMs, and a speller",
    paper="Chan et al. 2016, arXiv:1508.01211",
    task="speech recognition",
    inputs={
        "features": "(B, T, 40) float, log-mel filter banks every 10 ms",
        "padding_mask": "(B, T) bool, True = a real frame",
        "decoder_token_ids": "(B, U) int32, the characters after the start token",
    },
    outputs={"logits": "(B, U, V), before the softmax"},
)


@registered(CARDS, VARIANTS)
def build_listen_attend_spell(
    variant: str = "base",
    *,
    vocabulary_size: int = FROM_VARIANT,
    num_mels: int = FROM_VARIANT,
    listener_dim: int = FROM_VARIANT,
    num_pyramid_layers: Index = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    attention_dim: int = FROM_VARIANT,
    readout_dim: int = FROM_VARIANT,
    sampling_probability: float = FROM_VARIANT,
    return_attention_scores: bool = False,
    name: str = "listen_attend_spell",
) -> "ListenAttendSpell":
    """A pyramid of bidirectional LSTMs that listens, and LSTMs that attend and spell.

    Every layer of the pyramid halves the number of frames. `with_front_end` turns the
    model into one that reads waveforms.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V, number of characters, including the special tokens.
        num_mels: F, number of filters per frame.
        listener_dim: Units of each direction of the listener's LSTMs.
        num_pyramid_layers: Layers after the first, each of which halves the frames.
        embedding_dim: Width of the character embeddings.
        hidden_dim: Units of each LSTM of the speller.
        num_layers: LSTMs of the speller.
        attention_dim: Units of φ and of ψ.
        readout_dim: Units of the layer below the logits.
        sampling_probability: In training, the probability that the speller reads a
            character sampled from its own last prediction instead of the true one, so
            that it learns to recover from errors.
        return_attention_scores: Whether the model also returns the alignment, for
            example to display it on a device.
        name: Name of the model.

    Returns:
        A model from `features` (B, T, F), `padding_mask` (B, T) and
        `decoder_token_ids` (B, U) to logits (B, U, V); with
        `return_attention_scores=True` to a dictionary of `logits` and
        `attention_scores`, (B, 1, U, S). Padding may be at either end. The positions of
        the scores are counted from the first real frame.

    Reference:
        Chan, Jaitly, Le, Vinyals 2016, "Listen, Attend and Spell" (arXiv:1508.01211).
    """
    layers = [
        PyramidalBLSTM(
            listener_dim, reduction=2 if index else 1, name=f"listener_{index}"
        )
        for index in range(1 + num_pyramid_layers)
    ]
    speller = AttentionSpeller(
        vocabulary_size,
        embedding_dim=embedding_dim,
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        attention_dim=attention_dim,
        readout_dim=readout_dim,
        sampling_probability=sampling_probability,
        name="speller",
    )
    features: Any = keras.Input((None, num_mels), name="features")
    inputs = {
        "features": features,
        **sequence_inputs("padding_mask", "decoder_token_ids"),
    }
    layers = by_name([*layers, speller])
    return _assemble(layers, inputs, return_attention_scores, name)


def _assemble(layers, inputs, return_attention_scores, name):
    """The model of these layers and inputs."""
    memory, mask = _listen(layers, inputs)
    spelled = layers["speller"](
        inputs["decoder_token_ids"],
        memory,
        memory_padding_mask=mask,
        return_attention_scores=return_attention_scores,
    )
    outputs = spelled["logits"]
    if return_attention_scores:
        kept = ("logits", "attention_scores")
        outputs = {output: spelled[output] for output in kept}
    return ListenAttendSpell(inputs=inputs, outputs=outputs, name=name)


def _listen(layers, inputs):
    """The memory h, (B, S, 2 · listener_dim), and its mask, (B, S)."""
    if "front_end" in layers:
        frames = layers["front_end"](inputs["waveform"], inputs["padding_mask"])
        hidden, mask = frames["features"], frames["padding_mask"]
    else:
        # Otherwise padding would determine which frames form a pair.
        hidden, mask = move_to_front(inputs["features"], inputs["padding_mask"])
    for layer in numbered(layers, "listener"):
        hidden, mask = layer(hidden, mask)
    return hidden, mask


@keras.saving.register_keras_serializable("keras_attn")
class ListenAttendSpell(Functional):
    """The model of `build_listen_attend_spell`, with incremental decoding."""

    def with_front_end(self, front_end, *, name=None):
        """A model of waveforms that shares its layers with this model of features.

        This lets a model train on features that are computed once, and ship with raw
        audio as its input.

        Args:
            front_end: The `LogMelSpectrogram` that computed the features.
            name: Name of the new model. Default: the name of this one.

        Returns:
            A model from `waveform` (B, N), its `padding_mask` (B, N), True = a real
            sample, padding at the end, and `decoder_token_ids` (B, U), to the outputs
            of this model.

        Raises:
            TypeError: If `front_end` is not a `LogMelSpectrogram`.
            ValueError: If this model already has a front end, or its features have a
                different width.
        """
        layers = by_name(self.layers)
        if not isinstance(front_end, LogMelSpectrogram):
            raise TypeError(
                "`front_end` must be a LogMelSpectrogram. "
                f"Received: front_end={front_end!r}"
            )
        if "front_end" in layers:
            raise ValueError(
                "`with_front_end` needs a model of features. Received: a model of "
                f"waveforms, {self.name!r}"
            )
        num_mels = self.input["features"].shape[-1]
        if front_end.num_mels != num_mels:
            raise ValueError(
                f"`front_end` must have the model's {num_mels} filters. "
                f"Received: front_end.num_mels={front_end.num_mels}"
            )
        # A layer in a graph keeps its name, by which it is found.
        config = {**front_end.get_config(), "name": "front_end"}
        layers["front_end"] = LogMelSpectrogram.from_config(config)
        waveform: Any = keras.Input((None,), name="waveform")
        inputs = {
            "waveform": waveform,
            **sequence_inputs("padding_mask", "decoder_token_ids"),
        }
        has_scores = isinstance(self.output, dict)
        return _assemble(layers, inputs, has_scores, name or self.name)

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for decoding character by character.

        The state holds `h_0`, `c_0`, `h_1`, … of the speller's LSTMs and `context`,
        which change with each step, and `memory`, `memory_padding_mask` and
        `projected_memory`, which don't.

        Args:
            max_length: Has no effect: the state of an LSTM has a fixed size.
        """
        layers = by_name(self.layers)
        speller = layers["speller"]
        names = _state_names(speller)

        def listen(inputs):
            memory, mask = _listen(layers, inputs)
            return {"memory": memory, "memory_padding_mask": mask}

        def spell(decoder_token_ids, state):
            is_start = "context" not in state
            spelled = speller(
                decoder_token_ids,
                state["memory"],
                None if is_start else [state[name] for name in names],
                memory_padding_mask=state["memory_padding_mask"],
                projected_memory=state.get("projected_memory"),
            )
            changes = dict(zip(names, spelled["final_state"], strict=True))
            if is_start:
                changes["projected_memory"] = spelled["projected_memory"]
            return spelled["logits"], changes

        return recurrent_pair(dict(self.input), listen, spell)


def _state_names(speller) -> list[str]:
    """Names of the speller's states, in the order of its `final_state`."""
    names = [f"{kind}_{index}" for index in range(speller.num_layers) for kind in "hc"]
    return [*names, "context"]
