"""The three systems, step by step, against the equations of their papers in NumPy.

Nothing is shared with the library: the equations are those of the papers, for one
position of one row at a time. Only the weights are read from the model, by the names
of its layers.

Two conventions are those of Keras: the order of the gates (i, f, c, o of an LSTM;
z, r, h of a GRU), and the meaning of z, which keeps the old state where it is 1, as in
Cho et al. (Bahdanau et al. exchange z and 1 - z).
"""

import keras
import numpy as np
import pytest
from attention_reference import sigmoid, softmax
from families.rnnsearch import SCORES
from lstm_reference import numpy_step
from model_cases import create, logits_of, make_inputs, numpy, randomize
from model_family import SOURCE_V, B, S, U, V

from keras_attn import models

TOLERANCE = 1e-5


def gru_step(weights, x, s):
    """Cho et al. 2014, equations 5 to 8: the reset gate comes before the product."""
    W, R, b = weights
    (Wz, Wr, Wh), (Rz, Rr, Rh), (bz, br, bh) = (np.split(w, 3, -1) for w in (W, R, b))
    z = sigmoid(x @ Wz + s @ Rz + bz)
    r = sigmoid(x @ Wr + s @ Rr + br)
    h = np.tanh(x @ Wh + (r * s) @ Rh + bh)
    return z * s + (1 - z) * h


