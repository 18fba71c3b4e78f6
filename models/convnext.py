"""ConvNeXt: a convolutional network with Swin's design, but without attention.

    build_convnext  images -> logits, or the features of each stage

The blocks are here; their feed-forward networks: `layers/blocks/feed_forward.py`.

Legend: B batch, H and W pixels, C classes.
Layers: `patch_embedding`, `embeddings_norm`; before each later stage `stage_1_norm`,
`stage_1_downsampling`; in each block `stage_0_block_0_depthwise`, `…_norm`,
`…_feed_forward`, `…_scale`, `…_drop_path`; `final_norm`, `classifier`. If `image_size`
is None, `minimum_image_size` comes first.
"""

import functools
from collections.abc import Sequence

from keras import ops
from keras.layers import DepthwiseConv2D

from keras_attn.checks.argument_types import Activation, AnySize, Epsilon, Probability
from keras_attn.checks.arguments import check_pair
from keras_attn.layers import FeedForward, LayerScale, PatchEmbedding, StochasticDepth
from keras_attn.layers.blocks.stochastic_depth import rising_rates
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import (
    IMAGENET,
    IMAGENET_21K,
    Training,
    model_cards,
    scored,
)
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import INITIALIZER
from keras_attn.models.parts.images import (
    any_image_input,
    classify,
)

_EPSILON = 1e-6  # For every layer norm except the final one.


_sizes = functools.partial(dict, patch_size=4)
# Liu et al. 2022, section 3.
VARIANTS = {
    "tiny": _sizes(hidden_dims=(96, 192, 384, 768), num_blocks=(3, 3, 9, 3)),
    "small": _sizes(hidden_dims=(96, 192, 384, 768), num_blocks=(3, 3, 27, 3)),
    "base": _sizes(hidden_dims=(128, 256, 512, 1024), num_blocks=(3, 3, 27, 3)),
    "large": _sizes(hidden_dims=(192, 384, 768, 1536), num_blocks=(3, 3, 27, 3)),
    "xlarge": _sizes(hidden_dims=(256, 512, 1024, 2048), num_blocks=(3, 3, 27, 3)),
}
_TRAINING = Training("ImageNet", "section 3.1", images=300 * IMAGENET)
_top_1 = functools.partial(scored, "ImageNet top-1")
CARDS = model_cards(
    "convnext_{variant}",
    {
        "tiny": 28_589_128,
        "small": 50_223_688,
        "base": 88_591_464,
        "large": 197_767_336,
        "xlarge": 350_196_968,
    },
    training={
        **dict.fromkeys(("tiny", "small", "base", "large"), _TRAINING),
        "xlarge": Training("ImageNet-21k", "section 3.1", images=90 * IMAGENET_21K),
    },
    scores=[
        _top_1(
            "at 224",
            "table 1",
            {"tiny": 82.1, "small": 83.1, "base": 83.8, "large": 84.3},
        ),
        _top_1("at 384", "table 1", {"base": 85.1, "large": 85.5}),
        _top_1(
            "from ImageNet-21k, at 224",
            "README of the authors' code",
            {"tiny": 82.9, "small": 84.6, "base": 85.8, "large": 86.6, "xlarge": 87.0},
        ),
        _top_1(
            "from ImageNet-21k, at 384",
            "README of the authors' code",
            {"tiny": 84.1, "small": 85.8, "base": 86.8, "large": 87.5, "xlarge": 87.8},
        ),
    ],
    title="ConvNeXt {variant}: a convolutional network with the design of Swin",
    paper="Liu et al. 2022, arXiv:2201.03545",
    # `build_transform` of the authors' datasets.py.
    **tasks.image_classification(tasks.IMAGENET, share=0.875),
)


@registered(CARDS, VARIANTS)
def build_convnext(
    variant: str = "tiny",
    *,
    image_size: AnySize = 224,
    patch_size: int | tuple[int, int] = FROM_VARIANT,
    num_classes: int = 1000,
    include_top: bool = True,
    hidden_dims: Sequence[int] = FROM_VARIANT,
    num_blocks: Sequence[int] = FROM_VARIANT,
    num_channels: int = 3,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = 1e-12,
    layer_scale: float | None = 1e-6,
    stochastic_depth: Probability = 0.0,
    name: str = "convnext",
) -> Functional:
    """Small patches, then stages of ConvNeXt blocks, each halving rows and columns.

    Images that are not a whole number of patches, and maps with an odd number of rows
    or columns, are cropped at the bottom and on the right.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns). None = images of any
            size, which may differ between batches; either number may also be None.
        patch_size: Pixels of a patch.
        num_classes: C.
        include_top: Whether the model outputs logits (True) or features (False).
        hidden_dims: Width of each stage.
        num_blocks: Blocks of each stage.
        num_channels: Channels of the images.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance by the final norm; the others add
            1e-6.
        layer_scale: Initial value of the learned factors, one per channel, of each
            block's output. None = no scaling.
        stochastic_depth: Probability of skipping the last block; it rises linearly
            from 0 in the first.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, C); without the top, to
        a dictionary of the maps `stage_0`, …, (B, rows, columns, width), the first
        `patch_size` times smaller than the image and each of the others half as large
        as the one before; and `pooled_output`, the mean of the last map, normalized. If
        `image_size` is None, H, W, rows and columns are unknown until the call.

    Raises:
        ValueError: If `hidden_dims` and `num_blocks` differ in length, or the last map
            would be empty at this `image_size`.

    Reference:
        Liu et al. 2022, "A ConvNet for the 2020s" (arXiv:2201.03545).
    """
    if len(hidden_dims) != len(num_blocks):
        raise ValueError(
            "`hidden_dims` and `num_blocks` must have one number per stage. "
            f"Received: hidden_dims={hidden_dims}, num_blocks={num_blocks}"
        )
    patch = check_pair("patch_size", patch_size)
    shrinks_by = [side * 2 ** (len(hidden_dims) - 1) for side in patch]
    rates = iter(rising_rates(stochastic_depth, sum(num_blocks)))
    images, hidden = any_image_input(image_size, num_channels, shrinks_by)
    hidden = _downsampling("patch_embedding", hidden_dims[0], patch)(hidden)
    hidden = LayerNormalization(epsilon=_EPSILON, name="embeddings_norm")(hidden)
    maps = {}
    for stage, (width, count) in enumerate(zip(hidden_dims, num_blocks, strict=True)):
        if stage:
            norm = LayerNormalization(epsilon=_EPSILON, name=f"stage_{stage}_norm")
            down = _downsampling(f"stage_{stage}_downsampling", width, 2)
            hidden = down(norm(hidden))
        for index in range(count):
            hidden = _block(
                hidden,
                activation,
                layer_scale,
                next(rates),
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


def _downsampling(name, width, factor):
    """A convolution whose stride equals its kernel size."""
    return PatchEmbedding(
        width,
        factor,
        padding="valid",
        flatten=False,
        kernel_initializer=INITIALIZER,
        name=name,
    )


def _block(inputs, activation, layer_scale, rate, name):
    """`x + stochastic_depth(scale · feed_forward(norm(depthwise_7x7(x))))`."""
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
