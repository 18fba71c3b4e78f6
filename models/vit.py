"""ViT and its hybrid: an image as a sequence of patches.

    build_vit           images -> logits, or features
    build_vit_hybrid    the same, on the feature map of a ResNet

    x = [class token; patches W] + positions             (B, 1 + T, D), then dropout
    each block, pre-norm:
        x <- x + drop(attention(norm(x)))
        x <- x + drop(FFN(norm(x)))
    `pooled_output` = norm(x)[:, 0] (`pooling="token"`) or norm(mean of the patches)
    logits = pooled W                                                     (B, C)

    attention(x) = concat of heads softmax(q kᵀ / √H) v, times W_O
    FFN(x) = dropout(gelu(x W_1)) W_2        each product with a W has a bias

`drop` is dropout and stochastic depth. H is the size of a head.

DeiT III, `deit3.py`, is made of the same parts. Blocks:
`layers/blocks/transformer_block.py`; attention:
`layers/attention/multi_head_attention.py`. `@registered` fills in the arguments whose
default is `FROM_VARIANT`.

Legend: B batch, H and W pixels, T patches, D width, C classes.
Layers: `patch_embedding`, `class_token`, `position_embedding`, `embeddings_dropout`,
`block_0`, …, `final_norm`, `classifier`; in the hybrid's ResNet `stem_conv`,
`stem_norm`, `stage_0_block_0_conv_0`, `…_norm_0`, …, `…_shortcut`, `…_shortcut_norm`.
"""

import functools
from collections.abc import Sequence
from typing import Annotated, Literal

from keras import ops

from keras_attn.checks.argument_types import (
    Activation,
    Epsilon,
    MayBeEmpty,
    Probability,
)
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import (
    ClassToken,
    LearnedPositionEmbedding,
    PatchEmbedding,
    TransformerEncoderBlock,
)
from keras_attn.layers.blocks.stochastic_depth import rising_rates
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, block_options, block_sizes
from keras_attn.models.parts.backbones.resnet import standardized_resnet
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import INITIALIZER
from keras_attn.models.parts.images import (
    classify,
    image_input,
)

ImagePooling = Literal["token", "mean"]


# Widths and depths, for images of 224 pixels.
_sizes = functools.partial(block_sizes, image_size=224)
_TINY = _sizes(num_layers=12, hidden_dim=192, num_heads=3)
_SMALL = _sizes(num_layers=12, hidden_dim=384, num_heads=6)
_BASE = _sizes(num_layers=12, hidden_dim=768, num_heads=12)
_LARGE = _sizes(num_layers=24, hidden_dim=1024, num_heads=16)
_HUGE = _sizes(num_layers=32, hidden_dim=1280, num_heads=16)

VARIANTS = {
    # Dosovitskiy et al. 2021, table 1; tiny and small: Touvron et al. 2021, table 1
    # (arXiv:2012.12877), Steiner et al. 2022 (arXiv:2106.10270).
    "vit": {
        "tiny_patch16": {**_TINY, "patch_size": 16},
        "small_patch16": {**_SMALL, "patch_size": 16},
        "small_patch32": {**_SMALL, "patch_size": 32},
        "base_patch16": {**_BASE, "patch_size": 16},
        "base_patch32": {**_BASE, "patch_size": 32},
        "large_patch16": {**_LARGE, "patch_size": 16},
        "large_patch32": {**_LARGE, "patch_size": 32},
        "huge_patch14": {**_HUGE, "patch_size": 14},
    },
    # Dosovitskiy et al. 2021, sections 3.1 and 4.1; the ResNet: Kolesnikov et al. 2020,
    # with the blocks of its fourth stage moved to the third.
    "hybrid": {
        "r50_base_patch16": {**_BASE, "num_blocks": (3, 4, 9), "stem_dim": 64},
    },
}
_cards = functools.partial(
    model_cards,
    "vit_{variant}",
    title="ViT {variant}: an image as a sequence of patches",
    # vit_jax/input_pipeline.py of the authors, and transformers' `ViTImageProcessor`.
    **tasks.image_classification(tasks.HALF, "bilinear"),
)
_top_1 = functools.partial(scored, "ImageNet top-1")
# Parameters (table 1); epochs and FLOPs on JFT-300M (table 6); accuracy in ImageNet at
# 384 when pre-trained on ImageNet, ImageNet-21k, JFT-300M (table 5).
_VIT = {
    "base_patch16": (86_000_000, 7, 224e18, 77.91, 83.97, 84.15),
    "base_patch32": (88_000_000, 7, 55e18, 73.38, 81.28, 80.73),
    "large_patch16": (307_000_000, 14, 1567e18, 76.53, 85.15, 87.12),
    "large_patch32": (306_000_000, 7, 196e18, 71.16, 80.99, 84.37),
    "huge_patch14": (632_000_000, 14, 4262e18, None, 85.13, 88.04),
}
CARDS = {
    "vit": {
        **_cards(
            {
                "tiny_patch16": 5_700_000,
                "small_patch16": 22_000_000,
                "small_patch32": 23_000_000,
            },
            paper="Steiner et al. 2022, arXiv:2106.10270",
            scores=[
                _top_1(
                    "from ImageNet-21k, at 224",
                    "timm, augreg_in21k_ft_in1k",
                    {
                        "tiny_patch16": 75.5,
                        "small_patch16": 81.4,
                        "small_patch32": 76.0,
                    },
                )
            ],
        ),
        **_cards(
            {variant: count for variant, (count, *_) in _VIT.items()},
            paper="Dosovitskiy et al. 2021, arXiv:2010.11929",
            training={
                variant: Training(
                    "JFT-300M",
                    "section 4.1, table 6",
                    images=epochs * 303e6,
                    flops=flops,
                )
                for variant, (_, epochs, flops, *_) in _VIT.items()
            },
            scores=[
                _top_1(
                    f"{data}at 384",
                    "table 5",
                    {
                        variant: row[column]
                        for variant, row in _VIT.items()
                        if row[column] is not None
                    },
                )
                for column, data in (
                    (3, ""),
                    (4, "from ImageNet-21k, "),
                    (5, "from JFT-300M, "),
                )
            ],
        ),
    },
    "hybrid": model_cards(
        "vit_hybrid_{variant}",
        {"r50_base_patch16": None},
        notes="published as R50+ViT-B/16",
        title="ViT base on the feature map of a ResNet-50",
        paper="Dosovitskiy et al. 2021, arXiv:2010.11929",
        **tasks.image_classification(tasks.HALF, "bilinear"),
    ),
}


