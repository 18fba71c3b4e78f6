"""Fully convolutional networks: a score per class for every pixel of any image.

    build_fcn_vgg     images -> logits of each pixel, on VGG16
    build_fcn_resnet  the same on a dilated ResNet

Legend: B batch, H and W pixels, C classes.
Layers of both: `classifier`, `upsampling`. On VGG: `padding`, the layers of
`models/parts/backbones/vgg.py`, `fully_connected_0`, `fully_connected_0_dropout`, …;
for each skip, named by its stage, `upsampling_3`, `score_3`, `crop_3`; `crop`. On a
ResNet: the layers of `models/parts/backbones/resnet.py`, `head_conv`, `head_norm`,
`head_dropout`; in the auxiliary head `auxiliary_conv`, `auxiliary_norm`,
`auxiliary_dropout`, `auxiliary_classifier`, `auxiliary_upsampling`. If `image_size` is
None, `minimum_image_size` comes first.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import keras
from keras import ops
from keras.layers import ZeroPadding2D

from keras_attn.checks.argument_types import (
    AnySize,
    Epsilon,
    Index,
    MayBeEmpty,
    Probability,
)
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import Conv2D, CropLike, ResizeLike, TransposedConv2D
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import BilinearKernel, he_normal_fan_out, normal
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.backbones.resnet import resnet
from keras_attn.models.parts.backbones.vgg import VGG16, vgg
from keras_attn.models.parts.functional import Functional, by_name
from keras_attn.models.parts.images import (
    any_image_input,
    classify_pixels,
    normed_convolution,
)

VARIANTS = {
    # Long et al. 2015, section 4.2; the stages whose pooled maps are added.
    "vgg": {
        "32s": {**VGG16, "skips": ()},
        "16s": {**VGG16, "skips": (3,)},
        "8s": {**VGG16, "skips": (3, 2)},
    },
    # He et al. 2016, table 1.
    "resnet": {
        "50": {"stem_dim": 64, "num_blocks": (3, 4, 6, 3), "block": "bottleneck"},
        "101": {"stem_dim": 64, "num_blocks": (3, 4, 23, 3), "block": "bottleneck"},
    },
}
CARDS = {
    "vgg": model_cards(
        "fcn{variant}_vgg16",
        {"32s": 136_152_917, "16s": 134_815_994, "8s": 134_489_759},
        training={
            "32s": Training(
                "VOC 2011", "section 4.3", hardware="k40", devices=1, hours=3 * 24
            )
        },
        scores=[
            scored(
                "VOC 2011 mean IoU",
                "validation",
                "table 2",
                {"32s": 59.4, "16s": 62.4, "8s": 62.7},
            )
        ],
        title="FCN-{variant} on VGG16: a class for every pixel",
        paper="Long et al. 2015, arXiv:1411.4038",
        **tasks.segmentation(tasks.IMAGENET),
    ),
    "resnet": model_cards(
        "fcn_resnet{variant}",
        {"50": 35_322_218, "101": 54_314_346},
        scores=[
            scored(
                "COCO mean IoU",
                "classes of VOC, torchvision's weights",
                "torchvision",
                {"50": 60.5, "101": 63.7},
            )
        ],
        title="FCN on a dilated ResNet-{variant}: a class for every pixel",
        paper="Long et al. 2015, arXiv:1411.4038",
        **tasks.segmentation(
            tasks.IMAGENET,
            auxiliary_logits="(B, H, W, C) float32, computed from an earlier map",
        ),
    ),
}


# Zeros around the image: enough for the first location after the 7 × 7 kernel, whose
# locations cover 32 × 32 pixels each, to see the first pixel.
_PADDING = 99
# Rows to crop so that the maps of the skips align with each other and the scores with
# the image, by the number of skips; from the published networks.
_SKIP_OFFSETS = {3: 5, 2: 9}
_OFFSETS = (19, 27, 31)


@registered(CARDS["vgg"], VARIANTS["vgg"])
def build_fcn_vgg(
    variant: str = "8s",
    *,
    image_size: AnySize = None,
    num_classes: int = 21,
    weights_from: keras.Model | None = None,
    hidden_dims: Sequence[int] = FROM_VARIANT,
    num_convs: Sequence[int] = FROM_VARIANT,
    fully_connected_dims: Annotated[Sequence[int], MayBeEmpty()] = FROM_VARIANT,
    skips: Annotated[Sequence[Index], MayBeEmpty()] = FROM_VARIANT,
    num_channels: int = 3,
    dropout: Probability = 0.5,
    name: str = "fcn_vgg",
) -> Functional:
    """VGG16 whose fully connected layers are convolutions, with skips and upsampling.

    Scores for locations of 32 × 32 pixels are enlarged by transposed convolutions,
    which start as bilinear interpolation. "16s" enlarges twofold and adds scores of the
    fourth stage; "8s" then does the same with the third. The last enlargement is not
    trained.

    Args:
        variant: A row of `VARIANTS["vgg"]`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns). None = images of any
            size, which may differ between batches; either number may also be None.
        num_classes: C.
        weights_from: A model whose weights are copied into the layers of the same
            name: a classifier from `build_vgg` for images of 224 pixels, or the FCN of
            a coarser variant, as in the paper, where each variant starts from the one
            before. Layers with a different number of classes are newly initialized.
        hidden_dims: Channels of each of the five stages.
        num_convs: Convolutions of each stage.
        fully_connected_dims: Channels of each convolution after the last map; the first
            convolution is 7 × 7.
        skips: Stages whose pooled maps are added, in this order: (), (3,) or (3, 2).
        num_channels: Channels of the images.
        dropout: Probability of dropping a unit after the last map.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, H, W, C).

    Raises:
        ValueError: If a size is not a positive integer, there are not five stages,
            `skips` is not one of the above, or `weights_from` does not fit.

    Reference:
        Long et al. 2015, "Fully Convolutional Networks for Semantic Segmentation"
        (arXiv:1411.4038), with the paddings, roundings and crops of its published code.
    """
    skips = tuple(skips)
    if len(hidden_dims) != 5 or skips not in ((), (3,), (3, 2)):
        raise ValueError(
            "`hidden_dims` must have five stages, and `skips` must be (), (3,) or "
            "(3, 2). "
            f"Received: hidden_dims={hidden_dims}, skips={skips}"
        )
    if not fully_connected_dims:
        raise ValueError(
            "`fully_connected_dims` must have at least one number: the kernel of the "
            "first layer removes what the padding of the images has added to the last "
            "map. "
            f"Received: fully_connected_dims={fully_connected_dims!r}"
        )
    if weights_from is not None and not isinstance(weights_from, keras.Model):
        raise _unknown_source(weights_from)
    images, hidden = any_image_input(image_size, num_channels, (1, 1))
    hidden = ZeroPadding2D(_PADDING, data_format="channels_last", name="padding")(
        hidden
    )
    maps = vgg(
        hidden, hidden_dims=hidden_dims, num_convs=num_convs, pooling_padding="same"
    )
    hidden = maps["pooled_4"]
    for index, width in enumerate(fully_connected_dims):
        layer = f"fully_connected_{index}"
        hidden = Conv2D(
            width,
            1 if index else 7,
            activation="relu",
            kernel_initializer=normal(0.01),
            data_format="channels_last",
            name=layer,
        )(hidden)
        hidden = Dropout(dropout, name=f"{layer}_dropout")(hidden)
    scores = classify_pixels(hidden, num_classes, kernel_initializer="zeros")
    for stage in skips:
        scores = _enlarged(scores, 2, f"upsampling_{stage}")
        skip = classify_pixels(
            maps[f"pooled_{stage}"],
            num_classes,
            name=f"score_{stage}",
            kernel_initializer="zeros",
        )
        crop = CropLike(_SKIP_OFFSETS[stage], dtype="float32", name=f"crop_{stage}")
        scores = ops.add(scores, crop(skip, scores))
    factor = 2 ** (5 - len(skips))
    scores = _enlarged(scores, factor, "upsampling", trainable=False)
    crop = CropLike(_OFFSETS[len(skips)], dtype="float32", name="crop")
    model = Functional(images, crop(scores, images), name=name)
    if weights_from is not None:
        _copy_weights(weights_from, model)
    return model


def _enlarged(scores, factor, name, trainable=True):
    """A map with `factor` times as many rows and columns, plus `factor` of each."""
    return TransposedConv2D(
        scores.shape[-1],
        2 * factor,
        factor,
        use_bias=False,
        kernel_initializer=BilinearKernel(),
        trainable=trainable,
        dtype="float32",
        name=name,
    )(scores)


def _unknown_source(source):
    return ValueError(
        "`weights_from` must be a model of `build_vgg` or `build_fcn_vgg`. "
        f"Received: weights_from={source!r}"
    )


def _copy_weights(source, model):
    """Copies the weights of layers with the same names.

    The kernel of a dense layer on a flattened map is a reshaped convolution kernel.
    """
    theirs = by_name(source.layers)
    needed = [layer for layer in model.layers if layer.name.startswith("stage_")]
    if not {layer.name for layer in needed if layer.weights} <= set(theirs):
        raise _unknown_source(source)
    for layer in model.layers:
        if layer.name not in theirs or not layer.weights:
            continue
        found: Any = [
            keras.ops.convert_to_numpy(weight) for weight in theirs[layer.name].weights
        ]
        if [array.size for array in found] == [
            math.prod(weight.shape) for weight in layer.weights
        ]:
            layer.set_weights(
                [
                    array.reshape(weight.shape)
                    for array, weight in zip(found, layer.weights, strict=True)
                ]
            )
        elif layer.name.startswith(("stage_", "fully_connected_")):
            raise ValueError(
                f"`weights_from` must have layers of the same sizes: `{layer.name}` "
                f"has {[array.shape for array in found]}, expected "
                f"{[tuple(weight.shape) for weight in layer.weights]}. A classifier "
                "must be built for images of 224 pixels. "
                f"Received: weights_from={source!r}"
            )


@registered(CARDS["resnet"], VARIANTS["resnet"])
@described_as(resnet)
def build_fcn_resnet(
    variant: str = "50",
    *,
    image_size: AnySize = None,
    num_classes: int = 21,
    auxiliary_head: bool = True,
    stem_dim: int = FROM_VARIANT,
    num_blocks: Sequence[int] = FROM_VARIANT,
    block: Literal["basic", "bottleneck"] = FROM_VARIANT,
    dilated_stages: Annotated[Sequence[Index], MayBeEmpty()] = (2, 3),
    num_channels: int = 3,
    dropout: Probability = 0.1,
    norm_epsilon: Epsilon = 1e-5,
    frozen_norms: bool = False,
    num_frozen: Index = 0,
    name: str = "fcn_resnet",
) -> Functional:
    """A dilated ResNet, a head of two convolutions, and bilinear upsampling.

    Args:
        variant: A row of `VARIANTS["resnet"]`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns). None = images of any
            size, which may differ between batches; either number may also be None.
        num_classes: C.
        auxiliary_head: Whether the map before the last stage has a head of its own.
            In training its loss, weighted by 0.5, helps the earlier stages; it is
            useless afterwards, and an export leaves it out.
        dilated_stages: Stages that dilate their kernels and keep the map's size.
        num_channels: Channels of the images.
        dropout: Probability of dropping a unit before the scores.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, H, W, C); with the
        auxiliary head, to a dictionary of `logits` and `auxiliary_logits`, both
        (B, H, W, C).

    Raises:
        ValueError: If a size is not a positive integer, `dilated_stages` names a
            missing stage, `num_frozen` exceeds the number of parts, or `auxiliary_head`
            is requested for a ResNet of one stage.

    Reference:
        Long et al. 2015, "Fully Convolutional Networks for Semantic Segmentation"
        (arXiv:1411.4038), in the form of torchvision's `fcn_resnet50`; auxiliary head:
        Zhao et al. 2017, section 3.3 (arXiv:1612.01105).
    """
    images, hidden = any_image_input(image_size, num_channels, (1, 1))
    *maps, last = resnet(
        hidden,
        stem_dim=stem_dim,
        num_blocks=num_blocks,
        block=block,
        dilated_stages=dilated_stages,
        norm_epsilon=norm_epsilon,
        frozen_norms=frozen_norms,
        num_frozen=num_frozen,
    ).values()
    logits = _head(last, images, num_classes, dropout, "head", "")
    if not auxiliary_head:
        return Functional(images, logits, name=name)
    if not maps:
        raise ValueError(
            "`auxiliary_head` needs a stage before the last: add one, or pass "
            f"auxiliary_head=False. Received: auxiliary_head={auxiliary_head}, "
            f"num_blocks={num_blocks}"
        )
    inner = maps[-1]
    auxiliary = _head(inner, images, num_classes, dropout, "auxiliary", "auxiliary_")
    outputs = {"logits": logits, "auxiliary_logits": auxiliary}
    model = Functional(images, outputs, name=name)
    model.training_outputs = ("auxiliary_logits",)
    return model


def _head(hidden, images, num_classes, dropout, name, prefix):
    """Scores (B, H, W, C) from a map, by a 3 × 3 and a 1 × 1 convolution."""
    width = hidden.shape[-1] // 4
    initializer = he_normal_fan_out()
    hidden = normed_convolution(hidden, width, 3, name, kernel_initializer=initializer)
    hidden = Dropout(dropout, name=f"{name}_dropout")(ops.relu(hidden))
    scores = classify_pixels(
        hidden,
        num_classes,
        name=f"{prefix}classifier",
        kernel_initializer=normal(0.01),
    )
    return ResizeLike(dtype="float32", name=f"{prefix}upsampling")(scores, images)
