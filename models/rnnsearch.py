"""RNNsearch: a translator that learns to align while it translates.

    h_j = [→h_j; ←h_j]                    `encoder`, a bidirectional GRU: annotations
    s_0 = tanh(W_s ←h_1)                  `initial_state`: first state of the decoder
    e_tj = vᵀ tanh(W s_{t-1} + U h_j)     `decoder`: score of annotation j
    α_t = softmax(e_t)                    `decoder`: alignment
    c_t = Σ_j α_tj h_j                    `decoder`: context
    s_t = GRU([y_{t-1}; c_t], s_{t-1})    `decoder`: state
    r_t = W_r [s_{t-1}; y_{t-1}; c_t]     `readout_inputs`, `readout`
    p(y_t) = softmax(W_o maxout(r_t))     `maxout`, `logits`, without the softmax

The forward pass is `_encode`, then `_decode` below; e, α, c and s are computed by
`layers/recurrent/attention_rnn.py` with the score of
`layers/attention/additive_attention.py`. The layers are made by
`models/parts/decoders/recurrent_parts.py`: GRUs that reset before the product with the
state (`reset_after=False`), and a `readout` of 2 · `maxout_dim` units, of which
`maxout` keeps the larger of each two adjacent ones. W_s, W_r and W_o have biases, W, U
and v have none.

Legend: B batch, S source length, T target length, U units, V target vocabulary.
Layers: `source_embedding`, `source_dropout`, `encoder`, `initial_state`,
`target_embedding`, `target_dropout`, `decoder`, `readout_inputs`, `readout`, `maxout`,
`readout_dropout`, `logits`. `incremental()` finds them by these names.
"""

import functools
from typing import Literal

import keras

from keras_attn.checks.argument_types import Probability
from keras_attn.checks.arguments import check_choice
from keras_attn.decoding import IncrementalPair
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import (
    AdditiveAttention,
    AttentionRNN,
    Dense,
    DotProductAttention,
)
from keras_attn.layers.attention.dot_product_attention import SCORES, Score
from keras_attn.layers.recurrent.recurrent import Bidirectional
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.decoders import recurrent_parts
from keras_attn.models.parts.functional import Functional, by_name

# Bahdanau et al. 2015, A.2; trained on sentences of up to 30 or 50 words.
VARIANTS = {
    max_words: {
        "source_vocabulary_size": 30_000,
        "target_vocabulary_size": 30_000,
        "embedding_dim": 620,
        "hidden_dim": 1000,
        "attention_dim": 1000,
        "maxout_dim": 500,
    }
    for max_words in ("30", "50")
}
_training = functools.partial(Training, "WMT'14 En-Fr", "table 2", devices=1)
CARDS = model_cards(
    "rnnsearch_{variant}",
    {"30": None, "50": None},
    notes={
        words: f"trained on sentences of up to {words} words" for words in ("30", "50")
    },
    training={
        "30": _training(hardware="TITAN Black", hours=113),
        "50": _training(hardware="Quadro K6000", hours=111),
    },
    scores=[
        scored("BLEU En-Fr", "newstest 2014", "table 1", {"30": 21.5, "50": 26.75})
    ],
    family="seq2seq",
    title="Bidirectional GRU with additive attention",
    paper="Bahdanau, Cho, Bengio 2015, arXiv:1409.0473",
    **tasks.TRANSLATION,
)


