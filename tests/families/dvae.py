"""DALL·E's discrete VAE."""

from model_family import C, Graph, U

TINY = {
    # An image of 2 × 3 codes.
    "image_size": (4, 6),
    "vocabulary_size": C,
    "num_groups": 2,
    "num_blocks": 1,
    "base_dim": 20,
    "code_dim": U,
}

GRAPHS = [
    Graph(
        "dvae_dalle",
        TINY,
        # Counted in the authors' package: the encoder and the decoder; the last one is
        # the number of updates.
        {"dvae_dalle": 53_786_240 + 43_829_766 + 1},
        attends=False,
        smaller={"num_groups": 1},
    )
]
