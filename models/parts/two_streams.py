"""ViLBERT's two streams, which VLN-BERT has too: from embeddings to features and heads.

    words    -> norm -> dropout -> blocks, co-attention, blocks, … -> first: dense, ReLU
    regions  -> norm -> dropout -> blocks, co-attention, blocks, … -> first: dense, ReLU

The formulas are at the head of `models/vilbert.py`. Co-attention:
`layers/blocks/co_attention_block.py`; one block of a stream:
`layers/blocks/transformer_block.py`.

Legend: B batch, T tokens, R regions, D width of the words, E width of the regions, P
width of the pair, C classes.
"""

import functools
from typing import Literal, get_args

import keras

from keras_attn.checks.arguments import check_choice, check_fraction, check_positive
from keras_attn.layers import CoAttentionBlock, Dense, TransformerEncoderBlock
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.embeddings.token_pooling import TokenPooling
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog.variants import block_options, block_sizes
from keras_attn.models.parts.bert_encoder import first_token
from keras_attn.models.parts.heads import (
    INITIALIZER,
    as_encoder,
    logits_layer,
    transformed,
)

Fusion = Literal["multiply", "add"]

# Lu et al. 2019, section 3.1, and the authors' `bert_base_6layer_6conect.json`;
# Majumdar et al. 2020, section 4, have the same sizes.
SIZES = block_sizes(
    num_layers=12,
    hidden_dim=768,
    num_heads=12,
    vocabulary_size=30_522,
    max_sequence_length=512,
    num_segments=2,
    layer_norm_epsilon=1e-12,
    feature_dim=2048,
    region_dim=1024,
    num_region_layers=6,
    num_region_heads=8,
    region_mlp_dim=1024,
    co_attention_dim=1024,
    num_co_attention_heads=8,
    text_co_layers=(6, 7, 8, 9, 10, 11),
    region_co_layers=(0, 1, 2, 3, 4, 5),
)


def two_streams(
    words,
    regions,
    padding_mask,
    region_mask,
    *,
    num_layers,
    num_heads,
    mlp_dim,
    activation,
    layer_norm_epsilon,
    dropout,
    attention_dropout,
    num_region_layers,
    num_region_heads,
    region_mlp_dim,
    co_attention_dim,
    num_co_attention_heads,
    text_co_layers,
    region_co_layers,
):
    """The features of both streams, and of the first word and the first region.

    Both builders take the descriptions of their arguments from here.

    Args:
        words: Sum of the embeddings of each word, (B, T, D).
        regions: Sum of the embeddings of each region, (B, R, E).
        padding_mask: (B, T).
        region_mask: (B, R).
        num_layers: Number of blocks of the words.
        num_heads: Attention heads per block of the words.
        mlp_dim: Width of the feed-forward networks of the words, also those after
            co-attention.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        num_region_layers: Number of blocks of the regions.
        num_region_heads: Attention heads per block of the regions.
        region_mlp_dim: Width of the feed-forward networks of the regions, also those
            after co-attention.
        co_attention_dim: Width of the queries, keys and values of co-attention, and P.
        num_co_attention_heads: Attention heads of co-attention.
        text_co_layers: The blocks of the words, from 0, that co-attention precedes, in
            ascending order.
        region_co_layers: The same for the blocks of the regions; as many.

    Returns:
        A dictionary of `sequence_output` (B, T, D), `region_output` (B, R, E), and
        `pooled_output` and `pooled_region_output` (B, P).
    """
    norm = functools.partial(LayerNormalization, epsilon=layer_norm_epsilon)
    words = norm(name="embeddings_norm")(words)
    words = Dropout(dropout, name="embeddings_dropout")(words)
    regions = norm(name="region_norm")(regions)
    regions = Dropout(dropout, name="region_dropout")(regions)

    options = {
        **block_options(activation, layer_norm_epsilon, dropout, attention_dropout),
        "kernel_initializer": INITIALIZER,
    }
    # Each stream has blocks before the first co-attention, between two, after the last.
    text_bounds = [0, *text_co_layers, num_layers]
    region_bounds = [0, *region_co_layers, num_region_layers]
    for part in range(len(text_co_layers) + 1):
        if part > 0:
            co_attention = CoAttentionBlock(
                num_co_attention_heads,
                co_attention_dim,
                region_mlp_dim,
                mlp_dim,
                name=f"co_attention_{part - 1}",
                **options,
            )
            regions, words = co_attention(
                regions,
                words,
                region_padding_mask=region_mask,
                padding_mask=padding_mask,
            )
        for index in range(text_bounds[part], text_bounds[part + 1]):
            block = TransformerEncoderBlock(
                num_heads, mlp_dim, name=f"block_{index}", **options
            )
            words = block(words, padding_mask=padding_mask)
        for index in range(region_bounds[part], region_bounds[part + 1]):
            block = TransformerEncoderBlock(
                num_region_heads,
                region_mlp_dim,
                name=f"region_block_{index}",
                **options,
            )
            regions = block(regions, padding_mask=region_mask)

    pooler = functools.partial(
        Dense, co_attention_dim, activation="relu", kernel_initializer=INITIALIZER
    )
    word = first_token(words, padding_mask)
    region = TokenPooling("first", name="first_region")(regions, region_mask)
    return {
        "sequence_output": words,
        "region_output": regions,
        "pooled_output": pooler(name="text_pooler")(word),
        "pooled_region_output": pooler(name="region_pooler")(region),
    }


