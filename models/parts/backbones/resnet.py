"""ResNets as backbones: plain, with pooling in place of strides, and standardized.

All have the same stages of blocks; they differ in their convolutions and norms.

Legend: B batch, H and W pixels.
Layers: `stem_conv`, `stem_norm`, `stem_pooling`; in each block
`stage_0_block_0_conv_0`, `…_norm_0`, …, `…_shortcut`, `…_shortcut_norm`. With batch
norms also `stem_padding`, `stem_pooling_padding`, and before a 3 × 3 convolution with a
stride `…_conv_1_padding` (bottleneck) or `…_conv_0_padding` (basic block). With pooling
`stem_conv_0`, `stem_norm_0`, …, and `…_conv_1_pooling`, `…_shortcut_pooling`.
"""

from collections.abc import Callable
from typing import Any

from keras import ops
from keras.layers import (
    AveragePooling2D,
    GroupNormalization,
    MaxPooling2D,
    ZeroPadding2D,
)

from keras_attn.layers import BatchNormalization, StandardizedConv2D
from keras_attn.layers.initializers import he_normal_fan_out
from keras_attn.models.parts.images import batch_norm, convolution

# With 16 blocks the standard deviation of the maps stays near 1; with 1 it was 130.
_SMALL_SCALE = {"class_name": "Constant", "config": {"value": 0.1}}
_GROUPS = 32  # Groups of each norm of a standardized ResNet.


def resnet(
    images,
    *,
    stem_dim,
    num_blocks,
    block,
    dilated_stages=(),
    norm_epsilon,
    frozen_norms,
    num_frozen,
) -> dict[str, Any]:
    """The maps of a ResNet v1.5 with batch norms.

    "v1.5": a block halves the map in its 3 × 3 convolution, not in its first
    convolution. Maps are padded equally on all sides, as in PyTorch, so a map with an
    odd number of rows r has (r + 1) / 2 rows after it is halved, and no image is too
    small.

    Builders take the descriptions of their arguments from here.

    Args:
        images: A tensor (B, H, W, channels); H and W may be unknown.
        stem_dim: Channels of the ResNet's first map. The blocks of stage s have
            stem_dim · 2^s inner channels.
        num_blocks: Blocks of each stage: (3, 4, 6, 3) is ResNet-50, with basic blocks
            ResNet-34.
        block: `"bottleneck"`, convolutions of 1 × 1, 3 × 3 and 1 × 1, of which the last
            has four times the inner channels; or `"basic"`, two of 3 × 3, which cannot
            be dilated.
        dilated_stages: Indices of stages, 1 or above, that keep the size of the map;
            their kernels and the kernels of all later stages are dilated by 2 instead.
            (2, 3) is torchvision's `replace_stride_with_dilation=[False, True, True]`.
            Bottlenecks only, as in torchvision.
        norm_epsilon: Added to the variance by the norms.
        frozen_norms: Whether the norms are frozen: they have no trainable weights and
            use their moving mean and variance also in training. Meant for detection,
            whose batches are small.
        num_frozen: Number of parts that are not trained, norms included: 1 is the stem,
            2 the stem and stage 0, and so on.

    Returns:
        The maps `stage_0`, `stage_1`, …, (B, rows, columns, 4 · stem_dim · 2^s), with
        basic blocks (B, rows, columns, stem_dim · 2^s). The first has a quarter of the
        rows and columns of the images, and each of the others half as many as the one
        before, all rounded up.

    Raises:
        ValueError: If a size is not a positive integer, `block` is unknown,
            `dilated_stages` names a stage that is missing or has basic blocks, or
            `num_frozen` exceeds the number of parts.

    Reference:
        He et al. 2016 (arXiv:1512.03385); dilation: Yu et al. 2017,
        "Dilated Residual Networks" (arXiv:1705.09914); the zero-initialized last scale
        of each block: Goyal et al. 2017, section 5.1 (arXiv:1706.02677).
    """
    _check_stages(num_blocks, dilated_stages, num_frozen)
    if block == "basic" and dilated_stages:
        raise ValueError(
            "`dilated_stages` are for bottlenecks: leave them out, or pass "
            f"block='bottleneck'. Received: dilated_stages={dilated_stages!r}, "
            f"block={block!r}"
        )
    last_norm = "_norm_2" if block == "bottleneck" else "_norm_1"

    def normed(hidden, width, size, stride, dilation, conv_name, norm_name):
        part = 0 if conv_name.startswith("stem") else 1 + int(conv_name.split("_")[1])
        trainable = part >= num_frozen
        hidden = convolution(
            width,
            size,
            conv_name,
            strides=stride,
            # Both pad equally on all sides; with a stride, TensorFlow's "same" does
            # not.
            padding="same" if stride == 1 else "valid",
            dilation_rate=dilation,
            kernel_initializer=he_normal_fan_out(),
            trainable=trainable,
        )(_padded(hidden, size, stride, f"{conv_name}_padding"))
        is_trained = trainable and not frozen_norms
        # Each block starts out as its shortcut: otherwise the sums grow from block to
        # block until the norms have seen data. A scale that is not trained would stay
        # zero, so it is small instead: without a checkpoint, it damps what never sees
        # data.
        gamma: Any = "ones"
        if norm_name.endswith(last_norm):
            gamma = "zeros" if is_trained else _SMALL_SCALE
        return BatchNormalization(
            axis=-1,
            momentum=0.9,
            epsilon=norm_epsilon,
            gamma_initializer=gamma,
            trainable=is_trained,
            name=norm_name,
        )(hidden)

    hidden = ops.relu(normed(images, stem_dim, 7, 2, 1, "stem_conv", "stem_norm"))
    # Zeros never win: no value is below zero after a ReLU.
    hidden = _padded(hidden, 3, 2, "stem_pooling_padding")
    hidden = MaxPooling2D(
        3, strides=2, data_format="channels_last", name="stem_pooling"
    )(hidden)
    return _stages(hidden, stem_dim, num_blocks, normed, block, dilated_stages)


