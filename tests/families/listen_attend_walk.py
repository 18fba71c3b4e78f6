"""Listen, attend and walk."""

from model_family import A, C, E, Graph, M, U, V, lstm


def listen_attend_walk(words=524, world=78, actions=4, units=100):
    """One width for everything; the aligner and the readout have no biases."""
    both = 3 * units  # A word, and what both directions of the LSTM make of it.
    encoder = words * units + 2 * lstm(units, units)
    decoder = world * units + lstm(units, units + both)
    aligner = units * units + both * units + units
    return encoder + decoder + aligner + units * (units + both) + units * actions


GRAPHS = [
    Graph(
        "listen_attend_walk",
        {
            "vocabulary_size": V,
            "world_dim": M,
            "num_actions": C,
            "embedding_dim": E,
            "hidden_dim": U,
            "attention_dim": A,
            "dropout": 0.3,
        },
        {"listen_attend_walk": listen_attend_walk()},
        options={"scores": {"return_attention_scores": True}},
    )
]
