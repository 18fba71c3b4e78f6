"""ViT, Swin and ConvNeXt against KerasHub, Keras' applications and transformers.

    python benchmarks/vision.py                      every row
    python benchmarks/vision.py --row "vit forward" --rounds 7
    python benchmarks/vision.py --small --rounds 1   tiny models: checks that rows run

Published sizes, random weights, 8 images of 224 pixels; see `tables.py`.
"""

import sys
from typing import Any, NamedTuple

import tables
from tables import forward, keras_training, torch_forward, torch_training

# Precisions of each row.
ROWS = {
    "vit forward": ("float32", "bfloat16"),
    "vit frozen": ("bfloat16",),
    "swin forward": ("float32", "bfloat16"),
    "swin frozen": ("bfloat16",),
    "convnext forward": ("float32",),
    "vit training": ("float32",),
}
# Contestants of each row: "keras" is KerasHub or `keras.applications`. "frozen":
# KerasHub's model takes part both unchanged and frozen.
CONTESTANTS = {
    "vit forward": ("ours", "keras", "torch"),
    "vit frozen": ("ours", "keras", "torch", "keras frozen"),
    "swin forward": ("ours", "torch"),
    "swin frozen": ("ours", "torch"),
    "convnext forward": ("ours", "keras", "torch"),
    "vit training": ("ours", "keras", "torch"),
}
CLASSES = 1000
NAMES = {"vit": "vit_base_patch16", "swin": "swin_tiny", "convnext": "convnext_tiny"}


class Sizes(NamedTuple):
    """Images and their pixels; sizes of the ViTs, the trained one, Swin and ConvNeXt.

    Those of Swin and ConvNeXt are the arguments of our builder.
    """

    batch: int
    side: int
    vit: dict[str, Any]
    trained_vit: dict[str, Any]
    swin: dict[str, Any]
    convnext: dict[str, Any]


PUBLISHED = Sizes(
    batch=8,
    side=224,
    vit=tables.BASE,
    # ViT-S/16.
    trained_vit={"num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536},
    swin={
        "hidden_dim": 96,
        "num_blocks": (2, 2, 6, 2),
        "num_heads": (3, 6, 12, 24),
        "window_size": 7,
    },
    convnext={"hidden_dims": (96, 192, 384, 768), "num_blocks": (3, 3, 9, 3)},
)
SMALL = Sizes(
    batch=2,
    side=32,
    vit=tables.TINY,
    trained_vit=tables.TINY,
    swin={
        "hidden_dim": 4,
        "num_blocks": (1, 1),
        "num_heads": (1, 2),
        "window_size": 4,
    },
    convnext={"hidden_dims": (4, 6, 8, 10), "num_blocks": (1, 1, 1, 1)},
)


def needs(row, contestant):
    """The packages that a contestant imports."""
    if contestant == "torch":
        return "torch", "transformers"
    # ConvNeXt is in Keras.
    is_hub = contestant.startswith("keras") and row != "convnext forward"
    return ("keras_hub",) if is_hub else ()


def ours(row, sizes):
    """The call of our model."""
    from keras_attn import models
    from keras_attn.training import AdamW

    name = row.split()[0]
    is_training = row == "vit training"
    blocks = sizes.trained_vit if is_training else getattr(sizes, name)
    model = models.create(NAMES[name], image_size=sizes.side, **blocks)
    if is_training:
        return keras_training(AdamW, model, images(sizes))
    return forward(model, images(sizes), frozen="frozen" in row)


def keras_model(row, frozen, sizes):
    """The call of the model of KerasHub or of `keras.applications`."""
    import keras

    shape = (sizes.side, sizes.side, 3)
    if row == "convnext forward":  # Its sizes cannot be changed.
        model = keras.applications.ConvNeXtTiny(weights=None, input_shape=shape)
        return forward(model, images(sizes))
    import keras_hub  # pyright: ignore[reportMissingImports]

    backbone = keras_hub.models.ViTBackbone(
        image_shape=shape,
        patch_size=16,
        **(sizes.trained_vit if row == "vit training" else sizes.vit),
    )
    model = keras_hub.models.ViTImageClassifier(
        backbone, CLASSES, preprocessor=None, pooling="token"
    )
    if row == "vit training":
        return keras_training(keras.optimizers.AdamW, model, images(sizes))
    return forward(model, images(sizes), frozen)


def torch_model(row, dtype, sizes):
    """The call of the model of transformers, on PyTorch, eager."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    name = {"vit": "ViT", "swin": "Swin", "convnext": "ConvNext"}[row.split()[0]]
    blocks = sizes.trained_vit if row == "vit training" else sizes.vit
    options = {
        "ViT": tables.hugging_face(blocks),
        "Swin": {
            "embed_dim": sizes.swin["hidden_dim"],
            "depths": sizes.swin["num_blocks"],
            "num_heads": sizes.swin["num_heads"],
            "window_size": sizes.swin["window_size"],
        },
        "ConvNext": {
            "hidden_sizes": sizes.convnext["hidden_dims"],
            "depths": sizes.convnext["num_blocks"],
        },
    }[name]
    config = getattr(transformers, f"{name}Config")(
        num_labels=CLASSES, image_size=sizes.side, **options
    )
    model = getattr(transformers, f"{name}ForImageClassification")(config)
    pixels = torch.randn(sizes.batch, 3, sizes.side, sizes.side)
    pixels = pixels.to(getattr(torch, dtype))
    if row != "vit training":
        return torch_forward(model.to(getattr(torch, dtype)), pixels)
    labels = torch.zeros(sizes.batch, dtype=torch.long)
    return torch_training(model, {"pixel_values": pixels, "labels": labels}, dtype)


def images(sizes):
    """Images, as the inputs of Keras models."""
    import numpy as np

    shape = (sizes.batch, sizes.side, sizes.side, 3)
    return np.random.default_rng(0).normal(size=shape).astype("f4")


def main():
    """Prints a row of the table for each row and precision."""
    arguments = tables.new_parser(__doc__, ROWS).parse_args()
    tables.run(sys.modules[__name__], arguments)


if __name__ == "__main__":
    main()
