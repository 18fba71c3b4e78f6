"""The Transformer."""

from model_family import BLOCKS, POSITIONS, Graph, dense


def transformer(vocabulary, width, mlp, layers):
    """Encoder and decoder blocks on one embedding; norms have two vectors each."""
    attention = 4 * dense(width, width)
    network = dense(width, mlp) + dense(mlp, width)
    encoder = attention + network + 2 * 2 * width
    decoder = 2 * attention + network + 3 * 2 * width
    return vocabulary * width + layers * (encoder + decoder)


GRAPHS = [
    Graph(
        "transformer_base",
        {**BLOCKS, "dropout": 0.1},
        {
            "transformer_base": transformer(37_000, 512, 2048, 6),
            "transformer_big": transformer(37_000, 1024, 4096, 6),
        },
        options={
            "pre_norm": {"norm_first": True},
            "positions": {
                "positions": "learned",
                "combine": "concatenate",
                "max_sequence_length": POSITIONS,
            },
        },
        exported=("transformer_base-positions",),
        pairs=("transformer_base", "transformer_base-positions"),
    )
]
