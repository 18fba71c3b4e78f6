"""Show and Tell."""

from model_family import CAPTIONS, Graph, U, dense, gate


def show_and_tell(vocabulary, e, u, channels):
    lstm = 4 * gate(e, u)
    return dense(channels, e) + vocabulary * e + lstm + dense(u, vocabulary)


GRAPHS = [
    Graph(
        "caption_show_and_tell",
        {**CAPTIONS, "hidden_dim": U, "dropout": 0.3},
        {"caption_show_and_tell": show_and_tell(12_000, 512, 512, 2048)},
        options={"context": {"image_as": "context"}},
        pairs=("caption_show_and_tell-context",),
        attends=False,
    )
]
