"""ViT, its hybrid and DeiT III: an image is a sequence of patches.

    build_vit           images -> logits, or the features behind them
    build_vit_hybrid    the same on the feature map of a ResNet
    build_deit3         ViT with LayerScale, trained by another recipe

Legend: B batch, H and W pixels, T patches, D width, C classes.
Layers: `patch_embedding`, `class_token`, `position_embedding`, `embeddings_dropout`,
`block_0`, …, `final_norm`, `classifier`; of a hybrid's ResNet `stem_conv`, `stem_norm`,
`stage_0_block_0_conv_0`, `…_norm_0`, …, `…_shortcut`, `…_shortcut_norm`.
"""

from keras import ops

from keras_attn.checks import check_choice, check_pair
from keras_attn.layers import (
    ClassToken,
    LearnedPositionEmbedding,
    PatchEmbedding,
    TransformerEncoderBlock,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.stochastic_depth import rising_rates
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import INITIALIZER
from keras_attn.models.parts.images import (
    HALF,
    IMAGENET,
    classify,
    image_card,
    image_input,
)
from keras_attn.models.parts.registry import register
from keras_attn.models.parts.resnet import standardized_resnet
from keras_attn.models.parts.variants import resolve

POOLINGS = ("token", "mean")


def _sizes(patch_size, num_layers, hidden_dim, num_heads):
    return {
        "image_size": 224,
        "patch_size": patch_size,
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * hidden_dim,
    }


VARIANTS = {
    # Dosovitskiy et al. 2021, table 1; tiny and small: Touvron et al. 2021, table 1
    # (arXiv:2012.12877), Steiner et al. 2022 (arXiv:2106.10270).
    "vit": {
        "tiny_patch16": _sizes(16, 12, 192, 3),
        "small_patch16": _sizes(16, 12, 384, 6),
        "small_patch32": _sizes(32, 12, 384, 6),
        "base_patch16": _sizes(16, 12, 768, 12),
        "base_patch32": _sizes(32, 12, 768, 12),
        "large_patch16": _sizes(16, 24, 1024, 16),
        "large_patch32": _sizes(32, 24, 1024, 16),
        "huge_patch14": _sizes(14, 32, 1280, 16),
    },
    # Dosovitskiy et al. 2021, sections 3.1 and 4.1; the ResNet: Kolesnikov et al. 2020,
    # with the blocks of its fourth stage in the third.
    "hybrid": {
        "r50_base_patch16": {
            **_sizes(1, 12, 768, 12),
            "num_blocks": (3, 4, 9),
            "stem_dim": 64,
        },
    },
    # Touvron et al. 2022 (arXiv:2204.07118); medium: the authors' later release.
    "deit3": {
        "small": _sizes(16, 12, 384, 6),
        "medium": _sizes(16, 12, 512, 8),
        "base": _sizes(16, 12, 768, 12),
        "large": _sizes(16, 24, 1024, 16),
        "huge": _sizes(14, 32, 1280, 16),
    },
}


def build_vit(
    variant="base_patch16",
    *,
    image_size=None,
    patch_size=None,
    num_classes=1000,
    include_top=True,
    pooling="token",
    class_token=True,
    distillation=None,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    mlp_dim=None,
    stem_dims=None,
    num_channels=3,
    activation="gelu",
    layer_norm_epsilon=1e-6,
    qkv_bias=True,
    dropout=0.0,
    attention_dropout=0.0,
    stochastic_depth=0.0,
    name="vit",
):
    """Patches and a class token with learned positions, then N pre-norm blocks.

    Args:
        variant: A row of `VARIANTS["vit"]`; what is None below is as it says.
        image_size: Pixels, one number or two, rows first; a multiple of `patch_size`.
        patch_size: Pixels of a patch, one number or two.
        num_classes: C.
        include_top: Whether the model ends in logits, or in features.
        pooling: What the logits are read from: `"token"`, the class token, or
            `"mean"`, the mean of the patches.
        class_token: Whether there is one; `pooling="token"` needs it.
        distillation: None; `"token"`: a second token stands behind the class token, as
            in DeiT, which it learned from another network by; `"head"`: that token has
            a head of its own, and the logits are the mean of both.
        num_layers: Blocks.
        hidden_dim: D.
        num_heads: Attention heads a block.
        mlp_dim: Width of the feed-forward networks.
        stem_dims: Channels of a convolutional stem in front; see `PatchEmbedding`.
        num_channels: Of the images.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        qkv_bias: Whether queries, keys and values have biases.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        stochastic_depth: Probability of leaving out the last block's sub-layers; it
            rises to that from 0 in the first.
        name: Of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, C), or without the top
        to a dictionary of `sequence_output` (B, 1 + T, D), the class token first, and
        `pooled_output` (B, D). With `pooling="mean"` the final norm is applied to the
        mean alone, as published fine-tuning does.

    Raises:
        ValueError: for an image that patches don't fill, or a pooling without its
            token.

    Reference:
        Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words: Transformers for Image
        Recognition at Scale" (arXiv:2010.11929); `distillation`: Touvron et al. 2021
        (arXiv:2012.12877).
    """
    numbers = resolve(
        VARIANTS["vit"],
        variant,
        image_size=image_size,
        patch_size=patch_size,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
    )
    images = image_input(numbers["image_size"], num_channels)
    hidden = _patches(numbers, stem_dims)(images)
    tokens = _count_tokens(class_token, distillation)
    if tokens:
        hidden = ClassToken(tokens, initializer=INITIALIZER, name="class_token")(hidden)
    hidden = _positions(hidden)
    hidden = Dropout(dropout, name="embeddings_dropout")(hidden)
    hidden = _blocks(
        hidden,
        numbers,
        rising_rates(stochastic_depth, numbers["num_layers"]),
        activation=activation,
        layer_norm_epsilon=layer_norm_epsilon,
        qkv_bias=qkv_bias,
        dropout=dropout,
        mlp_dropout=dropout,
        attention_dropout=attention_dropout,
    )
    outputs = _pool(hidden, pooling, tokens, layer_norm_epsilon)
    if include_top:
        sequence = outputs["sequence_output"]
        outputs = classify(outputs["pooled_output"], num_classes)
        if distillation == "head":
            second = classify(sequence[:, 1], num_classes, "distillation_classifier")
            outputs = ops.multiply(ops.add(outputs, second), 0.5)
    return Functional(images, outputs, name=name)


def build_vit_hybrid(
    variant="r50_base_patch16",
    *,
    image_size=None,
    num_classes=1000,
    include_top=True,
    pooling="token",
    num_blocks=None,
    stem_dim=None,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    mlp_dim=None,
    num_channels=3,
    activation="gelu",
    layer_norm_epsilon=1e-6,
    qkv_bias=True,
    dropout=0.0,
    attention_dropout=0.0,
    stochastic_depth=0.0,
    name="vit_hybrid",
):
    """A ViT whose patches are the places of a ResNet's feature map.

    The ResNet has group norms and standardized kernels ("BiT"). A place of its map
    stands for 16 × 16 pixels, with the three stages that are published.

    Args:
        variant: A row of `VARIANTS["hybrid"]`; what is None below is as it says.
        image_size: Pixels, one number or two, rows first.
        num_classes: C.
        include_top: Whether the model ends in logits, or in features.
        pooling: What the logits are read from: `"token"` or `"mean"`.
        num_blocks: Bottlenecks of each stage of the ResNet.
        stem_dim: Channels of its first map, a multiple of 32; each stage ends in four
            times as many as the one before has inside.
        num_layers: Blocks of the ViT.
        hidden_dim: D.
        num_heads: Attention heads a block.
        mlp_dim: Width of the feed-forward networks.
        num_channels: Of the images.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        qkv_bias: Whether queries, keys and values have biases.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        stochastic_depth: Probability of leaving out the last block's sub-layers.
        name: Of the model.

    Returns:
        As `build_vit`.

    Reference:
        Dosovitskiy et al. 2021, section 3.1, "Hybrid Architecture" (arXiv:2010.11929);
        Kolesnikov et al. 2020, "Big Transfer" (arXiv:1912.11370).
    """
    numbers = resolve(
        VARIANTS["hybrid"],
        variant,
        image_size=image_size,
        num_blocks=num_blocks,
        stem_dim=stem_dim,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
    )
    images = image_input(numbers["image_size"], num_channels)
    features = standardized_resnet(images, numbers["stem_dim"], numbers["num_blocks"])
    hidden = _patches(numbers)(features)
    hidden = ClassToken(initializer=INITIALIZER, name="class_token")(hidden)
    hidden = Dropout(dropout, name="embeddings_dropout")(_positions(hidden))
    hidden = _blocks(
        hidden,
        numbers,
        rising_rates(stochastic_depth, numbers["num_layers"]),
        activation=activation,
        layer_norm_epsilon=layer_norm_epsilon,
        qkv_bias=qkv_bias,
        dropout=dropout,
        mlp_dropout=dropout,
        attention_dropout=attention_dropout,
    )
    outputs = _pool(hidden, pooling, 1, layer_norm_epsilon)
    if include_top:
        outputs = classify(outputs["pooled_output"], num_classes)
    return Functional(images, outputs, name=name)


def build_deit3(
    variant="base",
    *,
    image_size=None,
    patch_size=None,
    num_classes=1000,
    include_top=True,
    pooling="token",
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    mlp_dim=None,
    num_channels=3,
    activation="gelu",
    layer_norm_epsilon=1e-6,
    qkv_bias=True,
    layer_scale=1e-6,
    stochastic_depth=0.0,
    name="deit3",
):
    """ViT with LayerScale, and a class token that has no position.

    Args:
        variant: A row of `VARIANTS["deit3"]`; what is None below is as it says.
        image_size: Pixels, one number or two, rows first; a multiple of `patch_size`.
        patch_size: Pixels of a patch, one number or two.
        num_classes: C.
        include_top: Whether the model ends in logits, or in features.
        pooling: What the logits are read from: `"token"` or `"mean"`.
        num_layers: Blocks.
        hidden_dim: D.
        num_heads: Attention heads a block.
        mlp_dim: Width of the feed-forward networks.
        num_channels: Of the images.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        qkv_bias: Whether queries, keys and values have biases.
        layer_scale: First value of the factors of each sub-layer. None = there are
            none.
        stochastic_depth: Probability of leaving a sub-layer out, the same in every
            block; published: 0.05 (small) to 0.55 (huge).
        name: Of the model.

    Returns:
        As `build_vit`.

    Reference:
        Touvron et al. 2022, "DeiT III: Revenge of the ViT" (arXiv:2204.07118).
    """
    numbers = resolve(
        VARIANTS["deit3"],
        variant,
        image_size=image_size,
        patch_size=patch_size,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
    )
    images = image_input(numbers["image_size"], num_channels)
    hidden = _positions(_patches(numbers)(images))
    hidden = ClassToken(initializer=INITIALIZER, name="class_token")(hidden)
    hidden = _blocks(
        hidden,
        numbers,
        [stochastic_depth] * numbers["num_layers"],
        activation=activation,
        layer_norm_epsilon=layer_norm_epsilon,
        qkv_bias=qkv_bias,
        layer_scale=layer_scale,
    )
    outputs = _pool(hidden, pooling, 1, layer_norm_epsilon)
    if include_top:
        outputs = classify(outputs["pooled_output"], num_classes)
    return Functional(images, outputs, name=name)


def _patches(numbers, stem_dims=None):
    return PatchEmbedding(
        numbers["hidden_dim"],
        check_pair("patch_size", numbers["patch_size"]),
        stem_dims=stem_dims,
        kernel_initializer=INITIALIZER,
        name="patch_embedding",
    )


def _positions(hidden):
    return LearnedPositionEmbedding(
        hidden.shape[1], embeddings_initializer=INITIALIZER, name="position_embedding"
    )(hidden)


def _blocks(hidden, numbers, rates, **options):
    """A pre-norm block for each rate of stochastic depth."""
    for index, rate in enumerate(rates):
        hidden = TransformerEncoderBlock(
            numbers["num_heads"],
            numbers["mlp_dim"],
            norm_first=True,
            stochastic_depth=rate,
            kernel_initializer=INITIALIZER,
            name=f"block_{index}",
            **options,
        )(hidden)
    return hidden


def _count_tokens(class_token, distillation):
    """How many tokens stand in front of the patches."""
    check_choice("distillation", distillation, (None, "token", "head"))
    if distillation is not None and not class_token:
        raise ValueError(
            "`distillation` has a token beside the class token. "
            f"Received: distillation={distillation!r}, class_token={class_token}"
        )
    return (1 if class_token else 0) + (1 if distillation else 0)


def _pool(hidden, pooling, num_tokens, epsilon):
    """The two outputs of a model without its top."""
    check_choice("pooling", pooling, POOLINGS)
    norm = LayerNormalization(epsilon=epsilon, name="final_norm")
    if pooling == "mean":
        patches = hidden[:, num_tokens:] if num_tokens else hidden
        pooled = norm(ops.mean(patches, axis=1))
        return {"sequence_output": hidden, "pooled_output": pooled}
    if not num_tokens:
        raise ValueError(
            "`pooling` reads the class token, and there is none: say pooling='mean'. "
            f"Received: pooling={pooling!r}, class_token=False"
        )
    hidden = norm(hidden)
    return {"sequence_output": hidden, "pooled_output": hidden[:, 0]}


_VIT = "Dosovitskiy et al. 2021, arXiv:2010.11929"
_STEINER = "Steiner et al. 2022, arXiv:2106.10270"
_TOUVRON = "Touvron et al. 2022, arXiv:2204.07118"
for _variant, _paper, _count, _notes in (
    ("tiny_patch16", _STEINER, 5_700_000, "from ImageNet-21k: ImageNet 75.5"),
    ("small_patch16", _STEINER, 22_000_000, "from ImageNet-21k: ImageNet 81.4"),
    ("small_patch32", _STEINER, 23_000_000, "from ImageNet-21k: ImageNet 76.0"),
    ("base_patch16", _VIT, 86_000_000, "from ImageNet-21k, at 384: ImageNet 83.97"),
    ("base_patch32", _VIT, 88_000_000, "from ImageNet-21k, at 384: ImageNet 81.28"),
    ("large_patch16", _VIT, 307_000_000, "from ImageNet-21k, at 384: ImageNet 85.15"),
    ("large_patch32", _VIT, 306_000_000, "from ImageNet-21k, at 384: ImageNet 80.99"),
    ("huge_patch14", _VIT, 632_000_000, "from ImageNet-21k, at 384: ImageNet 85.13"),
):
    register(
        image_card(
            f"vit_{_variant}",
            "vit",
            f"ViT {_variant.replace('_', ', ')}: an image as a sequence of patches",
            _paper,
            2022 if _paper is _STEINER else 2021,
            _count,
            HALF,
            _notes,
        ),
        build_vit,
        _variant,
    )
register(
    image_card(
        "vit_hybrid_r50_base_patch16",
        "vit",
        "ViT base on the feature map of a ResNet-50",
        _VIT,
        2021,
        None,
        HALF,
        "published as R50+ViT-B/16",
    ),
    build_vit_hybrid,
    "r50_base_patch16",
)
for _variant, _count, _notes in (
    ("small", 22_000_000, "ImageNet 81.4 at 224"),
    ("medium", 39_000_000, "ImageNet 83.0 at 224"),
    ("base", 86_600_000, "ImageNet 83.8 at 224"),
    ("large", 304_000_000, "ImageNet 84.9 at 224"),
    ("huge", 632_000_000, "ImageNet 85.2 at 224"),
):
    register(
        image_card(
            f"deit3_{_variant}",
            "vit",
            f"DeiT III {_variant}: ViT with LayerScale",
            _TOUVRON,
            2022,
            _count,
            IMAGENET,
            _notes,
        ),
        build_deit3,
        _variant,
    )
