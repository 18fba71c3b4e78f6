"""U-Net, FCN and the detectors against their peers, and in LiteRT and ONNX Runtime.

    python benchmarks/dense.py                       every row
    python benchmarks/dense.py --row "unet forward, batch 1" --rounds 7
    python benchmarks/dense.py --small --rounds 1    tiny images: checks that rows run

Published sizes, random weights, float32; see `tables.py`. Besides the extra `parity`:
`pip install --no-deps keras-unet-collection==0.1.13`, "keras" in the table. Its
`unet_2d` has the same widths, but one more 3 × 3 convolution in each stage of the
decoder, and transposed convolutions of 3 × 3 pixels instead of 2 × 2. "torch" is
torchvision, eager, which `tests/parity/torchvision_shim.py` finds, and for U-Net the
same layers in PyTorch. Where torchvision's operators do not match the installed
PyTorch, the shim replaces them: RoI align is then torchvision's own Python code,
compiled by PyTorch, whose training step needs more than 24 GB at the published size,
and NMS is a loop in NumPy.

A detector makes 1000 proposals and 100 detections: random weights would find no object,
so the bias of one class is large, and each block of the ResNet equals its shortcut,
which keeps boxes apart. Mask R-CNN's masks are pasted into the image, except in LiteRT
and ONNX Runtime, whose files end before this step.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import interleaved
import tables
from tables import forward, torch_forward

# Contestants of each row; the first is ours.
RUNTIMES = {"litert": "model.tflite", "onnx": "model.onnx"}
CONTESTANTS = {
    "unet forward, batch 1": ("ours", "keras", "torch", *RUNTIMES),
    "unet forward, batch 4": ("ours", "keras", "torch"),
    "unet training, batch 1": ("ours", "keras", "torch"),
    "unet training, batch 4": ("ours", "keras", "torch"),
    "fcn_resnet50 forward": ("ours", "torch", *RUNTIMES),
    "faster_rcnn_resnet50 forward": ("ours", "torch", *RUNTIMES),
    "faster_rcnn_vgg16 forward": ("ours", *RUNTIMES),
    "mask_rcnn_resnet50 forward": ("ours", "torch", *RUNTIMES),
    "mask_rcnn_resnet50 training": ("ours", "torch"),
}
ROWS = {row: ("float32",) for row in CONTESTANTS}
SIZES = {"unet": 512, "fcn": 512, "faster": 800, "mask": 800}
SMALL_SIZES = {"unet": 64, "fcn": 64, "faster": 128, "mask": 128}
WIDTHS, SMALL_WIDTHS = [64, 128, 256, 512, 1024], [4, 8, 16, 16, 16]
UNET_CLASSES, FCN_CLASSES, OBJECT_CLASSES = 2, 21, 90
RATE = 1e-4


class Dense:
    """The calls of all rows.

    Args:
        arguments: Of `tables.new_parser`, with `small` and `folder`.
    """

    def __init__(self, arguments):
        self.folder = Path(arguments.folder or ".")
        self.sizes = SMALL_SIZES if arguments.small else SIZES
        self.widths = SMALL_WIDTHS if arguments.small else WIDTHS

    def images(self, row):
        """Random images (B, H, W, 3)."""
        import numpy as np

        batch = int(row[-1]) if "batch" in row else 1
        side = self.sizes[row.split("_")[0].split()[0]]
        shape = (batch, side, side, 3)
        return np.random.default_rng(0).normal(size=shape).astype("float32")

    def model(self, row):
        """Our model of a row."""
        from keras_attn import models

        name, side = row.split()[0], self.images(row).shape[1]
        if name == "unet":
            return models.create(
                name,
                image_size=side,
                num_channels=3,
                padding="same",
                hidden_dims=self.widths,
                num_classes=UNET_CLASSES,
                dropout=0.0,
            )
        options = {}
        if name.startswith("fcn"):
            options = {"auxiliary_head": False}  # torchvision has it for training only.
        elif "training" in row:
            # Without a checkpoint, torchvision trains the whole model, including norms.
            options = {"num_frozen": 0, "frozen_norms": False}
        model = models.create(name, image_size=side, **options)
        for layer in model.layers:
            if layer.name.endswith("_norm_2"):
                layer.gamma.assign(0.0 * layer.gamma)
            if layer.name == "class_logits":
                layer.bias.assign(likely_class(layer.bias.shape[0]))
        return model

    def ours(self, row):
        """The call of our model."""
        from keras_attn import ops

        model, images = self.model(row), self.images(row)
        if row != "mask_rcnn_resnet50 forward":
            return keras_call(row, model, images)

        def detect(images, training):
            found = model(images, training=training)
            size = images.shape[1:3]
            # As torchvision does.
            masks = ops.paste_masks(found["masks"], found["boxes"], size, aligned=False)
            return {**found, "masks": masks}

        return forward(detect, images)

    def write(self, row):
        """Exports the model of a row for all runtimes."""
        from keras_attn import export

        self.folder.mkdir(parents=True, exist_ok=True)
        model, images = self.model(row), self.images(row)
        for file in RUNTIMES.values():
            report = export.export(
                model, self.folder / file, batch_size=1, sample_inputs=images
            )
            print(report, file=sys.stderr)

    def call(self, contestant, row):
        """The call of a contestant."""
        if contestant in RUNTIMES:
            return self.runtime(contestant, row)
        return {"ours": self.ours, "keras": self.keras, "torch": self.torch}[
            contestant
        ](row)

    def runtime(self, contestant, row):
        """The call of an exported file."""
        from keras_attn import export

        images = self.images(row)
        runner = export.load_runner(self.folder / RUNTIMES[contestant])
        return lambda: runner({"images": images})

    def keras(self, row):
        """The call of keras-unet-collection."""
        from keras_unet_collection import (  # pyright: ignore[reportMissingImports]
            models,
        )

        images = self.images(row)
        model = models.unet_2d(
            images.shape[1:],
            self.widths,
            UNET_CLASSES,
            output_activation=None,
            pool="max",
            unpool=False,
        )
        return keras_call(row, model, images)

    def torch(self, row):
        """The call of the model in PyTorch."""
        import torch  # pyright: ignore[reportMissingImports]

        images = torch.tensor(self.images(row)).movedim(-1, 1).contiguous()
        model = self.torch_model(row)
        if "training" not in row:
            inputs = list(images) if "rcnn" in row else images
            return torch_forward(model, inputs)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        labels = torch.tensor(true_labels(self.images(row))).long()
        truth = true_objects(self.images(row))
        objects = {
            "boxes": torch.tensor(truth["boxes"][0]),
            "labels": torch.tensor(truth["classes"][0]).long() + 1,
            "masks": torch.tensor(truth["masks"][0]).to(torch.uint8),
        }

        def step():
            optimizer.zero_grad()
            if "rcnn" in row:
                loss = sum(model(list(images), [objects]).values())
            else:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()

        return step

    def torch_model(self, row):
        """The model in PyTorch, with random weights."""
        if row.startswith("unet"):
            return torch_unet(self.widths)
        import torch  # pyright: ignore[reportMissingImports]

        vision = shim().load_torchvision().models
        options = {"weights": None, "weights_backbone": None}
        if row.startswith("fcn"):
            model = vision.segmentation.fcn_resnet50(num_classes=FCN_CLASSES, **options)
        else:
            name = row.split()[0].replace("_rcnn", "rcnn") + "_fpn"
            side = self.images(row).shape[1]
            model = vision.get_model(
                name,
                num_classes=OBJECT_CLASSES + 1,
                min_size=side,
                max_size=side,
                **options,
            )
            bias = model.roi_heads.box_predictor.cls_score.bias
            bias.data = torch.tensor(likely_class(len(bias)))
        for name, module in model.named_modules():
            if name.endswith("bn3"):
                module.weight.data.zero_()
        return model


def needs(row, contestant):
    """The packages that a contestant imports."""
    if contestant != "torch" or row.startswith("unet"):
        return {"keras": ("keras_unet_collection",), "torch": ("torch",)}.get(
            contestant, ()
        )
    shim()  # Finds torchvision.
    return "torch", "torchvision"


def shim():
    """`tests/parity/torchvision_shim.py`, with torchvision on the path."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from parity import torchvision_shim  # pyright: ignore[reportMissingImports]

    torchvision_shim.is_installed()
    return torchvision_shim


