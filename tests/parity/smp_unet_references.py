"""Tiny checkpoints of segmentation-models-pytorch's U-Net, on two kinds of ResNet.

`python tests/parity/smp_unet_references.py` writes their folders, as
`torchvision_references.py` does, in a few seconds.

Needs what `smp_references.py` needs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from parity import torchvision_references as references  # noqa: E402  First: the shim.
from parity.write_folders import write  # noqa: E402
from segmentation_models_pytorch import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    Unet,
)
from segmentation_models_pytorch.base import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    SegmentationHead,
)
from segmentation_models_pytorch.decoders.unet.decoder import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    UnetDecoder,
)
from segmentation_models_pytorch.encoders.resnet import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    ResNetEncoder,
)

DECODER = (11, 7, 5, 3, 2)
SIZE = (37, 54)
# Name of the encoder to its kind of block.
BLOCKS = {
    "resnet18": references._resnet.BasicBlock,
    "resnet50": references._resnet.Bottleneck,
}


class TinyEncoder(ResNetEncoder):
    """The library's ResNet with fewer channels."""

    _make_layer = references.TinyResNet._make_layer


def tiny_unet(encoder_name):
    """A U-Net with the parts of the library's, whose sizes are fixed by a name."""
    block = BLOCKS[encoder_name]
    model = Unet(encoder_name, encoder_weights=None, classes=references.CLASSES)
    stages = [block.expansion * references.STEM_DIM * 2**stage for stage in range(4)]
    widths = [3, references.STEM_DIM, *stages]
    model.encoder = TinyEncoder(widths, block=block, layers=references.NUM_BLOCKS)
    model.decoder = UnetDecoder(widths, DECODER, n_blocks=5)
    model.segmentation_head = SegmentationHead(DECODER[-1], references.CLASSES)
    return model.eval()


def make_cases():
    """Name of each case to its tensors, its configuration and its arrays."""
    cases = {}
    for encoder_name in BLOCKS:
        model = tiny_unet(encoder_name)
        references.randomize(model)
        tensors = {
            key: value.numpy().astype(
                "float16" if value.is_floating_point() else "int64"
            )
            for key, value in model.state_dict().items()
        }
        config = {
            "library": "segmentation_models_pytorch",
            "architecture": "Unet",
            "encoder_name": encoder_name,
            "in_channels": 3,
            "classes": references.CLASSES,
            "decoder_channels": DECODER,
            "model_args": references._RESNET_SIZES,
        }
        name = f"smp_unet_{encoder_name}"
        cases[name] = tensors, config, references._run(model, SIZE)
    return cases


if __name__ == "__main__":
    write(make_cases())
