"""A tiny checkpoint of segmentation-models-pytorch's U-Net, on a ResNet.

`python tests/parity/smp_unet_references.py` writes `checkpoints/smp_unet`, as
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


class TinyEncoder(ResNetEncoder):
    """The library's ResNet with fewer channels."""

    _make_layer = references.TinyResNet._make_layer


def tiny_unet():
    """A U-Net with the parts of the library's, whose sizes are fixed by a name."""
    model = Unet("resnet50", encoder_weights=None, classes=references.CLASSES)
    widths = [3, *(references.STEM_DIM * factor for factor in (1, 4, 8, 16, 32))]
    model.encoder = TinyEncoder(
        widths,
        block=references._resnet.Bottleneck,
        layers=references.NUM_BLOCKS,
    )
    model.decoder = UnetDecoder(widths, DECODER, n_blocks=5)
    model.segmentation_head = SegmentationHead(DECODER[-1], references.CLASSES)
    return model.eval()


def make_cases():
    """Name of the case to its tensors, its configuration and its arrays."""
    model = tiny_unet()
    references.randomize(model)
    tensors = {
        key: value.numpy().astype("float16" if value.is_floating_point() else "int64")
        for key, value in model.state_dict().items()
    }
    config = {
        "library": "segmentation_models_pytorch",
        "architecture": "Unet",
        "encoder_name": "resnet50",
        "in_channels": 3,
        "classes": references.CLASSES,
        "decoder_channels": DECODER,
        "model_args": references._RESNET_SIZES,
    }
    return {"smp_unet": (tensors, config, references._run(model, SIZE))}


if __name__ == "__main__":
    write(make_cases())
