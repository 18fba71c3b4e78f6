"""SigLIP: CLIP with a sigmoid for each pair in place of a softmax.

    build_siglip                images, token_ids -> image and text embeddings

    I_e = normalize(pool(vit(I)))               `probe_pooling`, `unit_norm`
    T_e = normalize(transformer(T)_T W + b)     `text_projection`, `text_unit_norm`
    logits = exp(s) I_e T_eᵀ + b                `similarity`
    loss = -Σ_ij log σ(±logits_ij) / B          + for i = j, the pairs of the batch

The last line is `DualEncoder.compute_loss`, in `models/parts/dual_encoder.py`.

Legend: B batch, H and W pixels, T tokens, D width, E width of the embeddings.
Layers: as in `build_clip`, with `probe_pooling` instead of `class_token` and
`projection`, and without `text_pooling`.
"""

import functools

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import Dense, ProbePooling, SimilarityLogits
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, block_options, block_sizes
from keras_attn.models.parts.dual_encoder import (
    DualEncoder,
    add_positions,
    dual_encoder,
    embed_patches,
    text_tower,
    transformer_blocks,
)
from keras_attn.models.parts.images import image_input
from keras_attn.ops import gelu_tanh

_BASE = block_sizes(num_layers=12, hidden_dim=768, num_heads=12)
# Zhai et al. 2023, in the authors' code.
VARIANTS = {
    "base_patch16_224": {
        **_BASE,
        **{f"text_{name}": size for name, size in _BASE.items()},
        "image_size": 224,
        "patch_size": 16,
        "vocabulary_size": 32_000,
        "max_sequence_length": 64,
    },
}
CARDS = model_cards(
    "siglip_{variant}",
    {"base_patch16_224": 203_155_970},
    notes="texts are padded to 64 tokens",
    title="SigLIP {variant}: CLIP with one sigmoid per pair",
    paper="Zhai et al. 2023, arXiv:2303.15343",
    # As transformers' `SiglipImageProcessor`.
    **tasks.image_text_similarity(tasks.HALF, "padded to a fixed length"),
)


@registered(CARDS, VARIANTS)
@described_as(text_tower)
def build_siglip(
    variant: str = "base_patch16_224",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    patch_size: int | tuple[int, int] = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    num_channels: int = 3,
    vocabulary_size: int = FROM_VARIANT,
    max_sequence_length: int = FROM_VARIANT,
    text_num_layers: int = FROM_VARIANT,
    text_hidden_dim: int = FROM_VARIANT,
    text_num_heads: int = FROM_VARIANT,
    text_mlp_dim: int = FROM_VARIANT,
    activation: Activation = gelu_tanh,
    layer_norm_epsilon: Epsilon = 1e-6,
    dropout: Probability = 0.0,
    attention_dropout: Probability = 0.0,
    name: str = "siglip",
) -> DualEncoder:
    """CLIP with a loss of its own for each pair, and without masks.

    The image tower is a ViT without a class token, which `ProbePooling` summarizes. The
    text tower is not causal; a text is read at its last position, and its padding is
    attended to. So it must be padded, at the right, to the length that the published
    models were trained with, `max_sequence_length`.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns). What is left over after
            the last whole patch, at the right and at the bottom, is not read.
        patch_size: Pixels of a patch, one number or two.
        num_layers: Number of blocks of the image tower.
        hidden_dim: D of the image tower, and E.
        num_heads: Attention heads per block of the image tower, and of its pooling.
        mlp_dim: Width of the feed-forward networks of the image tower.
        num_channels: Channels of the images.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        name: Name of the model.

    Returns:
        A model as from `build_clip`.

    Reference:
        Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training"
        (arXiv:2303.15343).
    """
    options = block_options(activation, layer_norm_epsilon, dropout, attention_dropout)
    norm = functools.partial(LayerNormalization, epsilon=layer_norm_epsilon)
    images = image_input(image_size, num_channels)
    # The published model of 384 pixels has 27 patches of 14, and crops the rest.
    hidden = embed_patches(images, hidden_dim, patch_size, padding="valid")
    hidden = add_positions(hidden, "", hidden_dim**-0.5)
    hidden = Dropout(dropout, name="embeddings_dropout")(hidden)
    hidden = transformer_blocks(hidden, "", num_layers, num_heads, mlp_dim, options)
    hidden = norm(name="final_norm")(hidden)
    image_embeddings = ProbePooling(
        num_heads,
        mlp_dim,
        activation=activation,
        layer_norm_epsilon=layer_norm_epsilon,
        name="probe_pooling",
    )(hidden)

    token_ids, hidden = text_tower(
        options,
        causal=False,
        vocabulary_size=vocabulary_size,
        max_sequence_length=max_sequence_length,
        text_num_layers=text_num_layers,
        text_hidden_dim=text_hidden_dim,
        text_num_heads=text_num_heads,
        text_mlp_dim=text_mlp_dim,
    )
    text_embeddings = Dense(hidden_dim, name="text_projection")(hidden[:, -1])

    similarity = SimilarityLogits(
        10.0, max_scale=None, initial_bias=-10.0, name="similarity"
    )
    return dual_encoder(
        images, token_ids, image_embeddings, text_embeddings, similarity, name
    )
