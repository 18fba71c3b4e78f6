"""ResNet v1.5: residual blocks of convolutions and batch norms.

    build_resnet  images -> logits, or the features of each stage

Legend: B batch, H and W pixels, C classes.
Layers: as in `models/parts/backbones/resnet.py`, and `classifier`. If `image_size`
is None, `minimum_image_size` comes first.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from keras import ops

from keras_attn.checks.argument_types import AnySize, Epsilon, Index, MayBeEmpty
from keras_attn.docstrings.descriptions import described_as
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.backbones.resnet import resnet
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import (
    any_image_input,
    classify,
)

# He et al. 2016, table 1.
VARIANTS = {
    "18": {"stem_dim": 64, "num_blocks": (2, 2, 2, 2), "block": "basic"},
    "34": {"stem_dim": 64, "num_blocks": (3, 4, 6, 3), "block": "basic"},
    "50": {"stem_dim": 64, "num_blocks": (3, 4, 6, 3), "block": "bottleneck"},
    "101": {"stem_dim": 64, "num_blocks": (3, 4, 23, 3), "block": "bottleneck"},
    "152": {"stem_dim": 64, "num_blocks": (3, 8, 36, 3), "block": "bottleneck"},
}
CARDS = model_cards(
    "resnet{variant}",
    {
        "18": 11_689_512,
        "34": 21_797_672,
        "50": 25_557_032,
        "101": 44_549_160,
        "152": 60_192_808,
    },
    scores=[
        scored(
            "ImageNet top-1",
            "at 224",
            "torchvision's first weights",
            {"18": 69.8, "34": 73.3, "50": 76.1, "101": 77.4, "152": 78.3},
        )
    ],
    title="ResNet-{variant}: residual bottlenecks of convolutions",
    paper="He et al. 2016, arXiv:1512.03385",
    # torchvision's `ImageClassification(crop_size=224)`, for its first weights.
    **tasks.image_classification(tasks.IMAGENET, "bilinear", 0.875),
)


@registered(CARDS, VARIANTS)
@described_as(resnet)
def build_resnet(
    variant: str = "50",
    *,
    image_size: AnySize = 224,
    num_classes: int = 1000,
    include_top: bool = True,
    stem_dim: int = FROM_VARIANT,
    num_blocks: Sequence[int] = FROM_VARIANT,
    block: Literal["basic", "bottleneck"] = FROM_VARIANT,
    dilated_stages: Annotated[Sequence[Index], MayBeEmpty()] = (),
    num_channels: int = 3,
    norm_epsilon: Epsilon = 1e-5,
    frozen_norms: bool = False,
    num_frozen: Index = 0,
    name: str = "resnet",
) -> Functional:
    """A 7 × 7 convolution and stages of blocks, each halving rows and columns.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns). None = images of any
            size, which may differ between batches; either number may also be None.
        num_classes: C.
        include_top: Whether the model outputs logits (True) or features (False).
        dilated_stages: Stages that dilate their kernels and keep the map's size;
            bottlenecks only.
        num_channels: Channels of the images.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, C); without the top, to
        a dictionary of the maps `stage_0`, …, (B, rows, columns, 4 · stem_dim · 2^s),
        with basic blocks (B, rows, columns, stem_dim · 2^s), the first four times
        smaller than the image and each of the others half as large as the one before,
        rounded up; and `pooled_output`, the mean of the last map.

    Raises:
        ValueError: If a size is not a positive integer, `block` is unknown,
            `dilated_stages` names a stage that is missing or has basic blocks, or
            `num_frozen` exceeds the number of parts.

    Reference:
        He et al. 2016, "Deep Residual Learning for Image Recognition"
        (arXiv:1512.03385).
    """
    images, hidden = any_image_input(image_size, num_channels, (1, 1))
    maps = resnet(
        hidden,
        stem_dim=stem_dim,
        num_blocks=num_blocks,
        block=block,
        dilated_stages=dilated_stages,
        norm_epsilon=norm_epsilon,
        frozen_norms=frozen_norms,
        num_frozen=num_frozen,
    )
    *_, last = maps.values()
    pooled = ops.mean(last, axis=(1, 2))
    if include_top:
        outputs = classify(pooled, num_classes)
    else:
        outputs = {**maps, "pooled_output": pooled}
    return Functional(images, outputs, name=name)
