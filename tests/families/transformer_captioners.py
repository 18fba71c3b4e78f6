"""Captioners: the Transformer on the map of a CNN, and GPT-2 on a ViT."""

from families.gpt import gpt
from families.transformer import transformer
from families.vit import TINY, vit
from model_family import HEADS, MLP, POSITIONS, Graph, U, V, dense

_CAPTIONER = {
    "vocabulary_size": V,
    "num_layers": 2,
    "num_heads": HEADS,
    "hidden_dim": 4 * HEADS,
    "mlp_dim": MLP,
}


def vit_gpt2():
    """Without classes; each block of GPT-2 has a second attention and its norm."""
    cross_attention = 4 * dense(768, 768) + 2 * 768
    encoder = vit(768, 12, 16) - dense(768, 1000)
    return encoder + gpt(50_257, 1024, 768, 12) + 12 * cross_attention


GRAPHS = [
    Graph(
        "caption_cnn_transformer",
        {**_CAPTIONER, "grid_size": (2, 5), "feature_dim": U, "dropout": 0.1},
        {
            "caption_cnn_transformer": transformer(10_000, 512, 2048, 6)
            + dense(512, 512)
        },
        options={"scores": {"return_attention_scores": True, "norm_first": True}},
    ),
    Graph(
        "caption_vit_transformer",
        {**_CAPTIONER, "encoder": TINY, "max_sequence_length": POSITIONS},
        {"caption_vit_transformer": vit_gpt2()},
        pairs=(),  # Its state is that of the captioner above.
    ),
]
