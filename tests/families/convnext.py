"""ConvNeXt."""

from model_family import STAGES, Graph, M, U

GRAPHS = [
    Graph(
        "convnext_tiny",
        {**STAGES, "hidden_dims": (U, M), "num_blocks": (2, 1)},
        {
            # Counted by `transformers`.
            "convnext_tiny": 28_589_128,
            "convnext_small": 50_223_688,
            "convnext_base": 88_591_464,
            "convnext_large": 197_767_336,
            "convnext_xlarge": 350_196_968,
        },
        options={
            "features": {"include_top": False},
            "any_size": {"image_size": None},
            "any_size_features": {"image_size": (None, None), "include_top": False},
        },
        attends=False,
    )
]
