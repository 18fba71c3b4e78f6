"""Show, attend and interact."""

from model_family import A, Graph, M, U, dense, lstm


def show_attend_interact():
    """Two cameras: four convolutions, attention, an LSTM and four actions, of 256."""
    kernels = [(9, 1, 16), (8, 16, 32), (7, 32, 64), (6, 64, 256)]
    count = sum(dense(size * size * one, other) for size, one, other in kernels)
    attention = dense(256, 256) + 256 * 256 + 256
    return 2 * (count + attention + lstm(256, 256) + dense(256, 4))


GRAPHS = [
    Graph(
        "show_attend_interact",
        {
            "image_size": (19, 23),
            "num_channels": 2,
            "hidden_dims": (5, U),
            "kernel_sizes": (5, 3),
            "strides": (3, 2),
            "attention_dim": A,
            "hidden_dim": M,
            "num_actions": 4,
        },
        {"show_attend_interact": show_attend_interact()},
        options={"scores": {"return_attention_scores": True}},
    )
]
