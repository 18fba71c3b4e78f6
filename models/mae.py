"""The masked autoencoder: a ViT that sees 25% of an image and reconstructs the rest.

    build_mae       images -> the pixels of every patch, and which patches were hidden

The encoder has the layer names of `build_vit`, and is fine-tuned as one:
`models.load_checkpoint(folder, task="classifier")`. Blocks:
`layers/blocks/transformer_block.py`; masking:
`layers/embeddings/random_patch_masking.py`.

Legend: B batch, H and W pixels, T patches, D width, P pixels of a patch times channels.
Layers: as in `build_vit`, with `masking` after `position_embedding`; then
`decoder_embedding`, `unmasking`, `decoder_position_embedding`, `decoder_block_0`, …,
`decoder_norm`, `decoder_prediction`, `reconstruction`.
"""

import functools
from dataclasses import replace

import keras

from keras_attn.checks.argument_types import Activation, Epsilon
from keras_attn.checks.arguments import check_pair
from keras_attn.layers import (
    ClassToken,
    Dense,
    HiddenPatches,
    LearnedPositionEmbedding,
    PatchEmbedding,
    PatchUnmasking,
    RandomPatchMasking,
    TransformerEncoderBlock,
)
from keras_attn.layers.initializers import SinusoidGrid, normal
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import IMAGENET, Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, block_sizes
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import image_input

_TOKEN_INITIALIZER = normal(0.02)


_sizes = functools.partial(
    block_sizes,
    image_size=224,
    decoder_num_layers=8,
    decoder_hidden_dim=512,
    decoder_num_heads=16,
    decoder_mlp_dim=2048,
)
# He et al. 2022, section 4 and appendix A.1.
VARIANTS = {
    "base": _sizes(patch_size=16, num_layers=12, hidden_dim=768, num_heads=12),
    "large": _sizes(patch_size=16, num_layers=24, hidden_dim=1024, num_heads=16),
    "huge": _sizes(patch_size=14, num_layers=32, hidden_dim=1280, num_heads=16),
}
_TRAINING = Training("ImageNet", "section 4", images=1600 * IMAGENET)
CARDS = model_cards(
    "mae_vit_{variant}",
    {"base": 111_900_000, "large": 329_500_000, "huge": 657_100_000},
    training={
        "base": _TRAINING,
        # 128 cores, two on a chip.
        "large": replace(_TRAINING, hardware="tpu_v3", devices=64, hours=31),
        "huge": _TRAINING,
    },
    scores=[
        scored(
            "ImageNet top-1",
            "fine-tuned, at 224",
            "table 3",
            {"base": 83.6, "large": 85.9, "huge": 86.9},
        )
    ],
    title="MAE {variant}: a ViT pre-trained by reconstructing hidden patches",
    paper="He et al. 2022, arXiv:2111.06377",
    task="self-supervised pre-training",
    inputs={
        "images": tasks.RGB + tasks.IMAGENET,
        "noise": "(B, T) float, hides the patches where it is largest; only with "
        "noise=True",
    },
    outputs={
        "reconstruction": "(B, T, P) float32, normalized pixels of each patch",
        "hidden": "(B, T) bool, True = hidden from the encoder",
    },
)


