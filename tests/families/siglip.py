"""SigLIP."""

from families.clip import SMALLER, TEXT, blocks
from families.gpt import gpt
from families.vit import TINY
from model_family import Graph, dense

GRAPHS = [
    Graph(
        "siglip_base_patch16_224",
        {**TINY, **TEXT},
        {
            # Also counted by `transformers`.
            "siglip_base_patch16_224": gpt(32_000, 64, 768, 12)
            + dense(768, 768)
            + dense(16 * 16 * 3, 768)
            + blocks(768, 12, 196)
            # The pooling: a probe, attention, a norm and a feed-forward network.
            + 768
            + 4 * dense(768, 768)
            + 2 * 768
            + dense(768, 3072)
            + dense(3072, 768)
            + 2
        },
        smaller=SMALLER,
    )
]
