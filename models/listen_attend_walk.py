"""Listen, attend and walk: from an instruction and the surroundings to actions.

    x_j                                       `word_embedding`: word vectors
    h_j = [→h_j; ←h_j]                        `encoder`, a bidirectional LSTM
    [x_j; h_j]                                `memory`: both levels
    E y_t                                     `world_embedding`
    β_tj = vᵀ tanh(W s_{t-1} + U x_j + V h_j) `decoder`: the multi-level aligner
    α_t = softmax(β_t)                        `decoder`: alignment
    z_t = Σ_j α_tj [x_j; h_j]                 `decoder`: context
    s_t = LSTM([E y_t; z_t], s_{t-1})         `decoder`: state, s_0 = 0
    q_t = L_0 (E y_t + L_s s_t + L_z z_t)     `state_readout`, `context_readout`
    P(a_t) = softmax(q_t)                     `logits`: before the softmax

The forward pass is `_listen`, then `_walk`; β, α, z and s are computed by
`layers/recurrent/attention_rnn.py` with the score of
`layers/attention/additive_attention.py`, whose key kernel is U and V stacked.

The world state y_t is any vector of numbers: in the paper, words for the objects and
floors ahead, left and right, with the actions forward, left, right and stop; for
buildings see `data.WalkSimulator`. It depends on the previous actions, so a model
decodes in an environment, by `decoding.walk`.

The authors' code uses one-hot vectors as x_j in the memory and a separate table of word
vectors for each direction of the LSTM; here one table serves both directions and the
memory.

Legend: B batch, S words, T steps, F features of the world, A actions, U units, V
vocabulary. Layers: `word_embedding`, `encoder`, `memory`, `world_embedding`, `decoder`,
`state_dropout`, `state_readout`, `context_readout`, `readout`, `logits`.
`incremental()` finds them by these names.
"""

from typing import Any

import keras
from keras import ops
from keras.layers import Add, Concatenate, LSTMCell

from keras_attn.checks.argument_types import Probability
from keras_attn.decoding import IncrementalPair
from keras_attn.layers import AdditiveAttention, AttentionRNN, Dense, Embedding
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.recurrent.recurrent import Bidirectional
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.decoders.pair_builders import build_pair
from keras_attn.models.parts.decoders.recurrent_parts import (
    decoder_changes,
    recurrent_layer,
)
from keras_attn.models.parts.functional import Functional, by_name, sequence_inputs

# Mei et al. 2016 on SAIL, as in the authors' code, github.com/hongyuanmei/NeuralWalker:
# 78 features of the world, 100 units everywhere, a dropout of 0.1; the actions forward,
# left, right and stop. The instructions of SAIL have 524 words.
VARIANTS = {
    "sail": {
        "vocabulary_size": 524,
        "world_dim": 78,
        "num_actions": 4,
        "embedding_dim": 100,
        "hidden_dim": 100,
        "attention_dim": 100,
        "dropout": 0.1,
    }
}
CARDS = model_cards(
    "listen_attend_walk",
    {"sail": None},
    notes="scores of an ensemble of ten, with beam search; vTest: the protocol of "
    "earlier work",
    scores=[
        scored(
            "SAIL success rate", "single sentences, vTest", "table 1", {"sail": 71.05}
        ),
        scored("SAIL success rate", "paragraphs, vTest", "table 1", {"sail": 30.34}),
    ],
    title="Instructions to actions: a bidirectional LSTM, and an LSTM that attends",
    paper="Mei et al. 2016, arXiv:1506.04089",
    task="navigation",
    inputs={
        "token_ids": "(B, S) int32, the words of the instruction",
        "padding_mask": "(B, S) bool, True = a real word",
        "world_state": "(B, T, 78) float, what is visible before each step",
    },
    outputs={"logits": "(B, T, 4), before the softmax"},
)


