"""DeiT III: ViT with LayerScale and another recipe of training.

    x = [class token; patches W + positions]             (B, 1 + T, D)
    each block, pre-norm:
        x <- x + drop(s_1 * attention(norm(x)))
        x <- x + drop(s_2 * FFN(norm(x)))
    `pooled_output` = norm(x)[:, 0] (`pooling="token"`) or norm(mean of the patches)
    logits = pooled W                                                     (B, C)

s_1 and s_2 are LayerScale, (D,), learned; `drop` is stochastic depth, at one rate in
all blocks. The class token has no position. The rest is ViT's: `vit.py`, which also
says what attention and FFN are.

Legend: B batch, T patches, D width, C classes.
Layers: as in `vit.py`.
"""

import functools

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.docstrings.descriptions import described_as
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import IMAGENET, Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, block_sizes
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import classify, image_input
from keras_attn.models.vit import (
    ImagePooling,
    add_positions,
    build_vit,
    embed_patches,
    encode,
    prepend_tokens,
)

_sizes = functools.partial(block_sizes, image_size=224, patch_size=16)
# Touvron et al. 2022, table 1; medium: the authors' later release.
VARIANTS = {
    "small": _sizes(num_layers=12, hidden_dim=384, num_heads=6),
    "medium": _sizes(num_layers=12, hidden_dim=512, num_heads=8),
    "base": _sizes(num_layers=12, hidden_dim=768, num_heads=12),
    "large": _sizes(num_layers=24, hidden_dim=1024, num_heads=16),
    "huge": _sizes(num_layers=32, hidden_dim=1280, num_heads=16, patch_size=14),
}
_README = "README_revenge.md of github.com/facebookresearch/deit"
_top_1 = functools.partial(scored, "ImageNet top-1")
# 800 epochs; but for the small one of images of less than 224 pixels, then 20 at 224.
_TRAINING = Training("ImageNet", _README, images=820 * IMAGENET)
CARDS = model_cards(
    "deit3_{variant}",
    {
        "small": 22_000_000,
        "medium": 39_000_000,
        "base": 86_600_000,
        "large": 304_000_000,
        "huge": 632_000_000,
    },
    family="vit",
    training={
        "small": Training("ImageNet", _README, images=800 * IMAGENET),
        **dict.fromkeys(("base", "large", "huge"), _TRAINING),
    },
    scores=[
        _top_1(
            "at 224",
            _README,
            {"small": 81.4, "base": 83.8, "large": 84.9, "huge": 85.2},
        ),
        _top_1("at 224", "timm, fb_in1k", {"medium": 83.1}),
        _top_1("at 384", _README, {"small": 83.4, "base": 85.0, "large": 85.8}),
        _top_1(
            "from ImageNet-21k, at 224",
            _README,
            {"small": 83.1, "base": 85.7, "large": 87.0, "huge": 87.2},
        ),
        _top_1(
            "from ImageNet-21k, at 384",
            _README,
            {"small": 84.8, "base": 86.7, "large": 87.7},
        ),
    ],
    title="DeiT III {variant}: ViT with LayerScale",
    paper="Touvron et al. 2022, arXiv:2204.07118",
    # `--eval-crop-ratio 1.0` of every command there; timm takes 0.9 for its fb_in1k.
    **tasks.image_classification(tasks.IMAGENET, share=1.0),
)


@registered(CARDS, VARIANTS)
@described_as(build_vit)
def build_deit3(
    variant: str = "base",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    patch_size: int | tuple[int, int] = FROM_VARIANT,
    num_classes: int = 1000,
    include_top: bool = True,
    pooling: ImagePooling = "token",
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    num_channels: int = 3,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = 1e-6,
    qkv_bias: bool = True,
    layer_scale: float | None = 1e-6,
    stochastic_depth: Probability = 0.0,
    name: str = "deit3",
) -> Functional:
    """ViT with LayerScale, and a class token that has no position.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        layer_scale: Initial value of the learned factors, one per channel, of each
            sub-layer's output. None = no scaling.
        stochastic_depth: Probability of skipping the sub-layers of a block, the same in
            every block; published: 0.05 (small) to 0.55 (huge).

    Returns:
        A model as from `build_vit`.

    Reference:
        Touvron et al. 2022, "DeiT III: Revenge of the ViT" (arXiv:2204.07118).
    """
    images = image_input(image_size, num_channels, patch_size)
    hidden = add_positions(embed_patches(images, hidden_dim, patch_size))
    hidden = prepend_tokens(hidden)
    outputs = encode(
        hidden,
        [stochastic_depth] * num_layers,
        pooling,
        layer_scale=layer_scale,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        activation=activation,
        layer_norm_epsilon=layer_norm_epsilon,
        qkv_bias=qkv_bias,
    )
    if include_top:
        outputs = classify(outputs["pooled_output"], num_classes)
    return Functional(images, outputs, name=name)
