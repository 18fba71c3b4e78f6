"""VLN-BERT: ViLBERT for an instruction and the regions along a path through a building.

    words    token + segment + position embeddings
    regions  W_f features + W_l (box, area)      as in ViLBERT
             + W_o (sin h, cos h, sin e, cos e)  direction, from the walker's heading
             + W_n (sin n, cos n)                direction, from the next heading
             + P[viewpoint]                      number of its viewpoint in the path

    both     ViLBERT's two streams: `models/parts/two_streams.py`

    first word, first region -> dense, ReLU -> product -> dense: how well they fit

    build_vln_bert             words and regions -> features of each, and of both
    build_vln_bert_scorer      an encoder -> how well a path fits an instruction
    build_vln_bert_pretrainer  an encoder -> this score, masked words, masked regions

A region is 12 numbers besides its features: 4 of its box, its area, h heading, e
elevation and n next heading as sines and cosines, and its viewpoint. The published
files do not show how they become vectors. Here each kind is a term of its own: W_l and
its bias are ViLBERT's, and the new terms W_o, W_n and P start at zero and have no bias,
so that a model with the weights of ViLBERT starts with its outputs.

The regions of all viewpoints are one sequence; the first of each viewpoint is the mean
of its others. `@registered` fills in the arguments whose default is `FROM_VARIANT`.

Legend: B batch, T tokens, R regions of all viewpoints, F width of their features, D
width of the words, E of the regions, P of the pair, V vocabulary, C classes.
Layers: ViLBERT's without `global_region`; `orientation_embedding`,
`next_heading_embedding`, `viewpoint_embedding`.
"""

import functools
from collections.abc import Sequence

import keras
from keras import ops

from keras_attn.checks.argument_types import (
    Activation,
    Epsilon,
    Index,
    Probability,
)
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import Dense, Embedding
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.tasks import PADDING_MASK
from keras_attn.models.catalog.variants import FROM_VARIANT, block_options
from keras_attn.models.parts import heads
from keras_attn.models.parts.bert_encoder import bert_embeddings
from keras_attn.models.parts.functional import Functional, sequence_inputs
from keras_attn.models.parts.heads import INITIALIZER, Encoder, as_encoder
from keras_attn.models.parts.two_streams import (
    SIZES,
    Fusion,
    as_region_encoder,
    check_co_layers,
    masked_region_logits,
    pair_scores,
    two_streams,
)
from keras_attn.ops import box_locations

# Majumdar et al. 2020, section 4: the sizes of ViLBERT, and paths of 8 viewpoints.
VARIANTS = {"base": {**SIZES, "max_path_length": 8}}
CARDS = model_cards(
    "vln_bert_{variant}",
    # 235,720,192 with our terms of a region; the published files do not show theirs.
    {"base": None},
    scores=[
        scored(
            "Room-to-Room success rate", "test, ensemble with walkers", "", {"base": 73}
        )
    ],
    title="VLN-BERT {variant}: an instruction and a path through a building",
    paper="Majumdar et al. 2020, arXiv:2004.14973",
    task="vision-language encoder",
    inputs={
        "token_ids": "(B, T) int32",
        "padding_mask": PADDING_MASK,
        "segment_ids": "(B, T) int32, 0",
        "region_features": "(B, R, F) float, of a detector",
        "region_boxes": "(B, R, 4) float, left, top, right, bottom, in [0, 1]",
        "region_angles": "(B, R, 3) float, heading, elevation, next heading, radians",
        "viewpoint_ids": "(B, R) int32, number of the viewpoint in the path",
        "region_padding_mask": "(B, R) bool, True = a real region",
    },
    outputs={
        "sequence_output": "(B, T, D), one vector per token",
        "region_output": "(B, R, E), one vector per region",
        "pooled_output": "(B, P), of the instruction",
        "pooled_region_output": "(B, P), of the path",
    },
)


