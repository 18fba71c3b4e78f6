"""Tiny checkpoints of segmentation-models-pytorch's U-Net, on two kinds of ResNet.

`python tests/parity/smp_unet_references.py` writes their folders, as
`torchvision_references.py` does, in a few seconds.

Needs what `smp_references.py` needs.
"""

import torchvision_references as references  # First: the shim.
from segmentation_models_pytorch import (  # pyright: ignore[reportMissingImports]
    Unet,
)
from segmentation_models_pytorch.base import (  # pyright: ignore[reportMissingImports]
    SegmentationHead,
)
from segmentation_models_pytorch.decoders.unet.decoder import (  # pyright: ignore[reportMissingImports]
    UnetDecoder,
)
from segmentation_models_pytorch.encoders.resnet import (  # pyright: ignore[reportMissingImports]
    ResNetEncoder,
)
from write_folders import write

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
    """The cases of `write`."""
    config = {
        "library": "segmentation_models_pytorch",
        "architecture": "Unet",
        "in_channels": 3,
        "classes": references.CLASSES,
        "decoder_channels": DECODER,
        "model_args": references.RESNET_SIZES,
    }
    return {
        f"smp_unet_{name}": references.case_of(
            tiny_unet(name), {**config, "encoder_name": name}, SIZE
        )
        for name in BLOCKS
    }


if __name__ == "__main__":
    write(make_cases())
