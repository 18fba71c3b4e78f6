"""Sutskever's stacked LSTMs and Cho's fixed context."""

from model_family import SEQ2SEQ, Graph, M, dense, gate


def sutskever(source, target, e, u, layers):
    """LSTMs of four gates; the first layer reads embeddings, the others states."""
    stack = 4 * gate(e, u) + (layers - 1) * 4 * gate(u, u)
    return (source + target) * e + 2 * stack + dense(u, target)


def readout(state, e, context, m, target):
    """Maxout over 2m units of [state; embedding; context], then the vocabulary."""
    return dense(state + e + context, 2 * m) + dense(m, target)


def context(source, target, e, u, m):
    return (
        (source + target) * e
        + 3 * gate(e, u)  # the encoder
        + dense(u, u)  # s_0
        + 3 * gate(e + u, u)  # the decoder reads [y; c]
        + readout(u, e, u, m, target)
    )


GRAPHS = [
    Graph(
        "seq2seq_sutskever",
        {**SEQ2SEQ, "num_layers": 2},
        {"seq2seq_sutskever": sutskever(160_000, 80_000, 1000, 1000, 4)},
        attends=False,
        smaller={},  # The second layer of an LSTM has other inputs.
    ),
    Graph(
        "seq2seq_context",
        {**SEQ2SEQ, "maxout_dim": M},
        {
            "seq2seq_context": context(15_000, 15_000, 100, 1000, 500),
            **dict.fromkeys(
                ("rnnencdec_30", "rnnencdec_50"),
                context(30_000, 30_000, 620, 1000, 500),
            ),
        },
    ),
]
