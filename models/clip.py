"""CLIP: one space for images and texts, learned from pairs of both.

    build_clip                  images, token_ids -> image and text embeddings
    build_clip_image_encoder    images -> image embeddings
    build_clip_text_encoder     token_ids -> text embeddings

    I_f = image_tower(I)                        a ViT or a ResNet
    T_f = text_tower(T)                         a causal Transformer
    I_e = normalize(I_f W_i)                    `projection`, `unit_norm`
    T_e = normalize(T_f W_t)                    `text_projection`, `text_unit_norm`
    logits = exp(s) I_e T_eᵀ                    `similarity`
    loss = (cross_entropy(logits, 1 … B, rows)
            + cross_entropy(logits, 1 … B, columns)) / 2

This is figure 3 of the paper; the last two lines are `DualEncoder.compute_loss`, in
`models/parts/dual_encoder.py`, which also has the parts of the towers that SigLIP has.
B is the batch of all devices: each replica gathers all T_e, computes the logits of its
own images, and the terms of the columns are added over replicas, so that loss and
gradients equal those on one device.

Legend: B batch, H and W pixels, T tokens, D width, E width of the embeddings.
Layers: the image tower's as in `build_vit`, with `embeddings_norm` before the blocks;
or as in `models/parts/backbones/resnet.py`, with `attention_pooling`. The text tower's
are `text_token_embedding`, `text_position_embedding`, `text_block_0`, …,
`text_final_norm`, `text_pooling`.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

from keras_attn.checks.argument_types import (
    Activation,
    Epsilon,
    Index,
    Probability,
)
from keras_attn.checks.arguments import check_pair
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import (
    AttentionPooling,
    ClassToken,
    Dense,
    EndTokenPooling,
    SimilarityLogits,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import normal
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import (
    FROM_VARIANT,
    block_options,
    block_sizes,
    check_variant,
)
from keras_attn.models.parts.backbones.resnet import pooled_resnet
from keras_attn.models.parts.dual_encoder import (
    DualEncoder,
    add_positions,
    dual_encoder,
    embed_patches,
    text_tower,
    transformer_blocks,
)
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import image_input
from keras_attn.ops import quick_gelu


def _sizes(text, embedding_dim, image_size=224, **image):
    """A row: the sizes of both towers."""
    return {
        **image,
        **{f"text_{name}": size for name, size in text.items()},
        "embedding_dim": embedding_dim,
        "image_size": image_size,
        "vocabulary_size": 49_408,
        "max_sequence_length": 77,
    }


_BASE = block_sizes(num_layers=12, hidden_dim=768, num_heads=12)
_LARGE = block_sizes(num_layers=24, hidden_dim=1024, num_heads=16)
_TEXT = block_sizes(num_layers=12, hidden_dim=512, num_heads=8)
_LARGE_TEXT = block_sizes(num_layers=12, hidden_dim=768, num_heads=12)

# Radford et al. 2021, tables 19 and 20. The heads of a ResNet are its pooling's.
VARIANTS = {
    "vit_base_patch32": _sizes(_TEXT, 512, patch_size=32, **_BASE),
    "vit_base_patch16": _sizes(_TEXT, 512, patch_size=16, **_BASE),
    "vit_large_patch14": _sizes(_LARGE_TEXT, 768, patch_size=14, **_LARGE),
    "vit_large_patch14_336": _sizes(_LARGE_TEXT, 768, 336, patch_size=14, **_LARGE),
    "rn50": _sizes(_TEXT, 1024, num_blocks=(3, 4, 6, 3), stem_dim=64, num_heads=32),
    "rn101": _sizes(_TEXT, 512, num_blocks=(3, 4, 23, 3), stem_dim=64, num_heads=32),
}
_TRAINING = Training("400 million pairs", "sections 2.2 and 2.5", images=32 * 400e6)
CARDS = model_cards(
    "clip_{variant}",
    {
        "vit_base_patch32": 151_277_313,
        "vit_base_patch16": 149_620_737,
        "vit_large_patch14": 427_616_513,
        "vit_large_patch14_336": 427_944_193,
        "rn50": 102_007_137,
        "rn101": 119_688_033,
    },
    training={
        "vit_base_patch32": _TRAINING,
        "vit_base_patch16": _TRAINING,
        "vit_large_patch14": replace(
            _TRAINING, hardware="v100", devices=256, hours=12 * 24
        ),
        # One more epoch, of larger images.
        "vit_large_patch14_336": replace(_TRAINING, images=33 * 400e6),
        "rn50": _TRAINING,
        "rn101": _TRAINING,
    },
    scores=[
        scored(
            "ImageNet zero-shot top-1",
            "at 224",
            "table 11",
            {
                "vit_base_patch32": 63.2,
                "vit_base_patch16": 68.6,
                "vit_large_patch14": 75.3,
                "rn50": 59.6,
                "rn101": 62.2,
            },
        ),
        scored(
            "ImageNet zero-shot top-1",
            "at 336",
            "table 11",
            {"vit_large_patch14_336": 76.2},
        ),
    ],
    title="CLIP {variant}: images and texts in one space",
    paper="Radford et al. 2021, arXiv:2103.00020",
    # `_transform` of OpenAI's clip.py.
    **tasks.image_text_similarity(tasks.CLIP_PIXELS, "up to the end token", 1.0),
)


@registered(CARDS, VARIANTS)
@described_as(text_tower)
def build_clip(
    variant: str = "vit_base_patch32",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    patch_size: int | tuple[int, int] = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    num_blocks: Sequence[int] = FROM_VARIANT,
    stem_dim: int = FROM_VARIANT,
    num_channels: int = 3,
    vocabulary_size: int = FROM_VARIANT,
    max_sequence_length: int = FROM_VARIANT,
    text_num_layers: int = FROM_VARIANT,
    text_hidden_dim: int = FROM_VARIANT,
    text_num_heads: int = FROM_VARIANT,
    text_mlp_dim: int = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    end_token_id: Index | None = None,
    activation: Activation = quick_gelu,
    layer_norm_epsilon: Epsilon = 1e-5,
    dropout: Probability = 0.0,
    attention_dropout: Probability = 0.0,
    name: str = "clip",
) -> DualEncoder:
    """An image tower and a text tower, whose embeddings of a pair are made similar.

    The image tower is a ViT, with a norm before its blocks and another on its class
    token, or a ResNet with `AttentionPooling`. The text tower is a causal pre-norm
    Transformer. A text needs no padding mask: the vector at its end token depends on
    no later position. Both towers start with the initial values of the authors' text
    tower, up to the first kernels of the feed-forward networks.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns); a multiple of
            `patch_size`, or of the factor by which a ResNet shrinks the image, 32 with
            four stages.
        patch_size: Pixels of a patch, one number or two, of a ViT.
        num_layers: Number of blocks of a ViT.
        hidden_dim: D of a ViT.
        num_heads: Attention heads per block of a ViT; of a ResNet's pooling.
        mlp_dim: Width of the feed-forward networks of a ViT.
        num_blocks: Bottlenecks of each stage of a ResNet.
        stem_dim: Channels of the first map of a ResNet.
        num_channels: Channels of the images.
        embedding_dim: E.
        end_token_id: Id of the end token, whose first position in a text is the one
            that its embedding is computed from. None = the position of the largest id,
            as in the authors' code: in their vocabulary it is the end token, 49407.
        activation: Activation of the feed-forward networks: `quick_gelu`, as in the
            published models, or `"gelu"`, as in most of open_clip's own.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) and `token_ids` (B, T) to
        `image_embeddings` and `text_embeddings`, (B, E), of length 1. It learns from
        pairs without labels; see `DualEncoder`.

    Raises:
        ValueError: If an argument is for the other kind of image tower, `image_size`
            is not such a multiple, or `end_token_id` is not in the vocabulary.

    Reference:
        Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
        Supervision" (arXiv:2103.00020).
    """
    _check_tower(
        variant,
        {
            "patch_size": patch_size,
            "num_layers": num_layers,
            "hidden_dim": hidden_dim,
            "mlp_dim": mlp_dim,
        },
        {"num_blocks": num_blocks, "stem_dim": stem_dim},
    )
    _check_end_token(end_token_id, vocabulary_size)
    options = block_options(activation, layer_norm_epsilon, dropout, attention_dropout)
    norm = functools.partial(LayerNormalization, epsilon=layer_norm_epsilon)
    if num_blocks is None:
        images = image_input(image_size, num_channels, patch_size)
        hidden = embed_patches(images, hidden_dim, patch_size, use_bias=False)
        token = ClassToken(initializer=normal(hidden_dim**-0.5), name="class_token")
        hidden = add_positions(token(hidden), "", hidden_dim**-0.5)
        hidden = norm(name="embeddings_norm")(hidden)
        hidden = Dropout(dropout, name="embeddings_dropout")(hidden)
        hidden = transformer_blocks(hidden, "", num_layers, num_heads, mlp_dim, options)
        features = norm(name="final_norm")(hidden[:, 0])
        image_embeddings = _project(features, embedding_dim)
    else:
        images = _resnet_input(image_size, num_channels, num_blocks)
        hidden = pooled_resnet(images, stem_dim, num_blocks)
        scale = normal(hidden.shape[-1] ** -0.5)
        image_embeddings = AttentionPooling(
            num_heads,
            embedding_dim,
            kernel_initializer=scale,
            embeddings_initializer=scale,
            name="attention_pooling",
        )(hidden)

    token_ids, hidden = text_tower(
        options,
        token_scale=0.02,
        position_scale=0.01,
        causal=True,
        vocabulary_size=vocabulary_size,
        max_sequence_length=max_sequence_length,
        text_num_layers=text_num_layers,
        text_hidden_dim=text_hidden_dim,
        text_num_heads=text_num_heads,
        text_mlp_dim=text_mlp_dim,
    )
    features = EndTokenPooling(end_token_id, name="text_pooling")(hidden, token_ids)
    text_embeddings = _project(features, embedding_dim, "text_")

    similarity = SimilarityLogits(name="similarity")
    return dual_encoder(
        images, token_ids, image_embeddings, text_embeddings, similarity, name
    )


def _project(features, embedding_dim, start=""):
    """(B, D) -> (B, E)."""
    return Dense(
        embedding_dim,
        use_bias=False,
        kernel_initializer=normal(features.shape[-1] ** -0.5),
        name=f"{start}projection",
    )(features)


def _check_tower(variant, of_vit, of_resnet):
    """Raises if arguments of both kinds of image towers are given."""
    given = [name for name, size in of_vit.items() if size is not None]
    others = [name for name, size in of_resnet.items() if size is not None]
    if given and others:
        raise ValueError(
            f"`{given[0]}` is for an image tower that is a ViT, and `{others[0]}` for "
            "a ResNet: leave one of them out, or choose another `variant`. "
            f"Received: variant={variant!r}"
        )


def _resnet_input(image_size, num_channels, num_blocks):
    """The input of a ResNet, which halves the map in its stem and between stages."""
    factor = 4 * 2 ** (len(num_blocks) - 1)
    sides = check_pair("image_size", image_size)
    if any(side % factor for side in sides):
        raise ValueError(
            f"`image_size` must be a multiple of {factor}, by which the ResNet shrinks "
            f"the image. Received: image_size={image_size}"
        )
    return image_input(sides, num_channels)


def _check_end_token(end_token_id, vocabulary_size):
    if end_token_id is not None and not 0 <= end_token_id < vocabulary_size:
        raise ValueError(
            f"`end_token_id` must be in [0, {vocabulary_size}), the vocabulary. "
            f"Received: end_token_id={end_token_id}"
        )


def build_clip_image_encoder(
    clip: str | DualEncoder = "vit_base_patch32", *, name: str = "clip_image_encoder"
) -> Functional:
    """The image tower without the text tower.

    Args:
        clip: A model from `build_clip` or `build_siglip`, whose layers are shared, or
            the name of a variant of `build_clip`, which is built.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to their embeddings (B, E), of length
        1 and in float32, with the `preprocessing` of `clip`.
    """
    return as_clip(clip).image_encoder(name)


def build_clip_text_encoder(
    clip: str | DualEncoder = "vit_base_patch32", *, name: str = "clip_text_encoder"
) -> Functional:
    """The text tower without the image tower.

    Args:
        clip: A model from `build_clip` or `build_siglip`, whose layers are shared, or
            the name of a variant of `build_clip`, which is built.
        name: Name of the model.

    Returns:
        A model from `token_ids` (B, T) to their embeddings (B, E), of length 1 and in
        float32.
    """
    return as_clip(clip).text_encoder(name)


def as_clip(clip: str | DualEncoder) -> DualEncoder:
    """Returns a model unchanged, or builds the variant of that name.

    Raises:
        ValueError: If `clip` is a name that is not among the variants.
        TypeError: If `clip` is neither a model nor a name.
    """
    if isinstance(clip, str):
        check_variant("clip", clip, build_clip)
        return build_clip(clip)
    if not isinstance(clip, DualEncoder):
        raise TypeError(
            "`clip` must be the name of a variant, or a model from `build_clip` or "
            f"`build_siglip`. Received: clip={clip!r}"
        )
    return clip
