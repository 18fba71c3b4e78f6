"""Fully convolutional networks: a score per class for every pixel of any image.

    build_fcn_resnet  images -> logits of each pixel, on a dilated ResNet

Legend: B batch, H and W pixels, C classes.
Layers: those of `models/parts/resnet.py`; `head_conv`, `head_norm`, `head_dropout`,
`classifier`, `upsampling`; of the auxiliary head `auxiliary_conv`, `auxiliary_norm`,
`auxiliary_dropout`, `auxiliary_classifier`, `auxiliary_upsampling`. If `image_size` is
None, `minimum_image_size` comes first.
"""

from keras import ops
from keras.layers import BatchNormalization, Conv2D

from keras_attn.checks import check_positive
from keras_attn.layers import ResizeLike
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import he_normal_fan_out, normal
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import IMAGENET, any_image_input, segmenter_card
from keras_attn.models.parts.registry import register_variants
from keras_attn.models.parts.resnet import resnet
from keras_attn.models.parts.variants import (
    FROM_VARIANT,
    passes_options_to,
    with_sizes,
)

VARIANTS = {
    # He et al. 2016, table 1.
    "resnet": {
        "50": {"stem_dim": 64, "num_blocks": (3, 4, 6, 3)},
        "101": {"stem_dim": 64, "num_blocks": (3, 4, 23, 3)},
    },
}


@with_sizes(VARIANTS["resnet"])
@passes_options_to(resnet)
def build_fcn_resnet(
    variant="50",
    *,
    image_size=None,
    num_classes=21,
    auxiliary_head=True,
    stem_dim=FROM_VARIANT,
    num_blocks=FROM_VARIANT,
    dilated_stages=(2, 3),
    num_channels=3,
    dropout=0.1,
    name="fcn_resnet",
    **backbone,
):
    """A dilated ResNet, a head of two convolutions, and bilinear upsampling.

    Args:
        variant: A row of `VARIANTS["resnet"]`, the default of each argument that is
            None.
        image_size: Pixels, one number or two, rows first. None: images of any size,
            which may differ between batches; None for rows or columns: any number of
            these.
        num_classes: C.
        auxiliary_head: Whether the map before the last stage has a head of its own.
            In training its loss, weighted by 0.5, helps the earlier stages; afterwards
            it is of no use.
        stem_dim: Channels of the ResNet's first map.
        num_blocks: Bottlenecks of each stage.
        dilated_stages: Stages that dilate their kernels and keep the map's size.
        num_channels: Channels of the images.
        dropout: Probability of dropping a unit before the scores.
        name: Name of the model.
        **backbone: Further arguments of `models.parts.resnet.resnet`:
            norm_epsilon: Added to the variance by the norms of the ResNet.
            frozen_norms: Whether no norm of the ResNet is trained.
            num_frozen: Number of parts, the stem first, that are not trained.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, H, W, C); with the
        auxiliary head, to a dictionary of `logits` and `auxiliary_logits`, both
        (B, H, W, C).

    Raises:
        ValueError: for sizes that are not whole numbers above zero, a dilated stage
            that is not there, more frozen parts than there are, or an auxiliary head
            on a ResNet of one stage.

    Reference:
        Long et al. 2015, "Fully Convolutional Networks for Semantic Segmentation"
        (arXiv:1411.4038), in the form of torchvision's `fcn_resnet50`; auxiliary head:
        Zhao et al. 2017, section 3.3 (arXiv:1612.01105).
    """
    check_positive("num_classes", num_classes)
    if auxiliary_head and len(num_blocks) < 2:
        raise ValueError(
            "`auxiliary_head` needs a stage before the last: add one, or pass "
            f"auxiliary_head=False. Received: auxiliary_head={auxiliary_head}, "
            f"num_blocks={num_blocks}"
        )
    images, hidden = any_image_input(image_size, num_channels, (1, 1))
    maps = resnet(
        hidden,
        stem_dim=stem_dim,
        num_blocks=num_blocks,
        dilated_stages=dilated_stages,
        **backbone,
    )
    *_, last = maps.values()
    logits = _head(last, images, num_classes, dropout, "head", "")
    if not auxiliary_head:
        return Functional(images, logits, name=name)
    *_, inner, _ = maps.values()
    auxiliary = _head(inner, images, num_classes, dropout, "auxiliary", "auxiliary_")
    outputs = {"logits": logits, "auxiliary_logits": auxiliary}
    return Functional(images, outputs, name=name)


def _head(hidden, images, num_classes, dropout, name, prefix):
    """Scores (B, H, W, C) from a map, by a 3 × 3 convolution and one of 1 × 1."""
    hidden = Conv2D(
        hidden.shape[-1] // 4,
        3,
        padding="same",
        use_bias=False,
        kernel_initializer=he_normal_fan_out(),
        data_format="channels_last",
        name=f"{name}_conv",
    )(hidden)
    hidden = BatchNormalization(
        axis=-1, momentum=0.9, epsilon=1e-5, name=f"{name}_norm"
    )(hidden)
    hidden = Dropout(dropout, name=f"{name}_dropout")(ops.relu(hidden))
    scores = _scores(hidden, num_classes, f"{prefix}classifier", normal(0.01))
    return ResizeLike(dtype="float32", name=f"{prefix}upsampling")(scores, images)


def _scores(hidden, num_classes, name, kernel_initializer):
    """Logits for each place of a map, in float32 under every policy."""
    return Conv2D(
        num_classes,
        1,
        kernel_initializer=kernel_initializer,
        data_format="channels_last",
        dtype="float32",
        name=name,
    )(hidden)


register_variants(
    build_fcn_resnet,
    {
        "50": (35_322_218, "COCO, classes of VOC: mean IoU 60.5 with torchvision's"),
        "101": (54_314_346, "COCO, classes of VOC: mean IoU 63.7 with torchvision's"),
    },
    name="fcn_resnet{variant}",
    title="FCN on a dilated ResNet-{variant}: a class for every pixel",
    paper="Long et al. 2015, arXiv:1411.4038",
    **segmenter_card(IMAGENET, auxiliary=True),
)