def encode(
    hidden,
    rates,
    pooling,
    num_tokens=1,
    dropout=0.0,
    *,
    num_heads,
    mlp_dim,
    activation,
    layer_norm_epsilon,
    qkv_bias,
    **options,
):
    """The blocks, the final norm and the pooling.

    Args (the others are as in `build_vit`):
        hidden: Tokens and patches, (B, tokens + T, D).
        rates: Stochastic depth of each block.
        num_tokens: Number of tokens before the patches.
        **options: Further arguments of `TransformerEncoderBlock`.

    Returns:
        The outputs of a model without its top.
    """
    options |= {
        "num_heads": num_heads,
        "mlp_dim": mlp_dim,
        "activation": activation,
        "norm_first": True,
        "layer_norm_epsilon": layer_norm_epsilon,
        "dropout": dropout,
        "mlp_dropout": dropout,
        "qkv_bias": qkv_bias,
        "kernel_initializer": INITIALIZER,
    }
    # `x = x + f(norm(x))`, where f is self-attention, then a feed-forward network.
    for index, rate in enumerate(rates):
        hidden = TransformerEncoderBlock(
            **options, stochastic_depth=rate, name=f"block_{index}"
        )(hidden)
    norm = LayerNormalization(epsilon=layer_norm_epsilon, name="final_norm")
    if pooling == "mean":
        patches = hidden[:, num_tokens:] if num_tokens else hidden
        pooled = norm(ops.mean(patches, axis=1))
        return {"sequence_output": hidden, "pooled_output": pooled}
    if not num_tokens:
        raise ValueError(
            "`pooling` must be 'mean' for a model without a class token. "
            f"Received: pooling={pooling!r}, class_token=False"
        )
    hidden = norm(hidden)
    return {"sequence_output": hidden, "pooled_output": hidden[:, 0]}


@registered(CARDS["vit"], VARIANTS["vit"])
def build_vit(
    variant: str = "base_patch16",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    patch_size: int | tuple[int, int] = FROM_VARIANT,
    num_classes: int = 1000,
    include_top: bool = True,
    pooling: ImagePooling = "token",
    class_token: bool = True,
    distillation: Literal["token", "head"] | None = None,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    stem_dims: Annotated[Sequence[int], MayBeEmpty()] | None = None,
    num_channels: int = 3,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = 1e-6,
    qkv_bias: bool = True,
    dropout: Probability = 0.0,
    attention_dropout: Probability = 0.0,
    stochastic_depth: Probability = 0.0,
    name: str = "vit",
) -> Functional:
    """Patches and a class token with learned positions, then N pre-norm blocks.

    `x_0 = [token; patches W + b] + positions; x_n = block_n(x_{n-1})`.

    Args:
        variant: A row of `VARIANTS["vit"]`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns); a multiple of
            `patch_size`.
        patch_size: Pixels of a patch, one number or two.
        num_classes: C.
        include_top: Whether the model outputs logits (True) or features (False).
        pooling: Which features the logits are computed from: `"token"`, the class
            token, or `"mean"`, the mean of the patches.
        class_token: Whether there is a class token; `pooling="token"` needs it.
        distillation: None; `"token"`: a second token after the class token, as in
            DeiT, which trains it to match another network's predictions; `"head"`:
            that token also has its own head, and the logits are the mean of both.
        num_layers: N, number of blocks.
        hidden_dim: D.
        num_heads: Attention heads per block.
        mlp_dim: Width of the feed-forward networks.
        stem_dims: Channels of a convolutional stem before the patches; see
            `PatchEmbedding`.
        num_channels: Channels of the images.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        qkv_bias: Whether the projections to queries, keys and values have biases.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        stochastic_depth: Probability of skipping the sub-layers of the last block; it
            rises linearly from 0 in the first.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels), which it does not rescale, to logits
        (B, C); without the top, to a dictionary of `sequence_output` (B, 1 + T, D), the
        class token first, and `pooled_output` (B, D). With `pooling="mean"` only the
        mean is normalized, as in published fine-tuning.

    Raises:
        ValueError: If `image_size` is not a multiple of `patch_size`, or `pooling` or
            `distillation` needs a class token and there is none.

    Reference:
        Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words: Transformers for Image
        Recognition at Scale" (arXiv:2010.11929); `distillation`: Touvron et al. 2021
        (arXiv:2012.12877).
    """
    images = image_input(image_size, num_channels, patch_size)
    hidden = embed_patches(images, hidden_dim, patch_size, stem_dims)
    num_tokens = _count_tokens(class_token, distillation)
    hidden = add_positions(prepend_tokens(hidden, num_tokens))
    hidden = Dropout(dropout, name="embeddings_dropout")(hidden)
    outputs = encode(
        hidden,
        rising_rates(stochastic_depth, num_layers),
        pooling,
        num_tokens,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        qkv_bias=qkv_bias,
        **block_options(activation, layer_norm_epsilon, dropout, attention_dropout),
    )
    if include_top:
        outputs = _logits(outputs, num_classes, distillation)
    return Functional(images, outputs, name=name)


