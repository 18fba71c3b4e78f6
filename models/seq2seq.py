"""Recurrent sequence-to-sequence: three ways to hand a sentence to a decoder.

| builder                   | what the decoder gets of the source                    |
|---------------------------|--------------------------------------------------------|
| `build_seq2seq_sutskever` | the encoder's last states, as its own first states     |
| `build_seq2seq_context`   | one vector, the encoder's last state, at every step    |
| `build_rnnsearch`         | all of the encoder's states, weighted anew every step  |

The second is the third with a memory of one place: there is nothing to choose, so
every step gets the same context. Both share one decoder here.

Legend: B batch, S source length, T target length, V target vocabulary, U units.
Layers are named as they are below; `incremental()` finds them by these names.
"""

import keras
from keras import ops
from keras.layers import RNN, Concatenate, Dense, Embedding, GRUCell, LSTMCell

from keras_attn.checks import check_choice
from keras_attn.decoding import IncrementalPair
from keras_attn.layers import (
    AdditiveAttention,
    AttentionRNN,
    DotProductAttention,
    Maxout,
)
from keras_attn.layers.dot_product_attention import SCORES
from keras_attn.layers.dropout import Dropout
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.registry import ModelCard, register
from keras_attn.models.parts.variants import resolve

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
    },
    # Bahdanau et al. 2015, A.2; trained on sentences of up to 30 or 50 words.
    "rnnsearch": {
        length: {
            "source_vocabulary_size": 30_000,
            "target_vocabulary_size": 30_000,
            "embedding_dim": 620,
            "hidden_dim": 1000,
            "attention_dim": 1000,
            "maxout_dim": 500,
        }
        for length in ("30", "50")
    },
}


def build_seq2seq_sutskever(
    variant="base",
    *,
    source_vocabulary_size=None,
    target_vocabulary_size=None,
    embedding_dim=None,
    hidden_dim=None,
    num_layers=None,
    dropout=0.0,
    name="seq2seq_sutskever",
):
    """Stacked LSTMs: the encoder's last states become the decoder's first.

    The source is read backwards, which brings its first words next to the target's
    first words.

    Args:
        variant: A row of `VARIANTS["seq2seq_sutskever"]`; the next five override it.
        source_vocabulary_size: Source tokens there are.
        target_vocabulary_size: V.
        embedding_dim: Width of the token embeddings.
        hidden_dim: U, units of each LSTM.
        num_layers: LSTMs in the encoder, and in the decoder.
        dropout: Probability of dropping an embedding unit; the paper has none.
        name: Of the model.

    Returns:
        A model from `token_ids` (B, S), `padding_mask` (B, S) and
        `decoder_token_ids` (B, T) to logits (B, T, V).

    Reference:
        Sutskever, Vinyals, Le 2014, "Sequence to Sequence Learning with Neural
        Networks" (arXiv:1409.3215).
    """
    numbers = resolve(
        VARIANTS["seq2seq_sutskever"],
        variant,
        source_vocabulary_size=source_vocabulary_size,
        target_vocabulary_size=target_vocabulary_size,
        embedding_dim=embedding_dim,
        hidden_dim=hidden_dim,
        num_layers=num_layers,
    )
    parts = [
        *_embeddings(numbers, dropout),
        *(
            _recurrent(LSTMCell, numbers["hidden_dim"], f"{side}_{index}")
            for side in ("encoder", "decoder")
            for index in range(numbers["num_layers"])
        ),
        _logits(numbers),
    ]
    part = {layer.name: layer for layer in parts}.__getitem__
    inputs = _inputs()
    states = _read_backwards(part, numbers["num_layers"], inputs)
    logits, _ = _write(part, inputs["decoder_token_ids"], states)
    return SutskeverSeq2Seq(inputs=inputs, outputs=logits, name=name)