def pooled_resnet(images, stem_dim, num_blocks):
    """The map of a ResNet of bottlenecks that averages where others have strides.

    Each stride of 2 is an average over 2 × 2 positions: in a block after its 3 × 3
    convolution, in a shortcut before its 1 × 1 convolution. The stem has three 3 × 3
    convolutions, the first with a stride, and an average in place of a maximum.

    Args:
        images: A tensor (B, H, W, channels) of a known size.
        stem_dim: Channels of the stem's map; the blocks of stage s have
            stem_dim · 2^s inner channels.
        num_blocks: Bottlenecks of each stage.

    Returns:
        (B, rows, columns, 4 · stem_dim · 2^(stages - 1)).

    Reference:
        Radford et al. 2021, section 2.4 (arXiv:2103.00020), in the authors' code; He et
        al. 2019, "Bag of Tricks", ResNet-D (arXiv:1812.01187).
    """

    def normed(hidden, width, size, stride, dilation, conv_name, norm_name):
        if stride > 1 and size == 1:
            hidden = _halved(hidden, conv_name)
        hidden = convolution(
            width,
            size,
            conv_name,
            dilation_rate=dilation,
            kernel_initializer=he_normal_fan_out(),
        )(hidden)
        # Each block starts out as its shortcut.
        gamma = "zeros" if norm_name.endswith("_norm_2") else "ones"
        hidden = batch_norm(norm_name, gamma)(hidden)
        if stride > 1 and size > 1:
            hidden = _halved(ops.relu(hidden), conv_name)
        return hidden

    hidden = images
    for index, width in enumerate((stem_dim // 2, stem_dim // 2, stem_dim)):
        stride, name = 1 if index else 2, f"stem_conv_{index}"
        hidden = convolution(
            width,
            3,
            name,
            strides=stride,
            padding="same" if stride == 1 else "valid",
            kernel_initializer=he_normal_fan_out(),
        )(_padded(hidden, 3, stride, f"{name}_padding"))
        hidden = ops.relu(batch_norm(f"stem_norm_{index}")(hidden))
    maps = _stages(_halved(hidden, "stem"), stem_dim, num_blocks, normed)
    return maps[f"stage_{len(num_blocks) - 1}"]


def _halved(hidden, name):
    """The means of 2 × 2 positions."""
    layer = AveragePooling2D(2, data_format="channels_last", name=f"{name}_pooling")
    return layer(hidden)


def standardized_resnet(images, stem_dim, num_blocks):
    """The feature map of a ResNet whose stem and stages each halve the size.

    Args:
        images: A tensor (B, H, W, channels).
        stem_dim: Channels of the first map, a multiple of 32.
        num_blocks: Bottlenecks of each stage.

    Returns:
        (B, rows, columns, 4 · stem_dim · 2^(stages - 1)).

    Raises:
        ValueError: If the number of channels is not a multiple of the number of groups.

    Reference:
        Kolesnikov et al. 2020, "Big Transfer", section 3.2 (arXiv:1912.11370), but
        with the norms after the convolutions, as in the hybrid ViT.
    """
    if stem_dim % _GROUPS:
        raise ValueError(
            f"`stem_dim` must be a multiple of {_GROUPS}, the groups of each norm. "
            f"Received: stem_dim={stem_dim}"
        )

    def normed(hidden, width, size, stride, dilation, conv_name, norm_name):
        hidden = StandardizedConv2D(
            width,
            size,
            strides=stride,
            padding="same",
            dilation_rate=dilation,
            use_bias=False,
            kernel_initializer="he_normal",
            data_format="channels_last",
            name=conv_name,
        )(hidden)
        return GroupNormalization(_GROUPS, epsilon=1e-5, name=norm_name)(hidden)

    hidden = ops.relu(normed(images, stem_dim, 7, 2, 1, "stem_conv", "stem_norm"))
    hidden = MaxPooling2D(3, strides=2, padding="same", name="stem_pooling")(hidden)
    maps = _stages(hidden, stem_dim, num_blocks, normed)
    return maps[f"stage_{len(num_blocks) - 1}"]


def _stages(
    hidden,
    stem_dim,
    num_blocks,
    normed: Callable,
    block="bottleneck",
    dilated_stages=(),
) -> dict[str, Any]:
    """The map of each stage.

    Args:
        hidden: The map of the stem.
        stem_dim: As in `resnet`, as are `num_blocks`, `block` and `dilated_stages`.
        num_blocks: Blocks of each stage.
        normed: Applies a convolution and a norm to a map; takes the map, the number of
            output channels, kernel size, stride, dilation and the names of both layers.
        block: Kind of the blocks.
        dilated_stages: Indices of stages that are dilated.
    """
    maps, dilation = {}, 1
    for stage, count in enumerate(num_blocks):
        # The first block of a dilated stage still has the previous stage's dilation.
        first = dilation
        if stage in dilated_stages:
            dilation *= 2
        halves = stage > 0 and stage not in dilated_stages
        for index in range(count):
            hidden = _BLOCKS[block](
                hidden,
                stem_dim * 2**stage,
                stride=2 if halves and not index else 1,
                dilation=dilation if index else first,
                normed=normed,
                name=f"stage_{stage}_block_{index}",
            )
        maps[f"stage_{stage}"] = hidden
    return maps


def _bottleneck(inputs, width, stride, dilation, normed, name):
    """1 × 1, 3 × 3 and 1 × 1 convolutions, each with a norm, and a residual."""
    shortcut = _shortcut(inputs, 4 * width, stride, normed, name)
    hidden = normed(inputs, width, 1, 1, 1, *_names(name, 0))
    hidden = normed(ops.relu(hidden), width, 3, stride, dilation, *_names(name, 1))
    hidden = normed(ops.relu(hidden), 4 * width, 1, 1, 1, *_names(name, 2))
    return ops.relu(ops.add(hidden, shortcut))


def _basic_block(inputs, width, stride, dilation, normed, name):
    """Two 3 × 3 convolutions, each with a norm, and a residual."""
    shortcut = _shortcut(inputs, width, stride, normed, name)
    hidden = normed(inputs, width, 3, stride, dilation, *_names(name, 0))
    hidden = normed(ops.relu(hidden), width, 3, 1, dilation, *_names(name, 1))
    return ops.relu(ops.add(hidden, shortcut))


_BLOCKS = {"bottleneck": _bottleneck, "basic": _basic_block}


def _names(name, index):
    """Names of a convolution of a block and of its norm."""
    return f"{name}_conv_{index}", f"{name}_norm_{index}"


def _shortcut(inputs, outputs, stride, normed, name):
    """The input of a block, with as many channels and locations as its output."""
    if stride == 1 and inputs.shape[-1] == outputs:
        return inputs
    names = (f"{name}_shortcut", f"{name}_shortcut_norm")
    return normed(inputs, outputs, 1, stride, 1, *names)


def _padded(hidden, size, stride, name):
    """Zeros on all sides before a kernel with a stride."""
    if stride == 1 or size == 1:
        return hidden
    return ZeroPadding2D(size // 2, data_format="channels_last", name=name)(hidden)


def _check_stages(num_blocks, dilated_stages, num_frozen):
    count = len(num_blocks)
    if not all(stage in range(1, count) for stage in dilated_stages):
        raise ValueError(
            f"`dilated_stages` must be indices of stages after the first, from 1 to "
            f"{count - 1}. Received: dilated_stages={dilated_stages!r}"
        )
    if num_frozen not in range(count + 2):
        raise ValueError(
            f"`num_frozen` must be a number of parts from 0 to {count + 1}, the stem "
            f"and {count} stages. Received: num_frozen={num_frozen!r}"
        )
