"""Recurrent sequence-to-sequence models without attention.

| builder                   | what the decoder reads of the source                   |
|---------------------------|--------------------------------------------------------|
| `build_seq2seq_sutskever` | the encoder's last states, as its own initial states   |
| `build_seq2seq_context`   | the encoder's last state, as the context of every step |

`rnnsearch.py` replaces the single context vector by attention to all states of the
encoder. The context model is the special case of a memory with one position: the
softmax over it is 1, so every step gets the same context. `rnnencdec_30` and
`rnnencdec_50` are this model as Bahdanau et al. compare it with RNNsearch.

The loop of the context model's decoder: `layers/recurrent/attention_rnn.py`;
embeddings, other recurrent layers and readout:
`models/parts/decoders/recurrent_parts.py`.

Legend: B batch, S source length, T target length, V target vocabulary, U units.
Layers: `source_embedding`, `source_dropout`, `target_embedding`, `target_dropout`,
`logits`, and `encoder_0`, …, `decoder_0`, … (Sutskever) or `encoder`, `initial_state`,
`decoder`, `readout_inputs`, `readout`, `maxout`, `readout_dropout` (context).
`incremental()` finds them by these names.
"""

import functools

import keras
from keras import ops
from keras.layers import LSTMCell

from keras_attn.checks.argument_types import Probability
from keras_attn.decoding import IncrementalPair
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import AttentionRNN, Dense, DotProductAttention
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.decoders import recurrent_parts
from keras_attn.models.parts.functional import Functional, by_name, numbered

VARIANTS = {
    # Sutskever et al. 2014, section 3.4.
    "seq2seq_sutskever": {
        "base": {
            "source_vocabulary_size": 160_000,
            "target_vocabulary_size": 80_000,
            "embedding_dim": 1000,
            "hidden_dim": 1000,
            "num_layers": 4,
        },
    },
    # Cho et al. 2014, sections 4.1 and A.
    "seq2seq_context": {
        "base": {
            "source_vocabulary_size": 15_000,
            "target_vocabulary_size": 15_000,
            "embedding_dim": 100,
            "hidden_dim": 1000,
            "maxout_dim": 500,
        },
        # Bahdanau et al. 2015, A.2; trained on sentences of up to 30 or 50 words.
        **{
            f"rnnencdec_{max_words}": {
                "source_vocabulary_size": 30_000,
                "target_vocabulary_size": 30_000,
                "embedding_dim": 620,
                "hidden_dim": 1000,
                "maxout_dim": 500,
            }
            for max_words in ("30", "50")
        },
    },
}
# Bahdanau et al. 2015, as of the models with attention in `rnnsearch.py`.
_training = functools.partial(Training, "WMT'14 En-Fr", "table 2", devices=1)
CARDS = {
    "seq2seq_sutskever": model_cards(
        "seq2seq_sutskever",
        {"base": 384_000_000},
        training=Training(
            "WMT'14 En-Fr",
            "sections 3.1, 3.4 and 3.5",
            tokens=7.5 * 304e6,  # English words; there are 348 million French ones.
            hardware="GPU",
            devices=8,
            hours=10 * 24,
        ),
        scores=[
            scored("BLEU En-Fr", "beam of 12", "table 1", {"base": 30.59}),
            scored("BLEU En-Fr", "five models, beam of 12", "table 1", {"base": 34.81}),
        ],
        title="Stacked LSTMs: last states passed to the decoder, source reversed",
        paper="Sutskever, Vinyals, Le 2014, arXiv:1409.3215",
        **tasks.TRANSLATION,
    ),
    "seq2seq_context": {
        **model_cards(
            "seq2seq_context",
            {"base": None},
            notes="it scores the phrase pairs of a system with BLEU 33.30 without it",
            training=Training("WMT'14 En-Fr", "sections 4 and 4.1", hours=3 * 24),
            scores=[
                scored("BLEU En-Fr", "with a phrase table", "table 1", {"base": 33.87})
            ],
            title="GRU encoder-decoder with one fixed context",
            paper="Cho et al. 2014, arXiv:1406.1078",
            **tasks.TRANSLATION,
        ),
        **model_cards(
            "{variant}",
            {"rnnencdec_30": None, "rnnencdec_50": None},
            notes={
                f"rnnencdec_{words}": f"trained on sentences of up to {words} words"
                for words in (30, 50)
            },
            training={
                "rnnencdec_30": _training(hardware="TITAN Black", hours=109),
                "rnnencdec_50": _training(hardware="Quadro K6000", hours=108),
            },
            scores=[
                scored(
                    "BLEU En-Fr",
                    "newstest 2014",
                    "table 1",
                    {"rnnencdec_30": 13.93, "rnnencdec_50": 17.82},
                )
            ],
            title="GRU encoder-decoder with one fixed context, at RNNsearch's sizes",
            paper="Bahdanau, Cho, Bengio 2015, arXiv:1409.0473",
            **tasks.TRANSLATION,
        ),
    },
}


