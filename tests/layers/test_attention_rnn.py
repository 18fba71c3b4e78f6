import re

import attention_reference as reference
import keras
import numpy as np
import pytest
from attention_reference import array_of
from keras import ops
from layer_contract import (
    B,
    D,
    E,
    S,
    T,
    assert_close,
    flat,
    normal,
    randomize,
)

from keras_attn.layers import (
    AdditiveAttention,
    AttentionRNN,
    DotProductAttention,
    MultiHeadAttention,
)

UNITS = 17


def unroll(layer, inputs, memory, states, padding):
    """The paper's equations, one sequence and one step at a time."""
    score = reference.score_of(layer.attention)
    weights = [array_of(w).astype("float64") for w in layer.cell.weights]
    is_lstm = isinstance(layer.cell, keras.layers.LSTMCell)
    names = ("states", "previous_states", "contexts", "scores")
    results = {name: [] for name in (*names, "final")}
    for b in range(B):
        state = [s[b] for s in states]
        rows = {name: [] for name in names}
        for x in inputs[b]:
            energies = [score(state[0], h) for h in memory[b]]
            alpha = reference.softmax(np.where(padding[b], energies, -np.inf))
            context = alpha @ memory[b]
            rows["previous_states"].append(state[0])
            step = reference.lstm_step if is_lstm else reference.gru_step
            state = step(np.concatenate([x, context]), *state, *weights)
            state = list(state) if is_lstm else [state]
            rows["states"].append(state[0])
            rows["contexts"].append(context)
            rows["scores"].append(alpha)
        for name, row in (*rows.items(), ("final", state)):
            results[name].append(row)
    return {name: np.array(value) for name, value in results.items()}


ATTENTIONS = {
    "additive": lambda: AdditiveAttention(7),
    "dot": lambda: DotProductAttention("dot"),
    "scaled_dot": lambda: DotProductAttention("scaled_dot"),
    "general": lambda: DotProductAttention("general"),
    "linear": lambda: DotProductAttention("linear"),
}
CELLS = {"gru": keras.layers.GRUCell, "lstm": keras.layers.LSTMCell}


def built(cell, name):
    """A layer with random weights, arguments for a call, and the initial states."""
    layer = AttentionRNN(CELLS[cell](UNITS), ATTENTIONS[name]())
    width = UNITS if name in ("dot", "scaled_dot") else E
    count = 2 if cell == "lstm" else 1
    states = [normal(B, UNITS, seed=2 + i) for i in range(count)]
    call = {
        "inputs": normal(B, T, D),
        "memory": normal(B, S, width, seed=1),
        "initial_state": states if cell == "lstm" else states[0],
        "memory_padding_mask": np.arange(S) < np.array([[3], [S]]),
    }
    layer(**call)
    randomize(layer)
    return layer, call, states


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_computes_the_papers_equations(cell, name):
    layer, call, states = built(cell, name)
    expected = unroll(
        layer, call["inputs"], call["memory"], states, call["memory_padding_mask"]
    )
    found = layer(**call, return_attention_scores=True)
    for key in ("states", "previous_states", "contexts"):
        assert_close(found[key], expected[key])
    assert_close(found["attention_scores"], expected["scores"][:, None])
    final = expected["final"].swapaxes(0, 1)
    assert isinstance(found["final_state"], list)
    assert_close(found["final_state"], list(final))
    assert "attention_scores" not in layer(**call)
    # The other outputs do not need the scores.
    assert_close(layer(**call)["states"], found["states"], atol=0)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("name", ["additive", "dot"])
def test_incremental_decoding_equals_one_call(cell, name):
    layer, call, _ = built(cell, name)
    expected = layer(**call, return_attention_scores=True)
    state, projected = call["initial_state"], None
    for t in range(T):
        found = layer(
            call["inputs"][:, t : t + 1],
            call["memory"],
            state,
            memory_padding_mask=call["memory_padding_mask"],
            projected_memory=projected,
            return_attention_scores=True,
        )
        for key in ("states", "previous_states", "contexts"):
            assert_close(found[key], expected[key][:, t : t + 1], atol=1e-6)
        scores = expected["attention_scores"][:, :, t : t + 1]
        assert_close(found["attention_scores"], scores, atol=1e-6)
        state, projected = found["final_state"], found["projected_memory"]
    assert_close(state, expected["final_state"], atol=1e-6)
    assert_close(projected, expected["projected_memory"], atol=0)


def test_a_projected_memory_replaces_the_projection():
    layer, call, _ = built("gru", "additive")
    expected = layer(**call)
    projected = expected["projected_memory"]
    assert_close(layer(**call, projected_memory=projected), expected, atol=0)
    other = layer(**call, projected_memory=projected + 1.0)
    assert np.abs(flat(other["states"] - expected["states"])[0]).max() > 1e-3


@pytest.mark.parametrize("cell", [keras.layers.Dense(3), None, "gru"])
def test_other_cells_are_refused(cell):
    message = (
        "`cell` must be a single Keras recurrent cell, such as `keras.layers.GRUCell`. "
        f"Received: cell={cell!r}"
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        AttentionRNN(cell, AdditiveAttention(3))


def test_stacked_cells_are_refused():
    # Their first state is not their output, so `previous_states` would be wrong.
    stack = keras.layers.StackedRNNCells([keras.layers.GRUCell(3)] * 2)
    with pytest.raises(TypeError, match="`cell` must be a single Keras recurrent cell"):
        AttentionRNN(stack, AdditiveAttention(3))


def test_other_attentions_are_refused():
    for attention in (MultiHeadAttention(3, 5), keras.layers.Attention(), None):
        message = (
            "`attention` must be an AdditiveAttention or a DotProductAttention. "
            f"Received: attention={attention!r}"
        )
        with pytest.raises(TypeError, match=re.escape(message)):
            AttentionRNN(keras.layers.GRUCell(3), attention)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 0.1}, "cell.dropout=0.1, cell.recurrent_dropout=0.0"),
        ({"recurrent_dropout": 0.2}, "cell.dropout=0.0, cell.recurrent_dropout=0.2"),
    ],
)
def test_cells_with_dropout_are_refused(options, message):
    message = (
        "`cell` must not have dropout: apply a `Dropout` layer to the inputs. "
        f"Received: {message}"
    )
    with pytest.raises(ValueError, match=message):
        AttentionRNN(keras.layers.GRUCell(3, **options), AdditiveAttention(3))


def test_every_state_of_the_cell_is_needed():
    layer, call, _ = built("lstm", "additive")
    message = (
        "`initial_state` must hold one tensor for each state of the cell. "
        "Received: 1 of 2 states"
    )
    with pytest.raises(ValueError, match=message):
        layer(**{**call, "initial_state": normal(B, UNITS)})


def test_unequal_widths_of_state_and_memory_are_refused():
    layer = AttentionRNN(keras.layers.GRUCell(UNITS), DotProductAttention("dot"))
    with pytest.raises(ValueError, match="query width=17, key width=13"):
        layer(normal(B, T, D), normal(B, S, E), ops.zeros((B, UNITS)))
