"""The masked autoencoder: a ViT that sees a quarter of an image and draws the rest.

    build_mae       images -> the pixels of every patch, and which were hidden

What is trained so goes on as `build_vit`, whose layers have the same names:
`models.load_checkpoint(folder, task="classifier")`.

Legend: B batch, H and W pixels, T patches, D width, P pixels of a patch times channels.
Layers: those of `build_vit`, with `masking` behind `position_embedding`; then
`decoder_embedding`, `unmasking`, `decoder_position_embedding`, `decoder_block_0`, …,
`decoder_norm`, `decoder_prediction`, `reconstruction`.
"""

import keras
from keras.layers import Dense

from keras_attn.checks import check_pair
from keras_attn.layers import (
    ClassToken,
    HiddenPatches,
    LearnedPositionEmbedding,
    PatchEmbedding,
    PatchUnmasking,
    RandomPatchMasking,
    TransformerEncoderBlock,
)
from keras_attn.layers.initializers import SinusoidGrid, normal
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import IMAGENET, image_input
from keras_attn.models.parts.registry import ModelCard, register
from keras_attn.models.parts.variants import resolve

_TOKEN = normal(0.02)


def _sizes(patch_size, num_layers, hidden_dim, num_heads):
    return {
        "image_size": 224,
        "patch_size": patch_size,
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * hidden_dim,
        "decoder_num_layers": 8,
        "decoder_hidden_dim": 512,
        "decoder_num_heads": 16,
        "decoder_mlp_dim": 2048,
    }


# He et al. 2022, section 4 and appendix A.1.
VARIANTS = {
    "base": _sizes(16, 12, 768, 12),
    "large": _sizes(16, 24, 1024, 16),
    "huge": _sizes(14, 32, 1280, 16),
}


def build_mae(
    variant="base",
    *,
    image_size=None,
    patch_size=None,
    mask_ratio=0.75,
    noise=False,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    mlp_dim=None,
    decoder_num_layers=None,
    decoder_hidden_dim=None,
    decoder_num_heads=None,
    decoder_mlp_dim=None,
    num_channels=3,
    activation="gelu",
    layer_norm_epsilon=1e-6,
    qkv_bias=True,
    name="mae",
):
    """A ViT over the visible patches, and a small one over all of them.

    Args:
        variant: A row of `VARIANTS`; what is None below is as it says.
        image_size: Pixels, one number or two, rows first; a multiple of `patch_size`.
        patch_size: Pixels of a patch, one number or two.
        mask_ratio: Share of the patches that is hidden, in (0, 1).
        noise: Whether there is an input of that name, (B, T), that decides which
            patches are hidden: those where it is largest. Otherwise they are drawn at
            each call, also at inference.
        num_layers: Blocks of the encoder.
        hidden_dim: D.
        num_heads: Attention heads of an encoder's block.
        mlp_dim: Width of the encoder's feed-forward networks.
        decoder_num_layers: Blocks of the decoder.
        decoder_hidden_dim: Width of the decoder.
        decoder_num_heads: Attention heads of a decoder's block.
        decoder_mlp_dim: Width of the decoder's feed-forward networks.
        num_channels: Of the images.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        qkv_bias: Whether queries, keys and values have biases.
        name: Of the model.

    Returns:
        A model from `images` (B, H, W, channels), or a dictionary of these and `noise`,
        to a dictionary of `reconstruction` (B, T, P), normed pixels patch by patch, and
        `hidden` (B, T), True = not seen. `training.MaskedPatchLoss` is its objective.

    Reference:
        He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners"
        (arXiv:2111.06377).
    """
    numbers = resolve(
        VARIANTS,
        variant,
        image_size=image_size,
        patch_size=patch_size,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        decoder_num_layers=decoder_num_layers,
        decoder_hidden_dim=decoder_hidden_dim,
        decoder_num_heads=decoder_num_heads,
        decoder_mlp_dim=decoder_mlp_dim,
    )
    images = image_input(numbers["image_size"], num_channels)
    patch = check_pair("patch_size", numbers["patch_size"])
    hidden = PatchEmbedding(numbers["hidden_dim"], patch, name="patch_embedding")(
        images
    )
    grid = [size // side for size, side in zip(images.shape[1:3], patch, strict=True)]
    hidden = ClassToken(initializer=_TOKEN, name="class_token")(hidden)
    hidden = _positions(hidden, grid, "position_embedding")
    masking = RandomPatchMasking(mask_ratio, num_prefix_tokens=1, name="masking")
    inputs, given = images, {}
    if noise:
        given = {"noise": keras.Input((grid[0] * grid[1],), name="noise")}
        inputs = {"images": images, **given}
    hidden, is_hidden, places = masking(hidden, **given)
    shared = {
        "activation": activation,
        "layer_norm_epsilon": layer_norm_epsilon,
        "qkv_bias": qkv_bias,
    }
    for index in range(numbers["num_layers"]):
        hidden = TransformerEncoderBlock(
            numbers["num_heads"],
            numbers["mlp_dim"],
            norm_first=True,
            name=f"block_{index}",
            **shared,
        )(hidden)
    hidden = LayerNormalization(epsilon=layer_norm_epsilon, name="final_norm")(hidden)

    hidden = Dense(numbers["decoder_hidden_dim"], name="decoder_embedding")(hidden)
    hidden = PatchUnmasking(num_prefix_tokens=1, initializer=_TOKEN, name="unmasking")(
        hidden, places
    )
    hidden = _positions(hidden, grid, "decoder_position_embedding")
    for index in range(numbers["decoder_num_layers"]):
        hidden = TransformerEncoderBlock(
            numbers["decoder_num_heads"],
            numbers["decoder_mlp_dim"],
            norm_first=True,
            name=f"decoder_block_{index}",
            **shared,
        )(hidden)
    hidden = LayerNormalization(epsilon=layer_norm_epsilon, name="decoder_norm")(hidden)
    pixels = Dense(
        patch[0] * patch[1] * num_channels,
        # In float32 whatever the policy: a loss follows.
        dtype="float32",
        name="decoder_prediction",
    )(hidden[:, 1:])
    pixels = HiddenPatches(dtype="float32", name="reconstruction")([pixels, is_hidden])
    return Functional(
        inputs, {"reconstruction": pixels, "hidden": is_hidden}, name=name
    )


def _positions(hidden, grid, name):
    """Sinusoids of the grid, which are not trained, and zeros for the class token."""
    return LearnedPositionEmbedding(
        hidden.shape[1],
        embeddings_initializer=SinusoidGrid(*grid, num_prefix_tokens=1),
        trainable=False,
        name=name,
    )(hidden)


for _variant, _count, _notes in (
    ("base", 111_900_000, "fine-tuned: ImageNet 83.6"),
    ("large", 329_500_000, "fine-tuned: ImageNet 85.9"),
    ("huge", 657_100_000, "fine-tuned: ImageNet 86.9"),
):
    register(
        ModelCard(
            name=f"mae_vit_{_variant}",
            family="mae",
            title=f"MAE {_variant}: a ViT that learns by drawing hidden patches",
            paper="He et al. 2022, arXiv:2111.06377",
            year=2022,
            task="self-supervised pre-training",
            parameters=_count,
            inputs={
                "images": f"(B, H, W, 3) float, red, green, blue; {IMAGENET}",
                "noise": "(B, T) float, what is largest is hidden; with noise=True",
            },
            outputs={
                "reconstruction": "(B, T, P) float32, normed pixels of each patch",
                "hidden": "(B, T) bool, True = the encoder did not see it",
            },
            notes=_notes,
        ),
        build_mae,
        _variant,
    )