@registered(CARDS, VARIANTS)
def build_listen_attend_walk(
    variant: str = "sail",
    *,
    vocabulary_size: int = FROM_VARIANT,
    world_dim: int = FROM_VARIANT,
    num_actions: int = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    attention_dim: int = FROM_VARIANT,
    dropout: Probability = FROM_VARIANT,
    return_attention_scores: bool = False,
    name: str = "listen_attend_walk",
) -> "ListenAttendWalk":
    """A bidirectional LSTM that listens, and an LSTM that attends to words and walks.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V.
        world_dim: F, how many numbers describe the world before a step.
        num_actions: A, including the stop action.
        embedding_dim: Width of the word vectors, of E y_t and of q_t before L_0.
        hidden_dim: U, units of each direction of the encoder and of the decoder.
        attention_dim: Units of the aligner.
        dropout: Probability of dropping a unit of s_t before L_s.
        return_attention_scores: Whether the model also returns the alignment, for
            example to display it on a device.
        name: Name of the model.

    Returns:
        A model from `token_ids` (B, S), `padding_mask` (B, S) and `world_state`
        (B, T, F) to logits (B, T, A); with `return_attention_scores=True` to a
        dictionary of `logits` and `attention_scores`, (B, 1, T, S).

    Raises:
        ValueError: If a size is not a positive integer, or `dropout` is not in [0, 1).

    Reference:
        Mei, Bansal, Walter 2016, "Listen, Attend, and Walk: Neural Mapping of
        Navigational Instructions to Action Sequences" (arXiv:1506.04089).
    """
    layers = by_name(
        [
            Embedding(vocabulary_size, embedding_dim, name="word_embedding"),
            Bidirectional(
                recurrent_layer(LSTMCell(hidden_dim, name="cell"), "direction"),
                name="encoder",
            ),
            Concatenate(name="memory"),
            Dense(embedding_dim, use_bias=False, name="world_embedding"),
            AttentionRNN(
                LSTMCell(hidden_dim, name="decoder_cell"),
                AdditiveAttention(attention_dim, name="attention"),
                name="decoder",
            ),
            Dropout(dropout, name="state_dropout"),
            Dense(embedding_dim, use_bias=False, name="state_readout"),
            Dense(embedding_dim, use_bias=False, name="context_readout"),
            Add(name="readout"),
            # A softmax follows.
            Dense(num_actions, use_bias=False, dtype="float32", name="logits"),
        ]
    )
    world_state: Any = keras.Input((None, world_dim), name="world_state")
    inputs = {
        **sequence_inputs("token_ids", "padding_mask"),
        "world_state": world_state,
    }
    logits, walked = _walk(
        layers,
        world_state,
        _listen(layers, inputs),
        return_attention_scores=return_attention_scores,
    )
    outputs = logits
    if return_attention_scores:
        outputs = {"logits": logits, "attention_scores": walked["attention_scores"]}
    return ListenAttendWalk(inputs=inputs, outputs=outputs, name=name)


def _listen(layers, inputs):
    """Words [x; h] (B, S, E + 2U), their mask (B, S), and s_0 and its cell (B, U)."""
    mask = inputs["padding_mask"]
    words = layers["word_embedding"](inputs["token_ids"])
    hidden, *_ = layers["encoder"](words, mask=mask)
    memory = layers["memory"]([words, hidden])
    zeros = ops.zeros_like(hidden[:, 0, : layers["decoder"].cell.units])
    return {
        "memory": memory,
        "padding_mask": mask,
        "decoder_state": zeros,
        "cell_state": zeros,
    }


def _walk(layers, world_state, state, **attention_options):
    """Logits (B, T, A) of the actions in these worlds (B, T, F), and α, z and s."""
    world = layers["world_embedding"](world_state)
    walked = layers["decoder"](
        world,
        state["memory"],
        [state["decoder_state"], state["cell_state"]],
        memory_padding_mask=state["padding_mask"],
        projected_memory=state.get("projected_memory"),
        **attention_options,
    )
    readout = layers["readout"](
        [
            world,
            layers["state_readout"](layers["state_dropout"](walked["states"])),
            layers["context_readout"](walked["contexts"]),
        ]
    )
    return layers["logits"](readout), walked


@keras.saving.register_keras_serializable("keras_attn")
class ListenAttendWalk(Functional):
    """The model of `build_listen_attend_walk`, with decoding step by step."""

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for walking action by action, in an environment.

        Both take `world_state` (B, F), the surroundings before the action, and return
        `logits` (B, A); `prefill` also takes the instruction. The environment chooses
        the next world, so `decoding.walk` runs the pair, without tokens.

        The state is `decoder_state` and `cell_state` (B, U), which change with each
        step, and `memory` (B, S, E + 2U), `projected_memory` and the input
        `padding_mask`, which don't.

        Args:
            max_length: Has no effect: the state of an LSTM has a fixed size.
        """
        layers = by_name(self.layers)

        def step(world_state, state):
            logits, walked = _walk(layers, ops.expand_dims(world_state, 1), state)
            return logits[:, 0], decoder_changes(layers, walked, state)

        def prefill(inputs):
            heard = _listen(layers, inputs)
            logits, changes = step(inputs["world_state"], heard)
            return logits, {**heard, **changes}

        world_dim = self.input["world_state"].shape[-1]
        first: Any = keras.Input((world_dim,), name="world_state")
        return build_pair(
            {**sequence_inputs("token_ids", "padding_mask"), "world_state": first},
            prefill,
            step,
            token=keras.Input((world_dim,), name="world_state"),
            source_vocabulary_size=layers["word_embedding"].input_dim,
        )