def check_co_layers(num_layers, num_region_layers, text_co_layers, region_co_layers):
    """Checks where co-attention is, before anything is built.

    Raises:
        ValueError: If there are not as many `region_co_layers` as `text_co_layers`, or
            one of them is not in ascending order or not a block.
    """
    given = {
        "text_co_layers": (text_co_layers, num_layers),
        "region_co_layers": (region_co_layers, num_region_layers),
    }
    lengths = {name: len(layers) for name, (layers, _) in given.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "`text_co_layers` and `region_co_layers` must have the same length, one "
            f"block of each stream for each co-attention. Received: {lengths}"
        )
    for name, (layers, number) in given.items():
        bounds = [0, *layers, number]
        if bounds != sorted(bounds):
            raise ValueError(
                f"`{name}` must have blocks in ascending order, from 0 to {number}, "
                f"the number of blocks. Received: {name}={tuple(layers)}"
            )


def as_region_encoder(encoder, build):
    """`as_encoder`, for heads of the single regions.

    Args:
        encoder: A model with the outputs of `two_streams`, or the name of a variant.
        build: `build_vilbert`, whose first region is the whole image, or
            `build_vln_bert`, whose first region is one of the path.

    Raises:
        ValueError: If `encoder` is a model from the other builder, or a name that is
            not among the variants.
        TypeError: If `encoder` is neither a model nor a name.
    """
    encoder = as_encoder(encoder, build)
    kind = "vln_bert" if "viewpoint_ids" in encoder.input else "vilbert"
    if build.__name__ != f"build_{kind}":
        raise ValueError(
            f"`encoder` must be a model from `{build.__name__}`; for masked regions of "
            f"a model from `build_{kind}` call `build_{kind}_pretrainer`. "
            f"Received: encoder={encoder!r}"
        )
    return encoder


def make_pair(encoder, fusion, dropout):
    """The features of text and image together, (B, P), for the heads of a pair.

    Args:
        encoder: A model with the outputs of `two_streams`.
        fusion: Whether both pooled outputs are multiplied or added.
        dropout: Probability of dropping a unit of the result.
    """
    check_choice("fusion", fusion, get_args(Fusion))
    check_fraction("dropout", dropout)
    fuse = keras.layers.Multiply if fusion == "multiply" else keras.layers.Add
    outputs = encoder.output
    pair = fuse(name="pair")(
        [outputs["pooled_output"], outputs["pooled_region_output"]]
    )
    return Dropout(dropout, name="pair_dropout")(pair)


def pair_scores(encoder, fusion, dropout):
    """How well text and image fit together, (B, 1); the arguments of `make_pair`."""
    layer = logits_layer(1, "scorer", kernel_initializer=INITIALIZER)
    return layer(make_pair(encoder, fusion, dropout))


def masked_region_logits(encoder, regions, num_region_classes):
    """Logits (B, R, C) of the classes of regions (B, R, E)."""
    check_positive("num_region_classes", num_region_classes)
    regions = transformed(encoder, regions, "masked_regions")
    return logits_layer(
        num_region_classes, "masked_regions", kernel_initializer=INITIALIZER
    )(regions)