def _read_backwards(part, num_layers, inputs):
    """The last states [h, c] of every encoder layer, each (B, U)."""
    source = part("source_embedding")(ops.flip(inputs["token_ids"], axis=1))
    hidden = part("source_dropout")(source)
    mask = ops.flip(inputs["padding_mask"], axis=1)
    states = []
    for index in range(num_layers):
        hidden, *state = part(f"encoder_{index}")(hidden, mask=mask)
        states.append(state)
    return states


def _write(part, decoder_token_ids, states):
    """Logits (B, T, V) and the last states of every decoder layer."""
    target = part("target_embedding")(decoder_token_ids)
    hidden = part("target_dropout")(target)
    last_states = []
    for index, state in enumerate(states):
        hidden, *last = part(f"decoder_{index}")(hidden, initial_state=state)
        last_states.append(last)
    return part("logits")(hidden), last_states


@keras.saving.register_keras_serializable("keras_attn")
class SutskeverSeq2Seq(Functional):
    """The functional model of `build_seq2seq_sutskever`, which can decode."""

    def incremental(self, max_length=None) -> IncrementalPair:
        """Its two halves for decoding; the state is h and c of every layer, (B, U).

        Args:
            max_length: Of no effect: what an LSTM remembers has one size.
        """
        part = self.get_layer
        num_layers = sum(layer.name.startswith("encoder_") for layer in self.layers)

        def named(states):
            return {
                f"{kind}_{index}": tensor
                for index, state in enumerate(states)
                for kind, tensor in zip("hc", state, strict=True)
            }

        inputs = _inputs()
        states = _read_backwards(part, num_layers, inputs)
        logits, states = _write(part, inputs["decoder_token_ids"], states)
        prefill = keras.Model(inputs, {"logits": logits[:, -1], **named(states)})

        token_ids = keras.Input((), dtype="int32", name="token_ids")
        units = part("decoder_0").cell.units
        before = [
            [keras.Input((units,), name=f"{kind}_{index}") for kind in "hc"]
            for index in range(num_layers)
        ]
        hidden, after = part("target_embedding")(token_ids), []
        for index, state in enumerate(before):
            # The cell alone: one step needs no loop, which LiteRT would have to run.
            hidden, state = part(f"decoder_{index}").cell(hidden, state)
            after.append(state)
        step = keras.Model(
            {"token_ids": token_ids, **named(before)},
            {"logits": part("logits")(hidden), **named(after)},
        )
        return _pair(part, prefill, step)


def build_seq2seq_context(
    variant="base",
    *,
    source_vocabulary_size=None,
    target_vocabulary_size=None,
    embedding_dim=None,
    hidden_dim=None,
    maxout_dim=None,
    dropout=0.0,
    name="seq2seq_context",
):
    """One fixed context: `c = h_S`, `s_0 = tanh(W c)`, `s_t = g(y_{t-1}, s_{t-1}, c)`.

    The readout is a maxout layer over `[s_t; y_{t-1}; c]`. Two simplifications that
    lectures make and we keep: the context is the encoder's state itself, without a
    tanh layer around it, and the output matrix is not factorised.

    Args:
        variant: A row of `VARIANTS["seq2seq_context"]`; the next five override it.
        source_vocabulary_size: Source tokens there are.
        target_vocabulary_size: V.
        embedding_dim: Width of the token embeddings.
        hidden_dim: U, units of each GRU.
        maxout_dim: Units of the readout.
        dropout: Probability of dropping an embedding or readout unit; the paper has
            none.
        name: Of the model.

    Returns:
        A model from `token_ids` (B, S), `padding_mask` (B, S) and
        `decoder_token_ids` (B, T) to logits (B, T, V).

    Reference:
        Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder
        for Statistical Machine Translation" (arXiv:1406.1078).
    """
    numbers = resolve(
        VARIANTS["seq2seq_context"],
        variant,
        source_vocabulary_size=source_vocabulary_size,
        target_vocabulary_size=target_vocabulary_size,
        embedding_dim=embedding_dim,
        hidden_dim=hidden_dim,
        maxout_dim=maxout_dim,
    )
    parts = [
        *_embeddings(numbers, dropout),
        _recurrent(GRUCell, numbers["hidden_dim"], "encoder"),
        # A softmax over one place is 1, whatever the score.
        *_decoder(numbers, DotProductAttention("dot", name="attention"), dropout),
    ]
    return _build(ContextSeq2Seq, parts, name)