@registered(CARDS, VARIANTS)
@described_as(two_streams)
def build_vln_bert(
    variant: str = "base",
    *,
    vocabulary_size: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    max_sequence_length: int = FROM_VARIANT,
    num_segments: int = FROM_VARIANT,
    feature_dim: int = FROM_VARIANT,
    max_path_length: int = FROM_VARIANT,
    region_dim: int = FROM_VARIANT,
    num_region_layers: int = FROM_VARIANT,
    num_region_heads: int = FROM_VARIANT,
    region_mlp_dim: int = FROM_VARIANT,
    co_attention_dim: int = FROM_VARIANT,
    num_co_attention_heads: int = FROM_VARIANT,
    text_co_layers: Sequence[Index] = FROM_VARIANT,
    region_co_layers: Sequence[Index] = FROM_VARIANT,
    activation: Activation = "gelu",
    layer_norm_epsilon: Epsilon = FROM_VARIANT,
    dropout: Probability = 0.1,
    attention_dropout: Probability = 0.1,
    name: str = "vln_bert",
) -> Functional:
    """Two streams of post-norm blocks, an instruction and the regions along a path.

    Co-attention i comes before block `text_co_layers[i]` of the words and before block
    `region_co_layers[i]` of the regions.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V.
        hidden_dim: D.
        max_sequence_length: Number of positions.
        num_segments: Number of segments.
        feature_dim: F.
        max_path_length: Maximum number of viewpoints of a path.
        region_dim: E.
        name: Name of the model.

    Returns:
        A model from `token_ids`, `padding_mask` and `segment_ids`, each (B, T),
        `region_features` (B, R, F), `region_boxes` (B, R, 4), left, top, right and
        bottom as shares of the image, `region_angles` (B, R, 3), heading of the region
        minus heading of the walker, elevation, and heading minus next heading of the
        walker, in radians, `viewpoint_ids` and `region_padding_mask`, each (B, R), to a
        dictionary of `sequence_output` (B, T, D); `region_output` (B, R, E); and
        `pooled_output` and `pooled_region_output` (B, P), of the instruction and of the
        path.

    Raises:
        ValueError: If there are not as many `region_co_layers` as `text_co_layers`, or
            one of them is not in ascending order or not a block.

    Reference:
        Majumdar et al. 2020, "Improving Vision-and-Language Navigation with Image-Text
        Pairs from the Web", section 4 (arXiv:2004.14973).
    """
    check_co_layers(num_layers, num_region_layers, text_co_layers, region_co_layers)
    inputs = {
        **sequence_inputs("token_ids", "padding_mask", "segment_ids"),
        "region_features": keras.Input((None, feature_dim), name="region_features"),
        "region_boxes": keras.Input((None, 4), name="region_boxes"),
        "region_angles": keras.Input((None, 3), name="region_angles"),
        **sequence_inputs("viewpoint_ids", "region_padding_mask"),
    }
    words = bert_embeddings(
        inputs, vocabulary_size, hidden_dim, max_sequence_length, num_segments
    )
    angles = inputs["region_angles"]
    embed = functools.partial(Dense, region_dim, kernel_initializer=INITIALIZER)
    embed_new = functools.partial(
        Dense, region_dim, use_bias=False, kernel_initializer="zeros"
    )
    terms = [
        embed(name="region_embedding")(inputs["region_features"]),
        embed(name="location_embedding")(box_locations(inputs["region_boxes"])),
        embed_new(name="orientation_embedding")(_sines_and_cosines(angles[..., :2])),
        embed_new(name="next_heading_embedding")(_sines_and_cosines(angles[..., 2:])),
        Embedding(
            max_path_length,
            region_dim,
            embeddings_initializer="zeros",
            name="viewpoint_embedding",
        )(inputs["viewpoint_ids"]),
    ]
    outputs = two_streams(
        words,
        functools.reduce(ops.add, terms),
        inputs["padding_mask"],
        inputs["region_padding_mask"],
        num_layers=num_layers,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        **block_options(activation, layer_norm_epsilon, dropout, attention_dropout),
        num_region_layers=num_region_layers,
        num_region_heads=num_region_heads,
        region_mlp_dim=region_mlp_dim,
        co_attention_dim=co_attention_dim,
        num_co_attention_heads=num_co_attention_heads,
        text_co_layers=text_co_layers,
        region_co_layers=region_co_layers,
    )
    return Functional(inputs, outputs, name=name)


def _sines_and_cosines(angles):
    """(B, R, 2A) of A angles (B, R, A): sine and cosine of each."""
    numbers = [
        turned(angles[..., index : index + 1])
        for index in range(angles.shape[-1])
        for turned in (ops.sin, ops.cos)
    ]
    return ops.concatenate(numbers, axis=-1)


def build_vln_bert_scorer(
    encoder: Encoder = "base",
    *,
    fusion: Fusion = "multiply",
    dropout: Probability = 0.1,
    name: str = "vln_bert_scorer",
) -> Functional:
    """Builds a model that scores how well a path fits an instruction.

    It learns by `losses.ChoiceCrossEntropy`.

    Args:
        encoder: A model from `build_vln_bert`, whose layers are shared, or the name of
            a variant, which is built.
        fusion: Whether the features of instruction and path are multiplied or added.
        dropout: Probability of dropping a unit of the product.
        name: Name of the model.

    Returns:
        A model from the encoder's inputs to logits (B, 1).

    Reference:
        Majumdar et al. 2020, section 4.1 (arXiv:2004.14973).
    """
    encoder = as_encoder(encoder, build_vln_bert)
    return Functional(encoder.input, pair_scores(encoder, fusion, dropout), name=name)


@described_as(build_vln_bert_scorer)
def build_vln_bert_pretrainer(
    encoder: Encoder = "base",
    *,
    num_region_classes: int = 1601,
    fusion: Fusion = "multiply",
    dropout: Probability = 0.1,
    name: str = "vln_bert_pretrainer",
) -> Functional:
    """Masked words and masked regions of pairs of an instruction and its path.

    Stage 3 of the transfer learns these two; then the score is learned, with or without
    them.

    Args:
        num_region_classes: C, the classes of the detector that predicts the targets of
            masked regions, its background class included.

    Returns:
        A model from the encoder's inputs to a dictionary of logits: `masked_lm`
        (B, T, V), `masked_regions` (B, R, C) and `score` (B, 1).

    Raises:
        ValueError: If `encoder` is a model from `build_vilbert`, whose first region is
            the whole image.

    Reference:
        Majumdar et al. 2020, section 4.2 (arXiv:2004.14973).
    """
    encoder = as_region_encoder(encoder, build_vln_bert)
    words = heads.masked_lm(encoder, transform=True, name="masked_lm")
    regions = encoder.output["region_output"]
    outputs = {
        "masked_lm": words.output,
        "masked_regions": masked_region_logits(encoder, regions, num_region_classes),
        "score": pair_scores(encoder, fusion, dropout),
    }
    return Functional(encoder.input, outputs, name=name)