@registered(CARDS["seq2seq_sutskever"], VARIANTS["seq2seq_sutskever"])
@described_as(recurrent_parts.embedding_layers)
def build_seq2seq_sutskever(
    variant: str = "base",
    *,
    source_vocabulary_size: int = FROM_VARIANT,
    target_vocabulary_size: int = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    dropout: Probability = 0.0,
    name: str = "seq2seq_sutskever",
) -> "SutskeverSeq2Seq":
    """Stacked LSTMs: the encoder's last states are the decoder's initial states.

    The source is reversed, which brings its first words close to the target's first
    words.

    Args:
        variant: A row of `VARIANTS["seq2seq_sutskever"]`, which supplies every argument
            not given.
        hidden_dim: U, units of each LSTM.
        num_layers: LSTMs in the encoder, and in the decoder.
        name: Name of the model.

    Returns:
        A model from `token_ids` (B, S), `padding_mask` (B, S) and
        `decoder_token_ids` (B, T) to logits (B, T, V).

    Reference:
        Sutskever, Vinyals, Le 2014, "Sequence to Sequence Learning with Neural
        Networks" (arXiv:1409.3215).
    """
    layers = recurrent_parts.embedding_layers(
        source_vocabulary_size, target_vocabulary_size, embedding_dim, dropout
    )
    for side in ("encoder", "decoder"):
        for index in range(num_layers):
            cell = LSTMCell(hidden_dim, name=f"{side}_{index}_cell")
            layers.append(recurrent_parts.recurrent_layer(cell, f"{side}_{index}"))
    layers.append(recurrent_parts.target_logits(layers))
    layers = by_name(layers)
    inputs = recurrent_parts.translation_inputs()
    states = _encode_reversed(layers, inputs)
    logits, _ = _decode_stacked(layers, inputs["decoder_token_ids"], states)
    return SutskeverSeq2Seq(inputs=inputs, outputs=logits, name=name)


def _encode_reversed(layers, inputs):
    """The last states [h, c] of every encoder layer, each (B, U)."""
    source = layers["source_embedding"](ops.flip(inputs["token_ids"], axis=1))
    hidden = layers["source_dropout"](source)
    mask = ops.flip(inputs["padding_mask"], axis=1)
    states = []
    for lstm in numbered(layers, "encoder"):
        hidden, *state = lstm(hidden, mask=mask)
        states.append(state)
    return states


def _decode_stacked(layers, decoder_token_ids, states):
    """Logits (B, T, V) and the last states [h, c] of every decoder layer."""
    target = layers["target_embedding"](decoder_token_ids)
    hidden = layers["target_dropout"](target)
    last_states = []
    for lstm, state in zip(numbered(layers, "decoder"), states, strict=True):
        hidden, *last = lstm(hidden, initial_state=state)
        last_states.append(last)
    return layers["logits"](hidden), last_states


