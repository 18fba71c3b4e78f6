"""Swin: attention within shifted windows, on maps that shrink from stage to stage.

    build_swin      images -> logits, or the features of each stage

    patches -> norm -> dropout -> stage_0 -> merging -> stage_1 -> … -> norm -> mean
    -> logits; blocks 1, 3, … of a stage shift their windows

    patches   x = patch W + b                       P × P pixels each (B, H/P, W/P, D)
    block     x <- x + drop(attention(norm(x)))     in windows of w × w tokens
              x <- x + drop(FFN(norm(x)))           FFN(x) = gelu(x W_1 + b_1) W_2 + b_2
    merging   norm([x_00; x_10; x_01; x_11]) W      x_ij: row i, column j of a square of
                                                    2 × 2; W is (4D, 2D), without bias

`drop` is dropout, then stochastic depth. Odd rows or columns are padded with zeros
before merging. Windows, shift, mask and the bias of relative positions stand at the
head of `layers/attention/window_attention.py`. `@registered` fills in the arguments
whose default is `FROM_VARIANT`.

Legend: B batch, H and W pixels, D width of the first stage, C classes.
Layers: `patch_embedding`, `embeddings_norm`, `embeddings_dropout`, then for each stage
`stage_0_block_0`, … and, between stages, `stage_0_merging`; `final_norm`, `classifier`.
"""

import functools
from collections.abc import Sequence

from keras import ops

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.layers import PatchEmbedding, PatchMerging, SwinBlock
from keras_attn.layers.blocks.stochastic_depth import rising_rates
from keras_attn.layers.dropout import Dropout
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
    classify,
    image_input,
)

_sizes = functools.partial(dict, image_size=224, patch_size=4, window_size=7)
# Liu et al. 2021, section 3.3.
VARIANTS = {
    "tiny": _sizes(hidden_dim=96, num_blocks=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
    "small": _sizes(hidden_dim=96, num_blocks=(2, 2, 18, 2), num_heads=(3, 6, 12, 24)),
    "base": _sizes(hidden_dim=128, num_blocks=(2, 2, 18, 2), num_heads=(4, 8, 16, 32)),
    "large": _sizes(
        hidden_dim=192, num_blocks=(2, 2, 18, 2), num_heads=(6, 12, 24, 48)
    ),
}
_TRAINING = Training("ImageNet", "section 4.1", images=300 * IMAGENET)
_top_1 = functools.partial(scored, "ImageNet top-1")
CARDS = model_cards(
    "swin_{variant}",
    {
        "tiny": 28_288_354,
        "small": 49_606_258,
        "base": 87_768_224,
        "large": 196_532_476,
    },
    training={
        **dict.fromkeys(("tiny", "small", "base"), _TRAINING),
        "large": Training("ImageNet-21k", "section 4.1", images=90 * IMAGENET_21K),
    },
    scores=[
        _top_1("at 224", "table 1", {"tiny": 81.3, "small": 83.0, "base": 83.5}),
        _top_1("at 384", "table 1", {"base": 84.5}),
        _top_1("from ImageNet-21k, at 224", "table 1", {"base": 85.2}),
        _top_1("from ImageNet-21k, at 384", "table 1", {"base": 86.4, "large": 87.3}),
    ],
    title="Swin {variant}: attention within shifted windows",
    paper="Liu et al. 2021, arXiv:2103.14030",
    # `build_transform` of the authors' data/build.py; timm resizes to 248 instead.
    **tasks.image_classification(tasks.IMAGENET, share=0.875),
)


@registered(CARDS, VARIANTS)
def build_swin(
    variant: str = "tiny",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    patch_size: int | tuple[int, int] = FROM_VARIANT,
    window_size: int = FROM_VARIANT,
    num_classes: int = 1000,
    include_top: bool = True,
    hidden_dim: int = FROM_VARIANT,
    num_blocks: Sequence[int] = FROM_VARIANT,
    num_heads: Sequence[int] = FROM_VARIANT,
    mlp_ratio: float = 4,
    num_channels: int = 3,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = 1e-5,
    attention_bias: bool = True,
    dropout: Probability = 0.0,
    attention_dropout: Probability = 0.0,
    stochastic_depth: Probability = 0.1,
    name: str = "swin",
) -> Functional:
    """Small patches, then stages of Swin blocks, each halving rows and columns.

    Every other block shifts its windows. Images that are not a whole number of patches,
    and maps that are not a whole number of windows, are padded with zeros at the bottom
    and on the right.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns).
        patch_size: Pixels of a patch.
        window_size: Side of a window, in patches.
        num_classes: C.
        include_top: Whether the model outputs logits (True) or features (False).
        hidden_dim: D; each stage is twice as wide as the previous one.
        num_blocks: Blocks of each stage.
        num_heads: Attention heads of each stage.
        mlp_ratio: Width of a feed-forward network, as a multiple of the stage's width.
        num_channels: Channels of the images.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        attention_bias: Whether the projections to queries, keys and values have biases.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        stochastic_depth: Probability of skipping the sub-layers of the last block; it
            rises linearly from 0 in the first.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels), which it does not rescale, to logits
        (B, C); without the top, to a dictionary of the maps `stage_0`, …,
        (B, rows, columns, width), the first `patch_size` times smaller than the image
        and each of the others half as large as the one before; `sequence_output`, the
        last map as a sequence, normalized; and `pooled_output`, its mean.

    Raises:
        ValueError: If `num_blocks` and `num_heads` differ in length, or if `mlp_ratio`
            leaves a feed-forward network no unit.

    Reference:
        Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using
        Shifted Windows" (arXiv:2103.14030).
    """
    if len(num_blocks) != len(num_heads):
        raise ValueError(
            "`num_blocks` and `num_heads` must have one number per stage. "
            f"Received: num_blocks={num_blocks}, num_heads={num_heads}"
        )
    if mlp_ratio * hidden_dim < 1:
        raise ValueError(
            "`mlp_ratio` must leave a feed-forward network at least one unit, at "
            f"`hidden_dim` = {hidden_dim}. Received: mlp_ratio={mlp_ratio!r}"
        )
    rates = iter(rising_rates(stochastic_depth, sum(num_blocks)))
    images = image_input(image_size, num_channels)
    hidden = PatchEmbedding(
        hidden_dim,
        patch_size,
        padding="same",
        flatten=False,
        kernel_initializer=INITIALIZER,
        name="patch_embedding",
    )(images)
    # Here and in the merging, the published code has PyTorch's default epsilon.
    hidden = LayerNormalization(epsilon=1e-5, name="embeddings_norm")(hidden)
    hidden = Dropout(dropout, name="embeddings_dropout")(hidden)
    maps = {}
    for stage, (count, heads) in enumerate(zip(num_blocks, num_heads, strict=True)):
        if stage:
            # Concatenates each 2 × 2 square of tokens, normalizes, and projects from
            # four times the width to twice.
            hidden = PatchMerging(
                kernel_initializer=INITIALIZER, name=f"stage_{stage - 1}_merging"
            )(hidden)
        for index in range(count):
            hidden = SwinBlock(
                heads,
                int(mlp_ratio * hidden.shape[-1]),
                window_size,
                shifted=index % 2 == 1,
                activation=activation,
                layer_norm_epsilon=layer_norm_epsilon,
                attention_bias=attention_bias,
                dropout=dropout,
                attention_dropout=attention_dropout,
                stochastic_depth=next(rates),
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