def build_rnnsearch(
    variant="50",
    *,
    source_vocabulary_size=None,
    target_vocabulary_size=None,
    embedding_dim=None,
    hidden_dim=None,
    attention_dim=None,
    maxout_dim=None,
    score="additive",
    dropout=0.0,
    return_attention_scores=False,
    name="rnnsearch",
):
    """Attention: a context `c_t = Σ_j a_tj h_j` of its own for every target word.

    Annotations `h_j = [→h_j; ←h_j]` come from a bidirectional GRU, `a_t` from the
    decoder's last state, `e_tj = vᵀ tanh(W s_{t-1} + U h_j)`. As in the paper
    `s_0 = tanh(W_s ←h_1)`, and the readout is a maxout layer over
    `[s_{t-1}; y_{t-1}; c_t]`. Unlike the paper's equations the GRUs have biases,
    which it leaves out "to make the equations less cluttered".

    Args:
        variant: A row of `VARIANTS["rnnsearch"]`; the next six override it.
        source_vocabulary_size: Source tokens there are.
        target_vocabulary_size: V.
        embedding_dim: Width of the token embeddings.
        hidden_dim: U, units of each GRU.
        attention_dim: Units of the additive score's hidden layer.
        maxout_dim: Units of the readout.
        score: `"additive"`, `"dot"`, `"scaled_dot"`, `"general"` or `"linear"`. The
            two dot products need annotations as wide as the state, so for them both
            directions are summed instead of concatenated.
        dropout: Probability of dropping an embedding or readout unit; the paper has
            none.
        return_attention_scores: Whether the model returns the alignment beside the
            logits, for a device that shall show it.
        name: Of the model.

    Returns:
        A model from `token_ids` (B, S), `padding_mask` (B, S) and
        `decoder_token_ids` (B, T) to logits (B, T, V); with
        `return_attention_scores=True` to a dictionary of `logits` and
        `attention_scores`, (B, 1, T, S).

    Reference:
        Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning
        to Align and Translate" (arXiv:1409.0473).
    """
    check_choice("score", score, ("additive", *SCORES))
    numbers = resolve(
        VARIANTS["rnnsearch"],
        variant,
        source_vocabulary_size=source_vocabulary_size,
        target_vocabulary_size=target_vocabulary_size,
        embedding_dim=embedding_dim,
        hidden_dim=hidden_dim,
        attention_dim=attention_dim,
        maxout_dim=maxout_dim,
    )
    if score == "additive":
        attention = AdditiveAttention(numbers["attention_dim"], name="attention")
    else:
        attention = DotProductAttention(score, name="attention")
    parts = [
        *_embeddings(numbers, dropout),
        keras.layers.Bidirectional(
            _recurrent(GRUCell, numbers["hidden_dim"], "direction"),
            merge_mode="sum" if score in ("dot", "scaled_dot") else "concat",
            name="encoder",
        ),
        *_decoder(numbers, attention, dropout),
    ]
    return _build(RNNSearch, parts, name, return_attention_scores)


@keras.saving.register_keras_serializable("keras_attn")
class ContextSeq2Seq(Functional):
    """The functional model of `build_seq2seq_context`, which can decode."""

    readout_state = "states"

    @staticmethod
    def remember(part, inputs):
        """The memory (B, 1, U), its mask, and the state that s_0 comes from, (B, U)."""
        source = part("source_embedding")(inputs["token_ids"])
        hidden = part("source_dropout")(source)
        _, context = part("encoder")(hidden, mask=inputs["padding_mask"])
        return ops.expand_dims(context, 1), None, context

    def incremental(self, max_length=None) -> IncrementalPair:
        """Its two halves for decoding; see `_incremental`.

        Args:
            max_length: Of no effect: what a GRU remembers has one size.
        """
        return _incremental(self)