@keras.saving.register_keras_serializable("keras_attn")
class SutskeverSeq2Seq(Functional):
    """The functional model of `build_seq2seq_sutskever`, with incremental decoding."""

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for decoding token by token.

        The state holds `h_0`, `c_0`, `h_1`, … of the decoder's layers, each (B, U).

        Args:
            max_length: Has no effect: the state of an LSTM has a fixed size.
        """
        layers = by_name(self.layers)

        def prefill(inputs):
            states = _encode_reversed(layers, inputs)
            logits, states = _decode_stacked(
                layers, inputs["decoder_token_ids"], states
            )
            return logits[:, -1], recurrent_parts.layer_states(states)

        def step(token_ids, state):
            hidden = layers["target_embedding"](token_ids)
            lstms = numbered(layers, "decoder")
            hidden, after = recurrent_parts.step_of_cells(lstms, hidden, state)
            return layers["logits"](hidden), after

        return recurrent_parts.translation_pair(layers, prefill, step)


@registered(CARDS["seq2seq_context"], VARIANTS["seq2seq_context"])
@described_as(recurrent_parts.embedding_layers)
def build_seq2seq_context(
    variant: str = "base",
    *,
    source_vocabulary_size: int = FROM_VARIANT,
    target_vocabulary_size: int = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    maxout_dim: int = FROM_VARIANT,
    dropout: Probability = 0.0,
    name: str = "seq2seq_context",
) -> "ContextSeq2Seq":
    """One fixed context: `c = h_S`, `s_0 = tanh(W c)`, `s_t = g(y_{t-1}, s_{t-1}, c)`.

    The readout is a maxout layer over `[s_t; y_{t-1}; c]`. Two simplifications that are
    common in lectures: the context is the encoder's state itself, without a tanh layer,
    and the output matrix is not factorized.

    Args:
        variant: A row of `VARIANTS["seq2seq_context"]`, which supplies every argument
            not given.
        hidden_dim: U, units of each GRU.
        maxout_dim: Units of the readout.
        name: Name of the model.

    Returns:
        A model from `token_ids` (B, S), `padding_mask` (B, S) and
        `decoder_token_ids` (B, T) to logits (B, T, V).

    Reference:
        Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder
        for Statistical Machine Translation" (arXiv:1406.1078). RNNencdec: Bahdanau,
        Cho, Bengio 2015, section 4.2 and A.2 (arXiv:1409.0473).
    """
    embedding_layers = recurrent_parts.embedding_layers(
        source_vocabulary_size, target_vocabulary_size, embedding_dim, dropout
    )
    layers = by_name(
        [
            *embedding_layers,
            recurrent_parts.gru(hidden_dim, "encoder"),
            AttentionRNN(
                # A softmax over one position is 1 for any score.
                attention=DotProductAttention("dot", name="attention"),
                cell=recurrent_parts.gru_cell(hidden_dim, "decoder_cell"),
                name="decoder",
            ),
            Dense(hidden_dim, activation="tanh", name="initial_state"),
            *recurrent_parts.readout_layers(maxout_dim, embedding_layers),
        ]
    )
    inputs = recurrent_parts.translation_inputs()
    state = _encode_context(layers, inputs)
    logits, _ = _decode_context(layers, inputs["decoder_token_ids"], state)
    return ContextSeq2Seq(inputs=inputs, outputs=logits, name=name)


def _encode_context(layers, inputs):
    """The context as a memory (B, 1, U), and s_0 (B, U)."""
    source = layers["source_embedding"](inputs["token_ids"])
    hidden = layers["source_dropout"](source)
    _, context = layers["encoder"](hidden, mask=inputs["padding_mask"])
    return {
        "memory": ops.expand_dims(context, 1),
        "decoder_state": layers["initial_state"](context),
    }


def _decode_context(layers, decoder_token_ids, state):
    """Logits (B, T, V), and the outputs of the `AttentionRNN`."""
    target = layers["target_embedding"](decoder_token_ids)
    target = layers["target_dropout"](target)
    decoded = layers["decoder"](target, state["memory"], state["decoder_state"])
    features = [decoded["states"], target, decoded["contexts"]]
    readout = layers["readout"](layers["readout_inputs"](features))
    readout = layers["readout_dropout"](layers["maxout"](readout))
    return layers["logits"](readout), decoded


@keras.saving.register_keras_serializable("keras_attn")
class ContextSeq2Seq(Functional):
    """The functional model of `build_seq2seq_context`, with incremental decoding."""

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for decoding token by token; see `recurrent_parts.attention_pair`.

        Args:
            max_length: Has no effect: the state of a GRU has a fixed size.
        """
        layers = by_name(self.layers)
        return recurrent_parts.attention_pair(layers, _encode_context, _decode_context)
