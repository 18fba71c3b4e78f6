"""SegNet: a decoder that puts each value back where the maximum was.

    build_segnet  images -> logits of each pixel

Legend: B batch, H and W pixels, C classes.
Layers: as in `models/parts/backbones/unpooling.py`, and `classifier`.
"""

from collections.abc import Sequence

from keras_attn.checks.argument_types import AnySize
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.backbones.unpooling import (
    pooled_stages,
    unpooled_stages,
)
from keras_attn.models.parts.backbones.vgg import VGG16_STAGES
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import (
    any_image_input,
    classify_pixels,
    convolution,
)

# Badrinarayanan et al. 2017, section 3: the convolutions of VGG16.
VARIANTS = {
    "base": VGG16_STAGES,
}
CARDS = model_cards(
    "segnet",
    {"base": 29_441_996},
    scores=[
        scored("CamVid mean IoU", "3.5 K images, 11 classes", "table 2", {"base": 60.1})
    ],
    title="SegNet: max unpooling by the encoder's indices",
    paper="Badrinarayanan et al. 2017, arXiv:1511.00561",
    **tasks.segmentation(tasks.UNIT),
)


@registered(CARDS, VARIANTS)
def build_segnet(
    variant: str = "base",
    *,
    image_size: AnySize = None,
    num_classes: int = 12,
    hidden_dims: Sequence[int] = FROM_VARIANT,
    num_convs: Sequence[int] = FROM_VARIANT,
    num_channels: int = 3,
    name: str = "segnet",
) -> Functional:
    """The convolutions of VGG16 with batch norms, and their mirror image.

    Poolings keep the locations of their maxima, two bits each, and the decoder puts its
    values there instead of learning to enlarge maps. A map with an odd number of rows
    or columns is padded where it is pooled, as in Caffe, so the output has the size of
    the image.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns). None = images of any
            size, which may differ between batches; either number may also be None.
        num_classes: C. 12 = the 11 classes of CamVid, and one for everything else.
        hidden_dims: Channels of each stage of the encoder.
        num_convs: Convolutions of each stage.
        num_channels: Channels of the images.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, H, W, C).

    Raises:
        ValueError: If `hidden_dims` and `num_convs` differ in length, or a size is not
            a positive integer.

    Reference:
        Badrinarayanan et al. 2017, "SegNet: A Deep Convolutional Encoder-Decoder
        Architecture for Image Segmentation" (arXiv:1511.00561).
    """
    images, hidden = any_image_input(image_size, num_channels, (1, 1))
    hidden, pooled = pooled_stages(hidden, hidden_dims, num_convs)
    # The last convolution of the decoder is the classifier.
    first, *others = num_convs
    hidden = unpooled_stages(
        hidden,
        pooled,
        hidden_dims,
        (first - 1, *others),
        lambda width, name: convolution(width, 3, name),
    )
    logits = classify_pixels(hidden, num_classes, 3)
    return Functional(images, logits, name=name)