@keras.saving.register_keras_serializable("keras_attn")
class RNNSearch(Functional):
    """The functional model of `build_rnnsearch`, which can decode."""

    readout_state = "previous_states"

    @staticmethod
    def remember(part, inputs):
        """Annotations (B, S, 2U), their mask, and the state that s_0 comes from."""
        source = part("source_embedding")(inputs["token_ids"])
        hidden = part("source_dropout")(source)
        mask = inputs["padding_mask"]
        annotations, _, backward_state = part("encoder")(hidden, mask=mask)
        return annotations, mask, backward_state

    def incremental(self, max_length=None) -> IncrementalPair:
        """Its two halves for decoding; see `_incremental`.

        Args:
            max_length: Of no effect: what a GRU remembers has one size.
        """
        return _incremental(self)


def _build(model_class, parts, name, return_attention_scores=False):
    part = {layer.name: layer for layer in parts}.__getitem__
    inputs = _inputs()
    memory, mask, last = model_class.remember(part, inputs)
    logits, decoded = _decode(
        part,
        inputs["decoder_token_ids"],
        memory,
        part("initial_state")(last),
        model_class.readout_state,
        memory_padding_mask=mask,
        return_attention_scores=return_attention_scores,
    )
    outputs = logits
    if return_attention_scores:
        outputs = {"logits": logits, "attention_scores": decoded["attention_scores"]}
    return model_class(inputs=inputs, outputs=outputs, name=name)


def _decode(part, decoder_token_ids, memory, state, readout_state, **looking):
    """Logits (B, T, V), and all that the `AttentionRNN` returns."""
    target = part("target_embedding")(decoder_token_ids)
    embedded = part("target_dropout")(target)
    decoded = part("decoder")(embedded, memory, state, **looking)
    readout = part("readout_inputs")(
        [decoded[readout_state], embedded, decoded["contexts"]]
    )
    hidden = part("maxout")(part("readout")(readout))
    return part("logits")(part("readout_dropout")(hidden)), decoded


def _incremental(model) -> IncrementalPair:
    """The two halves of a model with a memory.

    The state is the decoder's, `decoder_state` (B, U), which changes, and beside it
    the `memory`, what the scores need of it and its mask, which do not.
    """
    part = model.get_layer
    inputs = _inputs()
    memory, mask, last = model.remember(part, inputs)
    logits, decoded = _decode(
        part,
        inputs["decoder_token_ids"],
        memory,
        part("initial_state")(last),
        model.readout_state,
        memory_padding_mask=mask,
    )
    fixed = {"memory": memory}
    if part("decoder").attention.projects_key:
        fixed["projected_memory"] = decoded["projected_memory"]
    (decoder_state,) = decoded["final_state"]
    state = {"decoder_state": decoder_state, **fixed}
    prefill = keras.Model(inputs, {"logits": logits[:, -1], **state})

    if mask is not None:
        # Not an output of `prefill`: `generate` passes it on from its inputs.
        state["padding_mask"] = mask
    before = {
        name: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=name)
        for name, tensor in state.items()
    }
    token_ids = keras.Input((), dtype="int32", name="token_ids")
    logits, decoded = _decode(
        part,
        ops.expand_dims(token_ids, 1),
        before["memory"],
        before["decoder_state"],
        model.readout_state,
        memory_padding_mask=before.get("padding_mask"),
        projected_memory=before.get("projected_memory"),
    )
    (decoder_state,) = decoded["final_state"]
    step = keras.Model(
        {"token_ids": token_ids, **before},
        {"logits": logits[:, 0], "decoder_state": decoder_state},
    )
    return _pair(part, prefill, step)


