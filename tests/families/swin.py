"""Swin."""

from model_family import HEADS, STAGES, Graph

GRAPHS = [
    Graph(
        "swin_tiny",
        {
            **STAGES,
            "window_size": 4,
            "hidden_dim": 4 * HEADS,
            "num_blocks": (2, 2),
            "num_heads": (2, HEADS),
            "stochastic_depth": 0.0,
        },
        {
            # Counted by `transformers`.
            "swin_tiny": 28_288_354,
            "swin_small": 49_606_258,
            "swin_base": 87_768_224,
            "swin_large": 196_532_476,
        },
        options={"features": {"include_top": False}},
    )
]