def keras_call(row, model, images):
    """A forward pass, or a training step, of a Keras model."""
    import keras

    if "training" not in row:
        return forward(model, images)
    truth, loss = true_objects(images), None  # A detector has its own losses.
    if row.startswith("unet"):
        truth = true_labels(images)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE), loss, jit_compile=False)
    return lambda: model.train_on_batch(images, truth)


def likely_class(count):
    """Biases of logits with which each proposal is an object of class 0."""
    import numpy as np

    return (5.0 * (np.arange(count) == 1)).astype("float32")


def true_labels(images):
    """Labels (B, H, W)."""
    import numpy as np

    return (images[..., 0] > 0).astype(np.int32)


def true_objects(images):
    """Two objects of an image, with masks."""
    import numpy as np

    side = images.shape[1]
    return {
        "boxes": side * np.array([[[0.1, 0.1, 0.5, 0.4], [0.3, 0.2, 0.8, 0.9]]], "f4"),
        "classes": np.array([[3, 5]], "int32"),
        "masks": np.ones((1, 2, side, side), bool),
    }


def torch_unet(widths):
    """The layers of our U-Net with "same" padding, in PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]

    def convolutions(source, width):
        return nn.Sequential(
            nn.Conv2d(source, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        )

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            pairs = list(zip(widths[:-1], widths[1:], strict=True))
            encoder = [convolutions(*each) for each in ((3, widths[0]), *pairs)]
            self.encoder = nn.ModuleList(encoder)
            self.pooling = nn.MaxPool2d(2)
            ups = [nn.ConvTranspose2d(wide, few, 2, 2) for few, wide in pairs]
            self.ups = nn.ModuleList(ups)
            decoder = [convolutions(2 * few, few) for few, _ in pairs]
            self.decoder = nn.ModuleList(decoder)
            self.logits = nn.Conv2d(widths[0], UNET_CLASSES, 1)

        def forward(self, hidden):
            maps = []
            for stage, convolve in enumerate(self.encoder):
                hidden = convolve(self.pooling(hidden) if stage else hidden)
                maps.append(hidden)
            for stage in reversed(range(len(self.ups))):
                hidden = torch.cat([maps[stage], self.ups[stage](hidden)], 1)
                hidden = self.decoder[stage](hidden)
            return self.logits(hidden)

    return UNet()


def main():
    """Exports the models, and prints a row of the table for each."""
    parser = tables.new_parser(__doc__, ROWS)
    parser.add_argument(
        "--folder", help="folder for exported files; default: a temporary one"
    )
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.write:
        Dense(arguments).write(arguments.row)
    elif arguments.serve:
        contestant, row, _ = arguments.serve
        interleaved.serve({row: Dense(arguments).call(contestant, row)})
    else:
        with tempfile.TemporaryDirectory() as temporary:
            print_table(arguments, Path(arguments.folder or temporary))


def print_table(arguments, folder):
    """Prints the table, with the files of each row in a folder of its own."""

    def prepare(row):
        options = ["--folder", str(folder / re.sub(r"\W+", "_", row))]
        if arguments.small:
            options.append("--small")
        if "litert" in CONTESTANTS[row]:
            # In its own process, which frees its memory.
            command = [sys.executable, __file__, "--write", "--row", row, *options]
            subprocess.run(command, check=True)
        return options

    rows = {arguments.row: ROWS[arguments.row]} if arguments.row else ROWS
    tables.print_table(__file__, rows, CONTESTANTS, needs, arguments.rounds, prepare)


if __name__ == "__main__":
    main()
