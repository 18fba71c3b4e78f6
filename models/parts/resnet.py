"""A ResNet with group norms and standardized kernels, as a backbone.

Legend: B batch, H and W pixels.
Layers: `stem_conv`, `stem_norm`, `stage_0_block_0_conv_0`, `…_norm_0`, …,
`…_shortcut`, `…_shortcut_norm`.
"""

from keras import ops
from keras.layers import GroupNormalization, MaxPooling2D

from keras_attn.checks import check_positive
from keras_attn.layers import StandardizedConv2D

_GROUPS = 32  # Groups of each norm.


def standardized_resnet(images, stem_dim, num_blocks):
    """The feature map of a ResNet; its stem and each of its stages halve the size.

    Args:
        images: A tensor (B, H, W, channels).
        stem_dim: Channels of the first map, a multiple of 32.
        num_blocks: Bottlenecks of each stage.

    Returns:
        (B, rows, columns, 4 · stem_dim · 2^(stages - 1)).

    Raises:
        ValueError: for a number of channels that is not a multiple of the groups.

    Reference:
        Kolesnikov et al. 2020, "Big Transfer", section 3.2 (arXiv:1912.11370), but
        with the norms after the convolutions, as in the hybrid ViT.
    """
    if check_positive("stem_dim", stem_dim) % _GROUPS:
        raise ValueError(
            f"`stem_dim` must be a multiple of {_GROUPS}, the groups of each norm. "
            f"Received: stem_dim={stem_dim}"
        )
    hidden = ops.relu(_normed(images, stem_dim, 7, 2, "stem_conv", "stem_norm"))
    hidden = MaxPooling2D(3, strides=2, padding="same", name="stem_pooling")(hidden)
    for stage, count in enumerate(num_blocks):
        for index in range(check_positive("num_blocks", count)):
            hidden = _bottleneck(
                hidden,
                stem_dim * 2**stage,
                stride=2 if stage and not index else 1,
                widen=not index,
                name=f"stage_{stage}_block_{index}",
            )
    return hidden


def _bottleneck(inputs, width, stride, widen, name):
    """Convolutions of 1 × 1, 3 × 3 and 1 × 1, each with a norm, and a residual."""

    def normed(hidden, outputs, size, by, index):
        names = (f"{name}_conv_{index}", f"{name}_norm_{index}")
        return _normed(hidden, outputs, size, by, *names)

    shortcut = inputs
    if widen:
        names = (f"{name}_shortcut", f"{name}_shortcut_norm")
        shortcut = _normed(inputs, 4 * width, 1, stride, *names)
    hidden = ops.relu(normed(inputs, width, 1, 1, 0))
    hidden = ops.relu(normed(hidden, width, 3, stride, 1))
    return ops.relu(ops.add(normed(hidden, 4 * width, 1, 1, 2), shortcut))


def _normed(inputs, width, size, stride, conv_name, norm_name):
    """A convolution with a standardized kernel, then a norm of 32 groups."""
    hidden = StandardizedConv2D(
        width,
        size,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        data_format="channels_last",
        name=conv_name,
    )(inputs)
    return GroupNormalization(_GROUPS, epsilon=1e-5, name=norm_name)(hidden)
