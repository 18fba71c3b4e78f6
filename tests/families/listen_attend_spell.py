"""Listen, attend and spell."""

from model_family import POSITIONS, A, C, E, Graph, M, U, V, dense, lstm


def listen_attend_spell():
    """40 filters, 43 characters of 256, LSTMs of 256 a direction and of 512."""
    listener = 2 * lstm(256, 40) + 3 * 2 * lstm(256, 2 * 512)
    speller = 43 * 256 + lstm(512, 256 + 512) + lstm(512, 512)
    return listener + speller + 2 * dense(512, 512) + dense(1024, 512) + dense(512, 43)


GRAPHS = [
    Graph(
        "listen_attend_spell",
        {
            "vocabulary_size": V,
            "num_mels": E,
            "listener_dim": U,
            "num_pyramid_layers": 2,
            "embedding_dim": M,
            "hidden_dim": C,
            "num_layers": 2,
            "attention_dim": A,
            "readout_dim": POSITIONS,
            "sampling_probability": 0.0,
        },
        {"listen_attend_spell": listen_attend_spell()},
        options={
            "sampling": {
                "sampling_probability": 0.5,
                "num_pyramid_layers": 1,
                "return_attention_scores": True,
            }
        },
    )
]
