"""The decoder of segmentation-models-pytorch's U-Net on a tiny encoder.

`generate.py` writes them, in the format of `segmenter_references.py`.

Needs what `make install` puts beside torchvision; see `torchvision_shim.py`.
"""

import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
from segmenter_references import CLASSES, _Case
from torchvision_shim import load_torchvision

load_torchvision()

from segmentation_models_pytorch.base import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    SegmentationHead,
)
from segmentation_models_pytorch.decoders.unet.decoder import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    UnetDecoder,
)

WIDTHS, DECODER = (4, 5, 6), (6, 4, 3)


def network(case, images):
    """Convolutions that halve the map, rounded up, and the decoder on their maps."""
    features = [images]
    for stage, width in enumerate(WIDTHS):
        layer = torch.nn.Conv2d(features[-1].shape[1], width, 3, 2, padding=1)
        hidden = case.named(f"stage_{stage}", layer)(features[-1])
        features.append(hidden.relu())
    decoder = UnetDecoder((3, *WIDTHS), DECODER, n_blocks=len(DECODER))
    for index, block in enumerate(decoder.blocks):
        name = f"decoder_{len(DECODER) - 1 - index}"
        for place, layers in enumerate((block.conv1, block.conv2)):
            convolution, norm, _ = layers
            case.named(f"{name}_conv_{place}", convolution)
            case.named(f"{name}_norm_{place}", norm)
    head = SegmentationHead(DECODER[-1], CLASSES)
    case.named("classifier", head[0])
    return head(decoder.eval()(features))


def make_cases():
    """Name of every case to its arrays."""
    sizes = {"smp_even": (8, 24), "smp_odd": (11, 13)}
    return {name: _Case().run(network, size, size) for name, size in sizes.items()}
