"""ViT, Swin and ConvNeXt against KerasHub, Keras' applications and transformers.

    python benchmarks/vision.py                      every row
    python benchmarks/vision.py --row "vit forward" --rounds 7

Published sizes, random weights, 8 images of 224 pixels; `interleaved.py` says how.
Needs the extra `parity` and `pip install keras-hub==0.32.0`. What came out is in
`RESULTS.md`.
"""

import argparse
import os

import interleaved

# Row to its precisions.
ROWS = {
    "vit forward": ("float32", "bfloat16"),
    "vit frozen": ("bfloat16",),
    "swin forward": ("float32", "bfloat16"),
    "swin frozen": ("bfloat16",),
    "convnext forward": ("float32",),
    "vit training": ("float32",),
}
# Row to who takes part: "keras" is KerasHub, or Keras' own applications. Where ours is
# frozen KerasHub's is as it comes, and frozen by ours as well.
CONTESTANTS = {
    "vit forward": ("ours", "keras", "torch"),
    "vit frozen": ("ours", "keras", "torch", "keras frozen"),
    "swin forward": ("ours", "torch"),
    "swin frozen": ("ours", "torch"),
    "convnext forward": ("ours", "keras", "torch"),
    "vit training": ("ours", "keras", "torch"),
}
BATCH, SIZE, CLASSES = 8, 224, 1000
# ViT-S/16, for the training.
SMALL = {"num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536}


def ours(row):
    """A call of ours."""
    from keras_attn import models
    from keras_attn.training import AdamW

    if row == "vit training":
        return keras_training(AdamW, models.create("vit_small_patch16"))
    names = {
        "vit": "vit_base_patch16",
        "swin": "swin_tiny",
        "convnext": "convnext_tiny",
    }
    return forward(models.create(names[row.split()[0]]), frozen="frozen" in row)


def keras_own(row, frozen):
    """A call of KerasHub's, or of Keras' applications'."""
    import keras

    if row == "convnext forward":
        return forward(keras.applications.ConvNeXtTiny(weights=None))
    import keras_hub  # pyright: ignore[reportMissingImports]

    sizes = {"num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(SIZE, SIZE, 3),
        patch_size=16,
        **(SMALL if row == "vit training" else sizes),
    )
    model = keras_hub.models.ViTImageClassifier(
        backbone, CLASSES, preprocessor=None, pooling="token"
    )
    if row == "vit training":
        return keras_training(keras.optimizers.AdamW, model)
    return forward(model, frozen)


def torch(row, dtype):
    """A call of transformers', on PyTorch, eager."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    name = {"vit": "ViT", "swin": "Swin", "convnext": "ConvNext"}[row.split()[0]]
    own = {"num_labels": CLASSES}
    if row == "vit training":
        own.update(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
    config = getattr(transformers, f"{name}Config")(**own)
    model = getattr(transformers, f"{name}ForImageClassification")(config)
    pixels = torch.randn(BATCH, 3, SIZE, SIZE).to(getattr(torch, dtype))
    if row != "vit training":
        model = model.eval().to(getattr(torch, dtype))

        def forward():
            with torch.no_grad():
                model(pixels)

        return forward
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    labels = torch.zeros(BATCH, dtype=torch.long)

    def step():
        optimizer.zero_grad()
        model(pixels, labels=labels).loss.backward()
        optimizer.step()

    return step


def images():
    """Pixels, as Keras models take them."""
    import numpy as np

    return np.random.default_rng(0).normal(size=(BATCH, SIZE, SIZE, 3)).astype("f4")


def forward(model, frozen=False):
    """A compiled call without a copy of its outputs to NumPy."""
    import tensorflow as tf

    call = tf.function(lambda pixels: model(pixels, training=False))
    if frozen:
        call = interleaved.frozen(model)
    pixels = tf.constant(images())
    return lambda: call(pixels)


def keras_training(optimizer, model):
    """A step of AdamW on a classifier."""
    import keras
    import numpy as np

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(1e-5), loss, metrics=[])
    pixels, labels = images(), np.zeros(BATCH, "int32")
    return lambda: model.train_on_batch(pixels, labels)


def serve(who, row, dtype):
    """Child process: one contestant at one row."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if who == "torch":
        call = torch(row, dtype)
    else:
        import keras

        keras.config.set_dtype_policy(dtype)
        call = ours(row) if who == "ours" else keras_own(row, "frozen" in who)
    interleaved.serve({row: call})


def main():
    """Prints a line of the table for each row and precision."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--row", choices=ROWS, help="this one alone")
    parser.add_argument("--rounds", type=int, default=7, help="calls of each")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
        return
    rows = {arguments.row: ROWS[arguments.row]} if arguments.row else ROWS
    interleaved.print_table(__file__, rows, CONTESTANTS, arguments.rounds)


if __name__ == "__main__":
    main()