def _pair(part, prefill, step) -> IncrementalPair:
    return IncrementalPair(
        prefill,
        step,
        prompt="decoder_token_ids",
        source_vocabulary_size=part("source_embedding").input_dim,
    )


def _inputs():
    names = {"token_ids": "int32", "padding_mask": "bool", "decoder_token_ids": "int32"}
    return {
        name: keras.Input((None,), dtype=dtype, name=name)
        for name, dtype in names.items()
    }


def _embeddings(numbers, dropout):
    for side in ("source", "target"):
        size = numbers[f"{side}_vocabulary_size"]
        yield Embedding(size, numbers["embedding_dim"], name=f"{side}_embedding")
        yield Dropout(dropout, name=f"{side}_dropout")


def _recurrent(cell_class, units, name):
    """A layer around a cell, rather than `GRU` or `LSTM`.

    Those choose a fused GPU kernel that neither XLA nor an exporter can take; and a
    cell with a name of its own can be called alone, for one step.
    """
    # A GRU cell of the papers applies the reset gate before the product.
    options = {"reset_after": False} if cell_class is GRUCell else {}
    cell = cell_class(units, name=f"{name}_cell", **options)
    return RNN(cell, return_sequences=True, return_state=True, name=name)


def _decoder(numbers, attention, dropout):
    """From the encoder's last state to logits: what `_decode` calls."""
    units = numbers["hidden_dim"]
    cell = GRUCell(units, reset_after=False, name="decoder_cell")
    yield Dense(units, activation="tanh", name="initial_state")
    yield AttentionRNN(cell, attention, name="decoder")
    yield Concatenate(name="readout_inputs")
    yield Dense(2 * numbers["maxout_dim"], name="readout")
    yield Maxout(name="maxout")
    yield Dropout(dropout, name="readout_dropout")
    yield _logits(numbers)


def _logits(numbers):
    # In float32 whatever the policy: a softmax over a vocabulary follows.
    return Dense(numbers["target_vocabulary_size"], dtype="float32", name="logits")


def _card(name, title, paper, year, parameters, notes):
    return ModelCard(
        name=name,
        family="seq2seq",
        title=title,
        paper=paper,
        year=year,
        task="translation",
        parameters=parameters,
        inputs={
            "token_ids": "(B, S) int32, the source",
            "padding_mask": "(B, S) bool, True = a real source token",
            "decoder_token_ids": "(B, T) int32, the target behind its start token",
        },
        outputs={"logits": "(B, T, V), before the softmax"},
        notes=notes,
    )


register(
    _card(
        "seq2seq_sutskever",
        "Stacked LSTMs, the last states handed over, the source reversed",
        "Sutskever, Vinyals, Le 2014, arXiv:1409.3215",
        2014,
        384_000_000,
        "WMT'14 En-Fr: BLEU 30.59 (beam 12), 34.81 with an ensemble of five",
    ),
    build_seq2seq_sutskever,
    "base",
)
register(
    _card(
        "seq2seq_context",
        "GRU encoder-decoder with one fixed context",
        "Cho et al. 2014, arXiv:1406.1078",
        2014,
        None,
        "used to score phrase pairs: En-Fr BLEU 33.30 to 33.87 with a phrase table",
    ),
    build_seq2seq_context,
    "base",
)
for _length, _bleu in (("30", 21.50), ("50", 26.75)):
    register(
        _card(
            f"rnnsearch_{_length}",
            "Bidirectional GRU with additive attention",
            "Bahdanau, Cho, Bengio 2015, arXiv:1409.0473",
            2015,
            None,
            f"WMT'14 En-Fr: BLEU {_bleu:.2f}, trained on sentences of up to "
            f"{_length} words",
        ),
        build_rnnsearch,
        _length,
    )
