"""Tiny checkpoints of torchvision, in folders as in `hugging_face.py`.

`python tests/parity/torchvision_references.py` takes a few seconds. Needs PyTorch and
torchvision 0.28.0; `torchvision_shim.py` says how it is imported.

Arrays have our order of axes: channels last.
"""

import functools
import sys
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
from torch import nn  # pyright: ignore[reportMissingImports]

sys.path.insert(0, str(Path(__file__).parent.parent))
from parity.torchvision_shim import load_torchvision  # noqa: E402
from parity.write_folders import write  # noqa: E402

torchvision = load_torchvision()

B, CLASSES = 2, 5
SPREAD = 0.3  # Standard deviation of scales, shifts and biases.
STEM_DIM = 3
NUM_BLOCKS = (1, 2, 2, 1)
HIDDEN_DIMS, NUM_CONVS, FULLY_CONNECTED_DIMS = (5, 7), (1, 2), (11, 13)
# Case to the size of its images, rows first.
SIZES = {
    "torchvision_resnet18": (37, 54),
    "torchvision_resnet50": (37, 54),
    "torchvision_vgg16": (14, 22),
    "torchvision_fcn_resnet50": (21, 30),
    "torchvision_fcn_resnet50_plain": (29, 15),
}
_resnet, _vgg = torchvision.models.resnet, torchvision.models.vgg
_segmentation = torchvision.models.segmentation


class TinyResNet(_resnet.ResNet):
    """torchvision's ResNet with fewer channels."""

    def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
        if planes == 64:
            self.inplanes = STEM_DIM
            self.conv1 = nn.Conv2d(3, STEM_DIM, 7, stride=2, padding=3, bias=False)
            self.bn1 = self._norm_layer(STEM_DIM)
        planes = STEM_DIM * planes // 64
        # Not `super()`: other classes have this method too.
        make = _resnet.ResNet._make_layer
        return make(self, block, planes, blocks, stride, dilate)


class TinyVGG(_vgg.VGG):
    """torchvision's VGG with fewer layers, for images of its size in `SIZES`."""

    def __init__(self):
        nn.Module.__init__(self)
        plan = []
        for width, count in zip(HIDDEN_DIMS, NUM_CONVS, strict=True):
            plan += [width] * count + ["M"]
        self.features = _vgg.make_layers(plan)
        rows, columns = (
            side // 2 ** len(HIDDEN_DIMS) for side in SIZES["torchvision_vgg16"]
        )
        # The published one gets maps of 7 × 7, which this pooling leaves as they are.
        self.avgpool = nn.AdaptiveAvgPool2d((rows, columns))
        widths = [HIDDEN_DIMS[-1] * rows * columns, *FULLY_CONNECTED_DIMS, CLASSES]
        layers = []
        for inputs, outputs in zip(widths, widths[1:], strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout()]
        self.classifier = nn.Sequential(*layers[:-2])


def tiny_resnet(block=_resnet.Bottleneck, **options):
    """A ResNet with `CLASSES` classes."""
    model = TinyResNet(block, NUM_BLOCKS, **options)
    model.fc = nn.Linear(8 * block.expansion * STEM_DIM, CLASSES)
    return model


def tiny_fcn(auxiliary):
    """An FCN as `fcn_resnet50` assembles it, on a tiny ResNet."""
    backbone = tiny_resnet(replace_stride_with_dilation=[False, True, True])
    returned = {"layer4": "out", **({"layer3": "aux"} if auxiliary else {})}
    body = torchvision.models._utils.IntermediateLayerGetter(backbone, returned)
    head = _segmentation.fcn.FCNHead
    second = head(16 * STEM_DIM, CLASSES) if auxiliary else None
    return _segmentation.FCN(body, head(32 * STEM_DIM, CLASSES), second)


_RESNET_SIZES = {"stem_dim": STEM_DIM, "num_blocks": NUM_BLOCKS}
# Case to its model and the fields of its configuration.
CASES = {
    "torchvision_resnet18": (
        functools.partial(tiny_resnet, _resnet.BasicBlock),
        {"architecture": "resnet18", "model_args": _RESNET_SIZES},
    ),
    "torchvision_resnet50": (
        tiny_resnet,
        {"architecture": "resnet50", "model_args": _RESNET_SIZES},
    ),
    "torchvision_vgg16": (
        TinyVGG,
        {
            "architecture": "vgg16",
            "model_args": {
                "image_size": SIZES["torchvision_vgg16"],
                "hidden_dims": HIDDEN_DIMS,
                "num_convs": NUM_CONVS,
                "fully_connected_dims": FULLY_CONNECTED_DIMS,
            },
        },
    ),
    "torchvision_fcn_resnet50": (
        functools.partial(tiny_fcn, True),
        {
            "architecture": "fcn_resnet50",
            "aux_loss": True,
            "model_args": _RESNET_SIZES,
        },
    ),
    "torchvision_fcn_resnet50_plain": (
        functools.partial(tiny_fcn, False),
        {
            "architecture": "fcn_resnet50",
            "aux_loss": False,
            "model_args": _RESNET_SIZES,
        },
    ),
}


def make_cases():
    """Name of every case to its tensors, its configuration and its arrays."""
    cases = {}
    for name, (make, fields) in CASES.items():
        model = make().eval()
        randomize(model)
        arrays = _run(model, SIZES[name])
        tensors = {
            # Counts of batches are integers.
            key: x.numpy().astype("float16" if x.is_floating_point() else "int64")
            for key, x in model.state_dict().items()
        }
        config = {"library": "torchvision", "num_classes": CLASSES, **fields}
        cases[name] = tensors, config, arrays
    return cases


def randomize(model):
    """Sets random weights, rounded as in the files."""
    rng = np.random.default_rng(11)
    with torch.no_grad():
        for key, value in sorted(model.state_dict().items()):
            if not value.is_floating_point():
                continue
            is_scale = value.ndim == 1 and key.endswith(".weight")
            # Kernels keep the size of what they get, so that outputs are of size one.
            spread = SPREAD if value.ndim == 1 else value[0].numel() ** -0.5
            values = rng.normal(0, spread, value.shape) + is_scale
            if key.endswith("running_var"):
                values = np.abs(values) + 0.5
            value.copy_(torch.from_numpy(values.astype("float16").astype("float32")))


def _run(model, size):
    images = np.random.default_rng(19).normal(size=(B, *size, 3)).astype("float32")
    with torch.no_grad():
        found = model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    if isinstance(found, torch.Tensor):
        found = {"out": found}
    names = {"out": "output_logits", "aux": "output_auxiliary_logits"}
    outputs = {
        names[key]: np.moveaxis(value.numpy(), 1, -1) for key, value in found.items()
    }
    return {"input_images": images, **outputs}


if __name__ == "__main__":
    write(make_cases())
