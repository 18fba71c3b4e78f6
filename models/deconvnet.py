"""DeconvNet: VGG16 to a vector per location, and back by unpooling and deconvolution.

    build_deconvnet  images -> logits of each pixel

Legend: B batch, H and W pixels, C classes.
Layers: as in `models/parts/backbones/unpooling.py`; between encoder and decoder
`fully_connected_0`, `fully_connected_0_norm`, `fully_connected_1`, …,
`decoder_fully_connected`, `decoder_fully_connected_norm`; `classifier`. If `image_size`
is None, `minimum_image_size` comes first.
"""

from collections.abc import Sequence
from typing import Annotated

from keras_attn.checks.argument_types import AnySize, MayBeEmpty
from keras_attn.layers.convolution.minimum_image_size import is_smaller
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.backbones.unpooling import (
    deconvolution,
    normed,
    pooled_stages,
    unpooled_stages,
)
from keras_attn.models.parts.backbones.vgg import VGG16
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import (
    any_image_input,
    classify_pixels,
    convolution,
    image_sides,
)

# Noh et al. 2015, table 2.
VARIANTS = {"vgg16": {**VGG16, "fully_connected_size": 7}}
CARDS = model_cards(
    "deconvnet_{variant}",
    {"vgg16": 251_788_949},
    training=Training(
        "VOC 2012",
        "section 5.1",
        hardware="TITAN X",
        devices=1,
        hours=6 * 24,
    ),
    scores=[
        scored("VOC 2012 mean IoU", "", "table 1", {"vgg16": 69.6}),
        scored("VOC 2012 mean IoU", "with FCN and a CRF", "table 1", {"vgg16": 72.5}),
    ],
    title="DeconvNet on VGG16: unpooling and deconvolution",
    paper="Noh et al. 2015, arXiv:1505.04366",
    **tasks.segmentation(tasks.IMAGENET),
)


@registered(CARDS, VARIANTS)
def build_deconvnet(
    variant: str = "vgg16",
    *,
    image_size: AnySize = 224,
    num_classes: int = 21,
    hidden_dims: Sequence[int] = FROM_VARIANT,
    num_convs: Sequence[int] = FROM_VARIANT,
    fully_connected_dims: Annotated[Sequence[int], MayBeEmpty()] = FROM_VARIANT,
    fully_connected_size: int = FROM_VARIANT,
    num_channels: int = 3,
    name: str = "deconvnet",
) -> Functional:
    """VGG16 as convolutions, then unpoolings and transposed convolutions.

    The fully connected layers are convolutions over the last map; at 224 pixels they
    see all of it. The batch norms after them then see one location per image, so train
    with several images in a batch: a single image would be normalized to zero. A map
    with an odd number of rows or columns is padded where it is pooled, as in Caffe.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns). None = images of any size
            from 193 pixels up, which may differ between batches; either number may also
            be None.
        num_classes: C.
        hidden_dims: Channels of each stage of the encoder.
        num_convs: Convolutions of each stage, and deconvolutions of its mirror image.
        fully_connected_dims: Channels of each fully connected layer.
        fully_connected_size: Rows and columns of the last map that the first fully
            connected layer sees at once.
        num_channels: Channels of the images.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, H, W, C).

    Raises:
        ValueError: If `hidden_dims` and `num_convs` differ in length, a size is not a
            positive integer, or the last map would be smaller than
            `fully_connected_size` at this `image_size`.

    Reference:
        Noh et al. 2015, "Learning Deconvolution Network for Semantic Segmentation"
        (arXiv:1505.04366).
    """
    size = fully_connected_size
    if not fully_connected_dims:
        raise ValueError(
            "`fully_connected_dims` must have at least one number: the first layer "
            "narrows the last map, which the deconvolution widens again. "
            f"Received: fully_connected_dims={fully_connected_dims!r}"
        )
    least = (size - 1) * 2 ** len(hidden_dims) + 1
    if is_smaller(image_sides(image_size), (least, least)):
        raise ValueError(
            f"`image_size` must be at least {least}, so that the last map has the "
            f"{size} rows and columns that the first fully connected layer needs. "
            f"Received: image_size={image_size}, fully_connected_size={size}"
        )
    images, hidden = any_image_input(image_size, num_channels, (least, least))
    hidden, pooled = pooled_stages(hidden, hidden_dims, num_convs)
    for index, width in enumerate(fully_connected_dims):
        name_of = f"fully_connected_{index}"
        kernel = 1 if index else size
        layer = convolution(width, kernel, name_of, padding="valid")
        hidden = normed(hidden, layer, f"{name_of}_norm")
    layer = deconvolution(hidden_dims[-1], size, "decoder_fully_connected")
    hidden = normed(hidden, layer, "decoder_fully_connected_norm")
    hidden = unpooled_stages(
        hidden,
        pooled,
        hidden_dims,
        num_convs,
        lambda width, name: deconvolution(width, 3, name, padding=1),
    )
    logits = classify_pixels(hidden, num_classes)
    return Functional(images, logits, name=name)