def maxout(x):
    return np.array([max(x[2 * i], x[2 * i + 1]) for i in range(len(x) // 2)])


def weights_of(model):
    """The weights of a layer by its name, in float64."""
    return lambda name: [
        np.asarray(w, "float64") for w in model.get_layer(name).get_weights()
    ]


def intermediate(model, inputs, layer):
    """The output of a layer inside the model."""
    part = keras.Model(model.inputs, model.get_layer(layer).output)
    outputs = part(inputs, training=False)
    return [numpy(x) for x in outputs] if isinstance(outputs, list) else numpy(outputs)


def close(actual, expected):
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


def encode_gru(weights, embedded, length):
    """The states of one row, (length, U)."""
    s, states = np.zeros(len(weights[1])), []
    for j in range(length):
        s = gru_step(weights, embedded[j], s)
        states.append(s)
    return np.array(states)


def decode(weights, attend, s, embedded, readout_of):
    """One row: contexts, states (s_0 … s_T), readout before and after maxout, logits.

    Args:
        weights: The weights of the model.
        attend: Function from a state to a context.
        s: s_0.
        embedded: y_0 … y_{T-1}, (T, E).
        readout_of: "previous" or "current", the state that the readout reads.
    """
    (Wo, bo), (Wl, bl) = weights("readout"), weights("logits")
    states, contexts, readouts, hiddens, logits = [s], [], [], [], []
    cell = weights("decoder")[:3]
    for y in embedded:
        c = attend(s)
        previous, s = s, gru_step(cell, np.concatenate([y, c]), s)
        state = previous if readout_of == "previous" else s
        readout = np.concatenate([state, y, c]) @ Wo + bo
        hidden = maxout(readout)
        for values, value in (
            (states, s),
            (contexts, c),
            (readouts, readout),
            (hiddens, hidden),
            (logits, hidden @ Wl + bl),
        ):
            values.append(value)
    return tuple(map(np.array, (contexts, states, readouts, hiddens, logits)))


def check_decoder(model, inputs, expected):
    """Compares every tensor of the decoder with `decode`, which has run on each row."""
    contexts, states, readouts, hiddens, logits = (
        np.stack(values) for values in zip(*expected, strict=True)
    )
    # Keras returns a layer's dictionary as a list, in the order of the names.
    names = ("contexts", "final_state", "previous_states", "projected_memory", "states")
    outputs = intermediate(model, inputs, "decoder")
    decoded = dict(zip(names, outputs, strict=True))
    close(intermediate(model, inputs, "initial_state"), states[:, 0])
    close(decoded["contexts"], contexts)
    close(decoded["states"], states[:, 1:])
    close(decoded["previous_states"], states[:, :-1])
    close(decoded["final_state"], states[:, -1])
    close(intermediate(model, inputs, "readout"), readouts)
    close(intermediate(model, inputs, "maxout"), hiddens)
    close(logits_of(model, inputs), logits)


@pytest.fixture(scope="module")
def inputs():
    return make_inputs()


@pytest.mark.parametrize("score", SCORES)
def test_rnnsearch_follows_bahdanau_et_al(score, inputs):
    model = create("rnnsearch_50", score=score)
    weights = weights_of(model)
    attention = [
        np.asarray(w, "float64")
        for w in model.get_layer("decoder").attention.get_weights()
    ]

    def energy(s, h):
        """e_tj, from the decoder's state and one annotation."""
        if score == "additive":  # vᵀ tanh(W s + U h)
            v, W, K = attention
            return (np.tanh(s @ W + h @ K) @ v).item()
        if score == "general":  # sᵀ W h
            return s @ attention[0] @ h
        if score == "linear":  # wᵀ [s; h]
            return (np.concatenate([s, h]) @ attention[0]).item()
        return s @ h / (np.sqrt(U) if score == "scaled_dot" else 1)

    source = weights("source_embedding")[0][inputs["token_ids"]]
    target = weights("target_embedding")[0][inputs["decoder_token_ids"]]
    encoder = weights("encoder")
    (Ws, bs) = weights("initial_state")
    merge = np.add if score in ("dot", "scaled_dot") else np.append
    encoded = intermediate(model, inputs, "encoder")
    expected, alignments = [], []
    for row in range(B):
        length = inputs["padding_mask"][row].sum()
        forwards = encode_gru(encoder[:3], source[row], length)
        backwards = encode_gru(encoder[3:], source[row, :length][::-1], length)[::-1]
        h = np.array([merge(f, b) for f, b in zip(forwards, backwards, strict=True)])
        close(encoded[0][row, :length], h)
        close(encoded[1][row], forwards[-1])
        close(encoded[2][row], backwards[0])
        alignment = []

        def attend(s, h=h, alignment=alignment):
            e = np.array([energy(s, h_j) for h_j in h])
            a = softmax(e)
            alignment.append(np.pad(a, (0, S - len(a))))
            return sum(a_j * h_j for a_j, h_j in zip(a, h, strict=True))

        s_0 = np.tanh(backwards[0] @ Ws + bs)
        expected.append(decode(weights, attend, s_0, target[row], "previous"))
        alignments.append(alignment)
    check_decoder(model, inputs, expected)

    # The energies of every pair of a state and an annotation, before the softmax.
    layer = model.get_layer("decoder").attention
    h, s = np.asarray(encoded[0]), expected[0][1][:-1].astype("float32")
    scores = numpy(layer.scores(s[None], layer.project_key(h[:1])))
    close(scores, np.array([[[energy(q, k) for k in h[0]] for q in s]]))

    # The alignment as an output of the model.
    with_scores = create("rnnsearch_50", score=score, return_attention_scores=True)
    with_scores.set_weights(model.get_weights())
    outputs = numpy(with_scores(inputs))
    assert set(outputs) == {"logits", "attention_scores"}
    close(outputs["attention_scores"], np.array(alignments)[:, None])
    close(outputs["logits"], np.stack([row[-1] for row in expected]))


@pytest.mark.parametrize("name", ["seq2seq_context", "rnnencdec_50"])
def test_the_context_model_follows_cho_et_al(name, inputs):
    if name == "seq2seq_context":
        model = create(name)
    else:  # The widths of the paper.
        model = models.create(
            name, source_vocabulary_size=SOURCE_V, target_vocabulary_size=V
        )
        randomize(model)
    weights = weights_of(model)
    source = weights("source_embedding")[0][inputs["token_ids"]]
    target = weights("target_embedding")[0][inputs["decoder_token_ids"]]
    (Wc, bc) = weights("initial_state")
    _, contexts = intermediate(model, inputs, "encoder")
    expected = []
    for row in range(B):
        length = inputs["padding_mask"][row].sum()
        c = encode_gru(weights("encoder"), source[row], length)[-1]
        close(contexts[row], c)
        s_0 = np.tanh(c @ Wc + bc)
        expected.append(
            decode(weights, lambda s, c=c: c, s_0, target[row], readout_of="current")
        )
    check_decoder(model, inputs, expected)


def test_stacked_lstms_follow_sutskever_et_al(inputs):
    model = create("seq2seq_sutskever", num_layers=3)
    weights = weights_of(model)
    embed = {side: weights(f"{side}_embedding")[0] for side in ("source", "target")}
    (Wl, bl) = weights("logits")
    hiddens = {f"{side}_{i}": [] for side in ("encoder", "decoder") for i in range(3)}
    logits = []
    for row in range(B):
        length = inputs["padding_mask"][row].sum()
        # "a b c" is read as "c b a"; only the real words of a row are reversed.
        words = embed["source"][inputs["token_ids"][row, :length][::-1]]
        x = words
        states = []
        for i in range(3):
            h, c = np.zeros(U), np.zeros(U)
            outputs = []
            for word in x:
                h, c = numpy_step(weights(f"encoder_{i}"), word, h, c)
                outputs.append(h)
            x = np.array(outputs)
            states.append((h, c))
            hiddens[f"encoder_{i}"].append((x, h, c))
        x = embed["target"][inputs["decoder_token_ids"][row]]
        for i in range(3):
            h, c = states[i]
            outputs = []
            for word in x:
                h, c = numpy_step(weights(f"decoder_{i}"), word, h, c)
                outputs.append(h)
            x = np.array(outputs)
            hiddens[f"decoder_{i}"].append((x, h, c))
        logits.append(x @ Wl + bl)
    for name, rows in hiddens.items():
        actual = intermediate(model, inputs, name)
        for row, (outputs, h, c) in enumerate(rows):
            # In the reversed source padding comes first.
            close(actual[0][row, -len(outputs) :], outputs)
            close(actual[1][row], h)
            close(actual[2][row], c)
    close(logits_of(model, inputs), np.array(logits))
