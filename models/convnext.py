"""ConvNeXt: a convolutional network rebuilt after Swin, without attention.

    build_convnext  images -> logits, or the features of each stage

Legend: B batch, H and W pixels, C classes.
Layers: `patch_embedding`, `embeddings_norm`; in front of each later stage
`stage_1_norm`, `stage_1_downsampling`; of each block `stage_0_block_0_depthwise`,
`…_norm`, `…_feed_forward`, `…_scale`, `…_drop_path`; `final_norm`, `classifier`;
where `image_size` is None, `minimum_image_size` in front of all.
"""

from keras import ops
from keras.layers import DepthwiseConv2D

from keras_attn.checks import check_pair, check_positive
from keras_attn.layers import FeedForward, LayerScale, PatchEmbedding, StochasticDepth
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.stochastic_depth import rising_rates
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import INITIALIZER
from keras_attn.models.parts.images import (
    IMAGENET,
    any_image_input,
    classify,
    image_card,
)
from keras_attn.models.parts.registry import register
from keras_attn.models.parts.variants import resolve

_EPSILON = 1e-6


def _sizes(hidden_dims, num_blocks):
    return {
        "patch_size": 4,
        "hidden_dims": hidden_dims,
        "num_blocks": num_blocks,
    }


# Liu et al. 2022, section 3.
VARIANTS = {
    "tiny": _sizes((96, 192, 384, 768), (3, 3, 9, 3)),
    "small": _sizes((96, 192, 384, 768), (3, 3, 27, 3)),
    "base": _sizes((128, 256, 512, 1024), (3, 3, 27, 3)),
    "large": _sizes((192, 384, 768, 1536), (3, 3, 27, 3)),
    "xlarge": _sizes((256, 512, 1024, 2048), (3, 3, 27, 3)),
}


def build_convnext(
    variant="tiny",
    *,
    image_size=224,
    patch_size=None,
    num_classes=1000,
    include_top=True,
    hidden_dims=None,
    num_blocks=None,
    num_channels=3,
    activation="gelu",
    layer_norm_epsilon=1e-12,
    layer_scale=1e-6,
    stochastic_depth=0.0,
    name="convnext",
):
    """Small patches, then stages of ConvNeXt blocks, each at half the rows and columns.

    Of an image that patches don't fill, and of a map with an odd number of rows or
    columns, what is left over below and to the right is left out.

    Args:
        variant: A row of `VARIANTS`; what is None below is as it says.
        image_size: Pixels, one number or two, rows first. None: images of any size,
            each batch its own; None of two: any number of rows, or of columns.
        patch_size: Pixels of a patch.
        num_classes: C.
        include_top: Whether the model ends in logits, or in features.
        hidden_dims: Width of each stage.
        num_blocks: Blocks of each stage.
        num_channels: Of the images.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance by the norm behind all stages; the
            others add 1e-6.
        layer_scale: First value of a learned factor a channel, for the output of each
            block. None = there is none.
        stochastic_depth: Probability of leaving out the last block; it rises to that
            from 0 in the first.
        name: Of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, C), or without the top
        to a dictionary: `stage_0`, … maps (B, rows, columns, width), of which
        `stage_0` is `patch_size` times smaller than the image and each next one half
        as large; and `pooled_output`, the mean of the last, normed. Where
        `image_size` is None, H, W, rows and columns are unknown until the call.

    Raises:
        ValueError: for an image of which the last stage would have nothing left.

    Reference:
        Liu et al. 2022, "A ConvNet for the 2020s" (arXiv:2201.03545).
    """
    numbers = resolve(
        VARIANTS,
        variant,
        patch_size=patch_size,
        hidden_dims=hidden_dims,
        num_blocks=num_blocks,
    )
    dims, blocks = numbers["hidden_dims"], numbers["num_blocks"]
    if len(dims) != len(blocks):
        raise ValueError(
            "`hidden_dims` and `num_blocks` must have a number for each stage. "
            f"Received: hidden_dims={dims}, num_blocks={blocks}"
        )
    patch = check_pair("patch_size", numbers["patch_size"])
    shrinks_by = [side * 2 ** (len(dims) - 1) for side in patch]
    rates = rising_rates(stochastic_depth, sum(blocks))
    images, hidden = any_image_input(image_size, num_channels, shrinks_by)
    hidden = _shrink("patch_embedding", dims[0], patch)(hidden)
    hidden = LayerNormalization(epsilon=_EPSILON, name="embeddings_norm")(hidden)
    maps = {}
    for stage, (width, count) in enumerate(zip(dims, blocks, strict=True)):
        if stage:
            norm = LayerNormalization(epsilon=_EPSILON, name=f"stage_{stage}_norm")
            down = _shrink(f"stage_{stage}_downsampling", width, 2)
            hidden = down(norm(hidden))
        for index in range(check_positive("num_blocks", count)):
            hidden = _block(
                hidden,
                activation,
                layer_scale,
                rates.pop(0),
                name=f"stage_{stage}_block_{index}",
            )
        maps[f"stage_{stage}"] = hidden
    pooled = ops.mean(hidden, axis=(1, 2))
    pooled = LayerNormalization(epsilon=layer_norm_epsilon, name="final_norm")(pooled)
    if include_top:
        outputs = classify(pooled, num_classes)
    else:
        outputs = {**maps, "pooled_output": pooled}
    return Functional(images, outputs, name=name)


def _shrink(name, width, factor):
    """A convolution whose stride is its kernel."""
    return PatchEmbedding(
        width,
        factor,
        padding="valid",
        flatten=False,
        kernel_initializer=INITIALIZER,
        name=name,
    )


def _block(inputs, activation, layer_scale, rate, name):
    """Each channel by itself over 7 × 7 places, then each place by itself."""
    width = inputs.shape[-1]
    hidden = DepthwiseConv2D(
        7,
        padding="same",
        depthwise_initializer=INITIALIZER,
        data_format="channels_last",
        name=f"{name}_depthwise",
    )(inputs)
    hidden = LayerNormalization(epsilon=_EPSILON, name=f"{name}_norm")(hidden)
    hidden = FeedForward(
        4 * width,
        activation=activation,
        kernel_initializer=INITIALIZER,
        name=f"{name}_feed_forward",
    )(hidden)
    if layer_scale is not None:
        hidden = LayerScale(layer_scale, name=f"{name}_scale")(hidden)
    hidden = StochasticDepth(rate, name=f"{name}_drop_path")(hidden)
    return ops.add(inputs, hidden)


for _variant, _count, _notes in (
    ("tiny", 28_589_128, "ImageNet 82.1"),
    ("small", 50_223_688, "ImageNet 83.1"),
    ("base", 88_591_464, "ImageNet 83.8"),
    ("large", 197_767_336, "ImageNet 84.3"),
    ("xlarge", 350_196_968, "from ImageNet-22k: ImageNet 87.0"),
):
    register(
        image_card(
            f"convnext_{_variant}",
            "convnext",
            f"ConvNeXt {_variant}: a convolutional network after Swin",
            "Liu et al. 2022, arXiv:2201.03545",
            2022,
            _count,
            IMAGENET,
            _notes,
        ),
        build_convnext,
        _variant,
    )
