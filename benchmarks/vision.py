"""ViT, Swin and ConvNeXt against KerasHub, Keras' applications and transformers.

    python benchmarks/vision.py                      every row
    python benchmarks/vision.py --row "vit forward" --rounds 7

Published sizes, random weights, 8 images of 224 pixels; see `tables.py`.
"""

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
BATCH, SIZE, CLASSES = 8, 224, 1000
# ViT-S/16, for the training step.
SMALL = {"num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536}


def ours(row):
    """The call of our model."""
    from keras_attn import models
    from keras_attn.training import AdamW

    if row == "vit training":
        return keras_training(AdamW, models.create("vit_small_patch16"), images())
    names = {
        "vit": "vit_base_patch16",
        "swin": "swin_tiny",
        "convnext": "convnext_tiny",
    }
    model = models.create(names[row.split()[0]])
    return forward(model, images(), frozen="frozen" in row)


def keras_model(row, frozen):
    """The call of the model of KerasHub or of `keras.applications`."""
    import keras

    if row == "convnext forward":
        return forward(keras.applications.ConvNeXtTiny(weights=None), images())
    import keras_hub  # pyright: ignore[reportMissingImports]

    sizes = {**tables.BASE, "mlp_dim": 3072}
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(SIZE, SIZE, 3),
        patch_size=16,
        **(SMALL if row == "vit training" else sizes),
    )
    model = keras_hub.models.ViTImageClassifier(
        backbone, CLASSES, preprocessor=None, pooling="token"
    )
    if row == "vit training":
        return keras_training(keras.optimizers.AdamW, model, images())
    return forward(model, images(), frozen)


def torch(row, dtype):
    """The call of the model of transformers, on PyTorch, eager."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    name = {"vit": "ViT", "swin": "Swin", "convnext": "ConvNext"}[row.split()[0]]
    options = {"num_labels": CLASSES}
    if row == "vit training":
        options.update(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}ForImageClassification")(config)
    pixels = torch.randn(BATCH, 3, SIZE, SIZE).to(getattr(torch, dtype))
    if row != "vit training":
        return torch_forward(model.to(getattr(torch, dtype)), pixels)
    labels = torch.zeros(BATCH, dtype=torch.long)
    return torch_training(model, {"pixel_values": pixels, "labels": labels}, dtype)


def images():
    """Images, as the inputs of Keras models."""
    import numpy as np

    return np.random.default_rng(0).normal(size=(BATCH, SIZE, SIZE, 3)).astype("f4")


def main():
    """Prints a row of the table for each row and precision."""
    arguments = tables.new_parser(__doc__, ROWS).parse_args()
    tables.run(__file__, arguments, ROWS, CONTESTANTS, ours, keras_model, torch)


if __name__ == "__main__":
    main()
