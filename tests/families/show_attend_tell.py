"""Show, attend and tell."""

from model_family import CAPTIONS, A, Graph, M, U, dense, gate


def show_attend_tell(vocabulary, e, u, a, initial, channels):
    """With the baseline of REINFORCE, one number."""
    states = dense(channels, initial) + 2 * dense(initial, u)
    attention = u * a + dense(channels, a) + a + dense(u, 1)
    lstm = 4 * gate(e + channels, u)
    readout = dense(u, e) + channels * e + dense(e, vocabulary)
    return states + vocabulary * e + attention + lstm + readout + 1


GRAPHS = [
    Graph(
        "caption_show_attend_tell",
        {
            **CAPTIONS,
            "hidden_dim": U,
            "attention_dim": A,
            "initial_dim": M,
            "dropout": 0.3,
        },
        {
            "caption_show_attend_tell": show_attend_tell(
                10_000, 512, 1800, 512, 512, 512
            )
        },
        options={
            "scores": {"return_attention_scores": True},
            "hard": {"attention": "hard", "seed": 1},
            "scaled_dot": {"score": "scaled_dot", "feature_dim": U},
            "general": {"score": "general"},
            "linear": {"score": "linear"},
        },
        exported=("caption_show_attend_tell-scores",),
    )
]
