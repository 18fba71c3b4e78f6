"""Swin: attention within windows that shift, on maps that shrink from stage to stage.

    build_swin      images -> logits, or the features of each stage

Legend: B batch, H and W pixels, D width of the first stage, C classes.
Layers: `patch_embedding`, `embeddings_norm`, `embeddings_dropout`, then for each stage
`stage_0_block_0`, … and, between stages, `stage_0_merging`; `final_norm`, `classifier`.
"""

from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers import PatchEmbedding, PatchMerging, SwinBlock
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.stochastic_depth import rising_rates
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import INITIALIZER
from keras_attn.models.parts.images import IMAGENET, classify, image_card, image_input
from keras_attn.models.parts.registry import register
from keras_attn.models.parts.variants import resolve


def _sizes(hidden_dim, num_blocks, num_heads):
    return {
        "image_size": 224,
        "patch_size": 4,
        "window_size": 7,
        "hidden_dim": hidden_dim,
        "num_blocks": num_blocks,
        "num_heads": num_heads,
    }


# Liu et al. 2021, section 3.3.
VARIANTS = {
    "tiny": _sizes(96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": _sizes(96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": _sizes(128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "large": _sizes(192, (2, 2, 18, 2), (6, 12, 24, 48)),
}


def build_swin(
    variant="tiny",
    *,
    image_size=None,
    patch_size=None,
    window_size=None,
    num_classes=1000,
    include_top=True,
    hidden_dim=None,
    num_blocks=None,
    num_heads=None,
    mlp_ratio=4,
    num_channels=3,
    activation="gelu",
    layer_norm_epsilon=1e-5,
    attention_bias=True,
    dropout=0.0,
    attention_dropout=0.0,
    stochastic_depth=0.1,
    name="swin",
):
    """Small patches, then stages of Swin blocks, each at half the rows and columns.

    Every other block shifts its windows. An image that patches don't fill, and a map
    that windows don't, is padded with zeros below and to the right.

    Args:
        variant: A row of `VARIANTS`; what is None below is as it says.
        image_size: Pixels, one number or two, rows first.
        patch_size: Pixels of a patch.
        window_size: Side of a window, in patches.
        num_classes: C.
        include_top: Whether the model ends in logits, or in features.
        hidden_dim: D; each stage is twice as wide as the one before.
        num_blocks: Blocks of each stage.
        num_heads: Attention heads of each stage.
        mlp_ratio: Width of a feed-forward network, in widths of its stage.
        num_channels: Of the images.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        attention_bias: Whether queries, keys and values have a bias.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        stochastic_depth: Probability of leaving out the last block's sub-layers; it
            rises to that from 0 in the first.
        name: Of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, C), or without the top
        to a dictionary: `stage_0`, … maps (B, rows, columns, width), of which
        `stage_0` is `patch_size` times smaller than the image and each next one half
        as large; `sequence_output`, the last of them normed, as a sequence; and
        `pooled_output`, the mean of that.

    Reference:
        Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using
        Shifted Windows" (arXiv:2103.14030).
    """
    numbers = resolve(
        VARIANTS,
        variant,
        image_size=image_size,
        patch_size=patch_size,
        window_size=window_size,
        hidden_dim=hidden_dim,
        num_blocks=num_blocks,
        num_heads=num_heads,
    )
    blocks, heads = numbers["num_blocks"], numbers["num_heads"]
    if len(blocks) != len(heads):
        raise ValueError(
            "`num_blocks` and `num_heads` must have a number for each stage. "
            f"Received: num_blocks={blocks}, num_heads={heads}"
        )
    rates = rising_rates(stochastic_depth, sum(blocks))
    images = image_input(numbers["image_size"], num_channels)
    hidden = PatchEmbedding(
        numbers["hidden_dim"],
        numbers["patch_size"],
        padding="same",
        flatten=False,
        kernel_initializer=INITIALIZER,
        name="patch_embedding",
    )(images)
    # The published code leaves these two norms at the default of PyTorch.
    hidden = LayerNormalization(epsilon=1e-5, name="embeddings_norm")(hidden)
    hidden = Dropout(dropout, name="embeddings_dropout")(hidden)
    maps = {}
    for stage, (count, stage_heads) in enumerate(zip(blocks, heads, strict=True)):
        if stage:
            hidden = PatchMerging(
                kernel_initializer=INITIALIZER, name=f"stage_{stage - 1}_merging"
            )(hidden)
        for index in range(check_positive("num_blocks", count)):
            hidden = SwinBlock(
                stage_heads,
                int(mlp_ratio * hidden.shape[-1]),
                numbers["window_size"],
                shifted=index % 2 == 1,
                activation=activation,
                layer_norm_epsilon=layer_norm_epsilon,
                attention_bias=attention_bias,
                dropout=dropout,
                attention_dropout=attention_dropout,
                stochastic_depth=rates.pop(0),
                kernel_initializer=INITIALIZER,
                name=f"stage_{stage}_block_{index}",
            )(hidden)
        maps[f"stage_{stage}"] = hidden
    rows, columns, width = hidden.shape[1:]
    sequence = ops.reshape(hidden, (-1, rows * columns, width))
    sequence = LayerNormalization(epsilon=layer_norm_epsilon, name="final_norm")(
        sequence
    )
    pooled = ops.mean(sequence, axis=1)
    if include_top:
        outputs = classify(pooled, num_classes)
    else:
        outputs = {**maps, "sequence_output": sequence, "pooled_output": pooled}
    return Functional(images, outputs, name=name)


for _variant, _count, _notes in (
    ("tiny", 28_288_354, "ImageNet 81.3"),
    ("small", 49_606_258, "ImageNet 83.0"),
    ("base", 87_768_224, "ImageNet 83.5"),
    ("large", 196_532_476, "from ImageNet-22k, at 384: ImageNet 87.3"),
):
    register(
        image_card(
            f"swin_{_variant}",
            "swin",
            f"Swin {_variant}: attention within shifted windows",
            "Liu et al. 2021, arXiv:2103.14030",
            2021,
            _count,
            IMAGENET,
            _notes,
        ),
        build_swin,
        _variant,
    )