@registered(CARDS, VARIANTS)
@described_as(recurrent_parts.embedding_layers)
def build_rnnsearch(
    variant: str = "50",
    *,
    source_vocabulary_size: int = FROM_VARIANT,
    target_vocabulary_size: int = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    attention_dim: int = FROM_VARIANT,
    maxout_dim: int = FROM_VARIANT,
    score: Literal["additive"] | Score = "additive",
    dropout: Probability = 0.0,
    return_attention_scores: bool = False,
    name: str = "rnnsearch",
) -> "RNNSearch":
    """A bidirectional GRU encoder, and a GRU decoder that attends to its states.

    The context `c_t = Σ_j α_tj h_j` is recomputed for every target word. The GRUs
    have biases, which the paper's equations omit "to make the equations less
    cluttered".

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        hidden_dim: U, units of each GRU.
        attention_dim: Units of the additive score's hidden layer.
        maxout_dim: Units of the readout.
        score: `"additive"`, `"dot"`, `"scaled_dot"`, `"general"` or `"linear"`. The two
            dot products need annotations as wide as the state, so with them the two
            directions are summed instead of concatenated.
        return_attention_scores: Whether the model also returns the alignment, for
            example to display it on a device.
        name: Name of the model.

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
    if score == "additive":
        attention = AdditiveAttention(attention_dim, name="attention")
    else:
        attention = DotProductAttention(score, name="attention")
    embedding_layers = recurrent_parts.embedding_layers(
        source_vocabulary_size, target_vocabulary_size, embedding_dim, dropout
    )
    layers = by_name(
        [
            *embedding_layers,
            Bidirectional(
                recurrent_parts.gru(hidden_dim, "direction"),
                merge_mode="sum" if score in ("dot", "scaled_dot") else "concat",
                name="encoder",
            ),
            AttentionRNN(
                recurrent_parts.gru_cell(hidden_dim, "decoder_cell"),
                attention,
                name="decoder",
            ),
            Dense(hidden_dim, activation="tanh", name="initial_state"),
            # Of the embeddings it reads the dropout and the vocabulary: no weights are
            # tied.
            *recurrent_parts.readout_layers(maxout_dim, embedding_layers),
        ]
    )
    inputs = recurrent_parts.translation_inputs()
    logits, decoded = _decode(
        layers,
        inputs["decoder_token_ids"],
        _encode(layers, inputs),
        return_attention_scores=return_attention_scores,
    )
    outputs = logits
    if return_attention_scores:
        outputs = {"logits": logits, "attention_scores": decoded["attention_scores"]}
    return RNNSearch(inputs=inputs, outputs=outputs, name=name)


def _encode(layers, inputs):
    """The annotations h (B, S, 2U), their mask (B, S), and s_0 (B, U)."""
    mask = inputs["padding_mask"]
    embedded = layers["source_embedding"](inputs["token_ids"])
    embedded = layers["source_dropout"](embedded)
    # All states, and the last state of each direction: the backward GRU ends at h_1.
    annotations, _, backward_state = layers["encoder"](embedded, mask=mask)
    return {
        "memory": annotations,
        "padding_mask": mask,
        "decoder_state": layers["initial_state"](backward_state),
    }


def _decode(layers, decoder_token_ids, state, **attention_options):
    """Logits (B, T, V) of the words after `decoder_token_ids`, and α, c and s.

    Args:
        layers: Layers by name.
        decoder_token_ids: y_0 … y_{T-1}, (B, T).
        state: From `_encode`; in a step, with the last s, (B, U), in place of s_0 and
            with the projection of h for the scores.
        **attention_options: Further call arguments of the `AttentionRNN`.
    """
    embedded = layers["target_embedding"](decoder_token_ids)
    embedded = layers["target_dropout"](embedded)
    decoded = layers["decoder"](
        embedded,
        state["memory"],
        state["decoder_state"],
        memory_padding_mask=state["padding_mask"],
        projected_memory=state.get("projected_memory"),
        **attention_options,
    )
    readout = layers["readout_inputs"](
        [decoded["previous_states"], embedded, decoded["contexts"]]
    )
    hidden = layers["maxout"](layers["readout"](readout))
    return layers["logits"](layers["readout_dropout"](hidden)), decoded


@keras.saving.register_keras_serializable("keras_attn")
class RNNSearch(Functional):
    """The functional model of `build_rnnsearch`, with incremental decoding."""

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for decoding token by token; see `recurrent_parts.attention_pair`.

        Args:
            max_length: Has no effect: the state of a GRU has a fixed size.
        """
        return recurrent_parts.attention_pair(by_name(self.layers), _encode, _decode)
