"""The masked autoencoder."""

from families.gpt import gpt
from families.vit import TINY, vit
from model_family import HEADS, Graph, U, dense


def mae(width, layers, patch):
    encoder = vit(width, layers, patch) - dense(width, 1000)
    patches = (224 // patch) ** 2
    # The decoder: a projection, a mask token, and 8 blocks of 512 units.
    decoder = gpt(0, patches + 1, 512, 8) + 512 + dense(width, 512)
    return encoder + decoder + dense(512, patch * patch * 3)


GRAPHS = [
    Graph(
        "mae_vit_base",
        {
            **TINY,
            "hidden_dim": 4 * HEADS,
            "decoder_num_layers": 1,
            "decoder_hidden_dim": 4 * U,
            "decoder_num_heads": 2,
            "decoder_mlp_dim": 41,
            # Otherwise every call would mask other patches.
            "noise": True,
        },
        {
            "mae_vit_base": mae(768, 12, 16),
            "mae_vit_large": mae(1024, 24, 16),
            "mae_vit_huge": mae(1280, 32, 14),
        },
        tables=("position_embedding",),  # Sinusoids.
    )
]