@registered(CARDS["hybrid"], VARIANTS["hybrid"])
@described_as(build_vit)
def build_vit_hybrid(
    variant: str = "r50_base_patch16",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    num_classes: int = 1000,
    include_top: bool = True,
    pooling: ImagePooling = "token",
    num_blocks: Sequence[int] = FROM_VARIANT,
    stem_dim: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    num_channels: int = 3,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = 1e-6,
    qkv_bias: bool = True,
    dropout: Probability = 0.0,
    attention_dropout: Probability = 0.0,
    stochastic_depth: Probability = 0.0,
    name: str = "vit_hybrid",
) -> Functional:
    """A ViT whose patches are the positions of a ResNet's feature map.

    The ResNet has group norms and standardized kernels ("BiT"). With the three stages
    of the published variant, one position covers 16 × 16 pixels.

    Args:
        variant: A row of `VARIANTS["hybrid"]`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns).
        num_blocks: Bottlenecks of each stage of the ResNet.
        stem_dim: Channels of the ResNet's stem, a multiple of 32. The first stage has
            4 · `stem_dim` output channels, and each later stage has twice as many as
            the one before.

    Returns:
        A model as from `build_vit`.

    Reference:
        Dosovitskiy et al. 2021, section 3.1, "Hybrid Architecture" (arXiv:2010.11929);
        Kolesnikov et al. 2020, "Big Transfer" (arXiv:1912.11370).
    """
    images = image_input(image_size, num_channels)
    features = standardized_resnet(images, stem_dim, num_blocks)
    hidden = embed_patches(features, hidden_dim, 1)
    hidden = add_positions(prepend_tokens(hidden))
    hidden = Dropout(dropout, name="embeddings_dropout")(hidden)
    outputs = encode(
        hidden,
        rising_rates(stochastic_depth, num_layers),
        pooling,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        qkv_bias=qkv_bias,
        **block_options(activation, layer_norm_epsilon, dropout, attention_dropout),
    )
    if include_top:
        outputs = _logits(outputs, num_classes)
    return Functional(images, outputs, name=name)


def embed_patches(images, hidden_dim, patch_size, stem_dims=None):
    """(B, H, W, channels) -> (B, T, D)."""
    return PatchEmbedding(
        hidden_dim,
        patch_size,
        stem_dims=stem_dims,
        kernel_initializer=INITIALIZER,
        name="patch_embedding",
    )(images)


def _count_tokens(class_token, distillation):
    """The number of tokens before the patches."""
    if distillation is not None and not class_token:
        raise ValueError(
            "`distillation` adds a second token, so it needs `class_token=True`. "
            f"Received: distillation={distillation!r}, class_token={class_token}"
        )
    return (1 if class_token else 0) + (1 if distillation else 0)


def prepend_tokens(hidden, num_tokens=1):
    """(B, T, D) -> (B, tokens + T, D)."""
    if not num_tokens:
        return hidden
    return ClassToken(num_tokens, initializer=INITIALIZER, name="class_token")(hidden)


def add_positions(hidden):
    """Adds a learned vector for each position of (B, T, D)."""
    return LearnedPositionEmbedding(
        hidden.shape[1], embeddings_initializer=INITIALIZER, name="position_embedding"
    )(hidden)


def _logits(outputs, num_classes, distillation=None):
    """(B, C): one dense layer on the pooled features, in float32.

    With `distillation="head"`, the mean of that and a dense layer on the second token.
    """
    logits = classify(outputs["pooled_output"], num_classes)
    if distillation != "head":
        return logits
    token = outputs["sequence_output"][:, 1]
    second = classify(token, num_classes, "distillation_classifier")
    return ops.multiply(ops.add(logits, second), 0.5)
