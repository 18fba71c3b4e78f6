"""Show and Tell."""

import numpy as np
from caption_reference import show_and_tell, weights_by_layer
from model_family import CAPTIONS, Graph, U, dense, gate


def reference(model, inputs):
    """Vinyals et al. 2015, section 3.1."""
    weights = weights_by_layer(model)
    rows = zip(inputs["features"], inputs["decoder_token_ids"], strict=True)
    return {"logits": np.array([show_and_tell(weights, *row) for row in rows])}


def count(vocabulary, e, u, channels):
    lstm = 4 * gate(e, u)
    return dense(channels, e) + vocabulary * e + lstm + dense(u, vocabulary)


GRAPHS = [
    Graph(
        "caption_show_and_tell",
        {**CAPTIONS, "hidden_dim": U, "dropout": 0.3},
        {"caption_show_and_tell": count(12_000, 512, 512, 2048)},
        options={"context": {"image_as": "context"}},
        pairs=("caption_show_and_tell", "caption_show_and_tell-context"),
        attends=False,
        reference=reference,
    )
]