@registered(CARDS, VARIANTS)
def build_mae(
    variant: str = "base",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    patch_size: int | tuple[int, int] = FROM_VARIANT,
    mask_ratio: float = 0.75,
    noise: bool = False,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    decoder_num_layers: int = FROM_VARIANT,
    decoder_hidden_dim: int = FROM_VARIANT,
    decoder_num_heads: int = FROM_VARIANT,
    decoder_mlp_dim: int = FROM_VARIANT,
    num_channels: int = 3,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = 1e-6,
    qkv_bias: bool = True,
    name: str = "mae",
) -> Functional:
    """A ViT on the visible patches, then a smaller one on all of them.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns); a multiple of
            `patch_size`.
        patch_size: Pixels of a patch, one number or two.
        mask_ratio: Fraction of the patches to hide, in (0, 1).
        noise: Whether the model has an input `noise` (B, T): the patches where it is
            largest are hidden. Otherwise they are sampled at every call, including
            inference.
        num_layers: Number of blocks of the encoder.
        hidden_dim: D, width of the encoder.
        num_heads: Attention heads per block of the encoder.
        mlp_dim: Width of the encoder's feed-forward networks.
        decoder_num_layers: Number of blocks of the decoder.
        decoder_hidden_dim: Width of the decoder.
        decoder_num_heads: Attention heads per block of the decoder.
        decoder_mlp_dim: Width of the decoder's feed-forward networks.
        num_channels: Channels of the images.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        qkv_bias: Whether the projections to queries, keys and values have biases.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels), or a dictionary of these and `noise`,
        to a dictionary of `reconstruction` (B, T, P), the normalized pixels of each
        patch, and `hidden` (B, T), True = hidden from the encoder. Its loss is
        `losses.MaskedPatchLoss`.

    Reference:
        He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners"
        (arXiv:2111.06377).
    """
    images = image_input(image_size, num_channels, patch_size)
    patch = check_pair("patch_size", patch_size)
    options = {
        "activation": activation,
        "layer_norm_epsilon": layer_norm_epsilon,
        "qkv_bias": qkv_bias,
    }

    hidden = PatchEmbedding(hidden_dim, patch, name="patch_embedding")(images)
    grid = [size // side for size, side in zip(images.shape[1:3], patch, strict=True)]
    hidden = ClassToken(initializer=_TOKEN_INITIALIZER, name="class_token")(hidden)
    hidden = _add_positions(hidden, grid, "position_embedding")
    masking = RandomPatchMasking(mask_ratio, num_prefix_tokens=1, name="masking")
    inputs, given = images, {}
    if noise:
        given = {"noise": keras.Input((grid[0] * grid[1],), name="noise")}
        inputs = {"images": images, **given}
    hidden, is_hidden, positions = masking(hidden, **given)
    hidden = _blocks(hidden, num_layers, num_heads, mlp_dim, "block", options)
    hidden = LayerNormalization(epsilon=layer_norm_epsilon, name="final_norm")(hidden)

    hidden = Dense(decoder_hidden_dim, name="decoder_embedding")(hidden)
    hidden = PatchUnmasking(
        num_prefix_tokens=1, initializer=_TOKEN_INITIALIZER, name="unmasking"
    )(hidden, positions)
    hidden = _add_positions(hidden, grid, "decoder_position_embedding")
    sizes = (decoder_num_layers, decoder_num_heads, decoder_mlp_dim)
    hidden = _blocks(hidden, *sizes, "decoder_block", options)
    hidden = LayerNormalization(epsilon=layer_norm_epsilon, name="decoder_norm")(hidden)
    pixels = Dense(
        patch[0] * patch[1] * num_channels,
        # Always in float32, because a loss follows.
        dtype="float32",
        name="decoder_prediction",
    )(hidden[:, 1:])
    pixels = HiddenPatches(dtype="float32", name="reconstruction")([pixels, is_hidden])
    return Functional(
        inputs, {"reconstruction": pixels, "hidden": is_hidden}, name=name
    )


def _blocks(hidden, num_layers, num_heads, mlp_dim, name, options):
    """Pre-norm blocks, named `name` and their index."""
    for index in range(num_layers):
        hidden = TransformerEncoderBlock(
            num_heads, mlp_dim, norm_first=True, name=f"{name}_{index}", **options
        )(hidden)
    return hidden


def _add_positions(hidden, grid, name):
    """Adds sinusoids of the grid, not trained; zeros for the class token."""
    return LearnedPositionEmbedding(
        hidden.shape[1],
        embeddings_initializer=SinusoidGrid(*grid, num_prefix_tokens=1),
        trainable=False,
        name=name,
    )(hidden)
