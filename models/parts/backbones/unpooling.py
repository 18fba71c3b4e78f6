"""An encoder that remembers where its maxima were, and the decoder that uses it.

Shared by SegNet and DeconvNet: VGG's stages with batch norms, each pooled with the
locations of its maxima, and their mirror image.

Legend: B batch, H and W pixels.
Layers: `stage_0_conv_0`, `stage_0_norm_0`, …, `stage_0_pooling`; the decoder's have the
number of the stage that they mirror: `decoder_4_unpooling`, `decoder_4_conv_0`,
`decoder_4_norm_0`, …, `decoder_3_unpooling`, …
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from keras import ops

from keras_attn.checks.arguments import check_same_length
from keras_attn.layers import MaxPoolWithIndices, MaxUnpool2D, TransposedConv2D
from keras_attn.models.parts.images import batch_norm, normed_convolution

# As in Caffe, in which both were published: with an odd number of rows, the last
# window is smaller.
_PADDING = "same"


class Pooled(NamedTuple):
    """The results of a stage that the decoder needs.

    Attributes:
        reference: The map that was pooled, for its size.
        indices: The locations of the maxima, of the size of the pooled map.
    """

    reference: Any
    indices: Any


def normed(hidden, layer, norm_name):
    """`relu(norm(layer(x)))`, with a batch norm of that name."""
    return ops.relu(batch_norm(norm_name)(layer(hidden)))


def deconvolution(width, size, name, padding=0):
    """A transposed convolution before a norm, initialized for a ReLU."""
    return TransposedConv2D(
        width,
        size,
        padding=padding,
        use_bias=False,
        kernel_initializer="he_normal",
        name=name,
    )


def pooled_stages(images, hidden_dims: Sequence[int], num_convs: Sequence[int]):
    """Stages of 3 × 3 convolutions, each followed by max pooling.

    Args:
        images: A tensor (B, H, W, channels); H and W may be unknown.
        hidden_dims: Channels of each stage.
        num_convs: Convolutions of each stage.

    Returns:
        The last map, 2^stages times smaller than the images, rounded up; and a list
        with a `Pooled` for each stage.

    Raises:
        ValueError: If `hidden_dims` and `num_convs` differ in length, or a size is not
            a positive integer.
    """
    check_same_length(hidden_dims=hidden_dims, num_convs=num_convs)
    hidden, pooled = images, []
    for stage, (width, count) in enumerate(zip(hidden_dims, num_convs, strict=True)):
        for index in range(count):
            name, number = f"stage_{stage}", f"_{index}"
            hidden = ops.relu(normed_convolution(hidden, width, 3, name, number))
        pooling = MaxPoolWithIndices(padding=_PADDING, name=f"stage_{stage}_pooling")
        reference = hidden
        hidden, indices = pooling(hidden)
        pooled.append(Pooled(reference, indices))
    return hidden, pooled


def unpooled_stages(hidden, pooled, hidden_dims, num_convs, make_layer):
    """The mirror image of `pooled_stages`.

    The last layer of each stage has the channels of the stage before it.

    Args:
        hidden: A map with the size and channels of the encoder's last map.
        pooled: From `pooled_stages`.
        hidden_dims: As in `pooled_stages`.
        num_convs: Layers of each stage; the first stage, which comes last, may have
            none.
        make_layer: Makes a layer that keeps the size of the map; takes the number of
            channels and the name.

    Returns:
        (B, H, W, hidden_dims[0]).
    """
    for stage in reversed(range(len(pooled))):
        name = f"decoder_{stage}"
        unpooling = MaxUnpool2D(padding=_PADDING, name=f"{name}_unpooling")
        # Only the size of the reference is used.
        hidden = unpooling(hidden, pooled[stage].indices, pooled[stage].reference)
        for index in range(num_convs[stage]):
            is_last = index == num_convs[stage] - 1
            width = hidden_dims[max(0, stage - 1) if is_last else stage]
            layer = make_layer(width, f"{name}_conv_{index}")
            hidden = normed(hidden, layer, f"{name}_norm_{index}")
    return hidden
