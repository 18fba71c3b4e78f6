"""Tiny checkpoints of torchvision, in folders as in `hugging_face.py`.

`python tests/parity/torchvision_references.py` takes a few seconds. Needs PyTorch and
torchvision 0.28.0; `torchvision_shim.py` says how it is imported.

Arrays have our order of axes: channels last.
"""

import functools

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
from torch import nn  # pyright: ignore[reportMissingImports]
from torch_models import pixels_of, random_images, randomize_state
from torchvision_shim import load_torchvision
from write_folders import saving, write

torchvision = load_torchvision()

B, CLASSES = 2, 5
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


RESNET_SIZES = {"stem_dim": STEM_DIM, "num_blocks": NUM_BLOCKS}
# Case to its model and the fields of its configuration.
CASES = {
    "torchvision_resnet18": (
        functools.partial(tiny_resnet, _resnet.BasicBlock),
        {"architecture": "resnet18", "model_args": RESNET_SIZES},
    ),
    "torchvision_resnet50": (
        tiny_resnet,
        {"architecture": "resnet50", "model_args": RESNET_SIZES},
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
        {"architecture": "fcn_resnet50", "aux_loss": True, "model_args": RESNET_SIZES},
    ),
    "torchvision_fcn_resnet50_plain": (
        functools.partial(tiny_fcn, False),
        {"architecture": "fcn_resnet50", "aux_loss": False, "model_args": RESNET_SIZES},
    ),
}


def make_cases():
    """The cases of `write`."""
    same = {"library": "torchvision", "num_classes": CLASSES}
    return {
        name: case_of(make().eval(), {**same, **fields}, SIZES[name])
        for name, (make, fields) in CASES.items()
    }


def case_of(model, config, size):
    """A case of `write`, with random weights, and images of a size."""
    randomize_state(model)
    tensors = {
        # Counts of batches are integers.
        key: x.numpy().astype("float16" if x.is_floating_point() else "int64")
        for key, x in model.state_dict().items()
    }
    return saving(tensors, config), _run(model, size)


def _run(model, size):
    images = random_images(B, *size, 3)
    with torch.no_grad():
        found = model(pixels_of(images))
    if isinstance(found, torch.Tensor):
        found = {"out": found}
    names = {"out": "output_logits", "aux": "output_auxiliary_logits"}
    outputs = {
        names[key]: np.moveaxis(value.numpy(), 1, -1) for key, value in found.items()
    }
    return {"input_images": images, **outputs}


if __name__ == "__main__":
    write(make_cases())
