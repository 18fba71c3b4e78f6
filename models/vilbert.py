"""ViLBERT: BERT for words and a second stream for regions, which attend to each other.

    words    E[token] + S[segment] + P[position]; position 0 is the first real token
    regions  W_f f + W_l (x1, y1, x2, y2, area) of features f and a box; region 0 is the
             whole image, with the mean of the real regions' f, and (0, 0, 1, 1, 1)

    each stream -> norm -> dropout -> blocks and co-attention, in this order:
        words         block_0 … block_5
        i = 0 … 5:
            both      co_attention_i
            words     block_{6 + i}
            regions   region_block_i

    block             x <- norm(x + attention(x, x)); x <- norm(x + FFN(x))
    co-attention      of words w and regions v, both from the same w and v:
                      w <- norm(w + attention(w, v)); w <- norm(w + FFN(w))
                      v <- norm(v + attention(v, w)); v <- norm(v + FFN(v))
    attention(x, y)   concat of heads softmax(x W_Q (y W_K)ᵀ / √H) y W_V, times W_O
    FFN(x)            gelu(x W_1) W_2

    first word, first region -> dense, ReLU -> product: the pair of text and image

    build_vilbert           words and regions -> features of each, and of both
    build_vilbert_<task>    an encoder -> the logits of a task

Each product with a W has a bias; padding of y is masked; dropout follows each softmax,
attention and FFN. The loop over the blocks, which VLN-BERT has too:
`models/parts/two_streams.py`; co-attention, whose queries have `co_attention_dim`
numbers: `layers/blocks/co_attention_block.py`; one block of a stream:
`layers/blocks/transformer_block.py`. `@registered` fills in the arguments whose
default is `FROM_VARIANT`. The layers of the words have BERT's names and sizes, so that
they start from its weights.

Legend: B batch, T tokens, R regions, F width of their features, D width of the words,
E width of the regions, H of a head, P of the pair, V vocabulary, C classes.
Layers: BERT's `token_embedding` … `block_11`; `global_region`, `region_embedding`,
`location_embedding`, `region_norm`, `region_dropout`, `region_block_0`, …;
`co_attention_0`, …; `first_token`, `first_region`, `text_pooler`, `region_pooler`.
"""

import functools
from collections.abc import Sequence
from typing import Literal

import keras
from keras import ops

from keras_attn.checks.argument_types import (
    Activation,
    Epsilon,
    Index,
    Probability,
)
from keras_attn.checks.arguments import check_choice, check_fraction, check_positive
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import Dense, GlobalRegion
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.tasks import PADDING_MASK
from keras_attn.models.catalog.variants import FROM_VARIANT, block_options
from keras_attn.models.parts import heads
from keras_attn.models.parts.bert_encoder import bert_embeddings
from keras_attn.models.parts.functional import Functional, sequence_inputs
from keras_attn.models.parts.heads import (
    INITIALIZER,
    Encoder,
    as_encoder,
    logits_layer,
)
from keras_attn.models.parts.two_streams import (
    SIZES,
    Fusion,
    as_region_encoder,
    check_co_layers,
    make_pair,
    masked_region_logits,
    pair_scores,
    two_streams,
)

VARIANTS = {"base": SIZES}
CARDS = model_cards(
    "vilbert_{variant}",
    # The authors' 246,726,656 less twelve dense layers that their code never calls.
    {"base": 235_705_856},
    training=Training(
        "Conceptual Captions",
        "section 3.1",
        images=10 * 3.1e6,
        hardware="TITAN X",
        devices=8,
    ),
    scores=[
        scored("VQA 2.0 accuracy", "test-dev", "table 1", {"base": 70.55}),
        scored("RefCOCO+ accuracy", "validation", "table 1", {"base": 72.34}),
    ],
    title="ViLBERT {variant}: words and regions of an image",
    paper="Lu et al. 2019, arXiv:1908.02265",
    task="vision-language encoder",
    inputs={
        "token_ids": "(B, T) int32",
        "padding_mask": PADDING_MASK,
        "segment_ids": "(B, T) int32, 0 or 1",
        "region_features": "(B, R, F) float, of a detector",
        "region_boxes": "(B, R, 4) float, left, top, right, bottom, in [0, 1]",
        "region_padding_mask": "(B, R) bool, True = a real region",
    },
    outputs={
        "sequence_output": "(B, T, D), one vector per token",
        "region_output": "(B, 1 + R, E), the whole image first",
        "pooled_output": "(B, P), of the text",
        "pooled_region_output": "(B, P), of the image",
    },
)


@registered(CARDS, VARIANTS)
@described_as(two_streams)
def build_vilbert(
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
    name: str = "vilbert",
) -> Functional:
    """Two streams of post-norm blocks, with co-attention between them.

    Co-attention i comes before block `text_co_layers[i]` of the words and before block
    `region_co_layers[i]` of the regions.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V.
        hidden_dim: D.
        max_sequence_length: Number of positions.
        num_segments: Number of segments.
        feature_dim: F.
        region_dim: E.
        name: Name of the model.

    Returns:
        A model from `token_ids`, `padding_mask` and `segment_ids`, each (B, T),
        `region_features` (B, R, F), `region_boxes` (B, R, 4), left, top, right and
        bottom as shares of the image, and `region_padding_mask` (B, R), to a dictionary
        of `sequence_output` (B, T, D); `region_output` (B, 1 + R, E), the whole image
        first; and `pooled_output` and `pooled_region_output` (B, P), of the text and of
        the image.

    Raises:
        ValueError: If there are not as many `region_co_layers` as `text_co_layers`, or
            one of them is not in ascending order or not a block.

    Reference:
        Lu et al. 2019, "ViLBERT: Pretraining Task-Agnostic Visiolinguistic
        Representations for Vision-and-Language Tasks" (arXiv:1908.02265).
    """
    check_co_layers(num_layers, num_region_layers, text_co_layers, region_co_layers)
    inputs = {
        **sequence_inputs("token_ids", "padding_mask", "segment_ids"),
        "region_features": keras.Input((None, feature_dim), name="region_features"),
        "region_boxes": keras.Input((None, 4), name="region_boxes"),
        **sequence_inputs("region_padding_mask"),
    }
    words = bert_embeddings(
        inputs, vocabulary_size, hidden_dim, max_sequence_length, num_segments
    )
    # Region 0 is added: (B, 1 + R, F), (B, 1 + R, 5), (B, 1 + R).
    features, locations, region_mask = GlobalRegion(name="global_region")(
        inputs["region_features"], inputs["region_boxes"], inputs["region_padding_mask"]
    )
    embed = functools.partial(Dense, region_dim, kernel_initializer=INITIALIZER)
    regions = ops.add(
        embed(name="region_embedding")(features),
        embed(name="location_embedding")(locations),
    )
    outputs = two_streams(
        words,
        regions,
        inputs["padding_mask"],
        region_mask,
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


def build_vilbert_pretrainer(
    encoder: Encoder = "base",
    *,
    num_region_classes: int = 1601,
    fusion: Fusion = "multiply",
    dropout: Probability = 0.1,
    name: str = "vilbert_pretrainer",
) -> Functional:
    """The three pre-training objectives: masked words, masked regions and alignment.

    Args:
        encoder: A model from `build_vilbert`, whose layers are shared, or the name of a
            variant, which is built.
        num_region_classes: C, the classes of the detector that predicts the targets of
            masked regions, its background class included.
        fusion: Whether the features of text and image are multiplied or added.
        dropout: Probability of dropping a unit of the product.
        name: Name of the model.

    Returns:
        A model from the encoder's inputs to a dictionary of logits: `masked_lm`
        (B, T, V); `masked_regions` (B, R, C), without the region of the whole image;
        and `alignment` (B, 2), where class 0 means that the text describes the image.

    Raises:
        ValueError: If `encoder` is a model from `build_vln_bert`, which has no region
            of the whole image.

    Reference:
        Lu et al. 2019, section 2.2, "Training Tasks and Objectives", and figure 3
        (arXiv:1908.02265).
    """
    encoder = as_region_encoder(encoder, build_vilbert)
    words = heads.masked_lm(encoder, transform=True, name="masked_lm")
    regions = encoder.output["region_output"][:, 1:]
    alignment = logits_layer(2, "alignment", kernel_initializer=INITIALIZER)
    outputs = {
        "masked_lm": words.output,
        "masked_regions": masked_region_logits(encoder, regions, num_region_classes),
        "alignment": alignment(make_pair(encoder, fusion, dropout)),
    }
    return Functional(encoder.input, outputs, name=name)


@described_as(build_vilbert_pretrainer)
def build_vilbert_classifier(
    encoder: Encoder = "base",
    *,
    num_classes: int = 3129,
    hidden_dim: int = 2048,
    head: Literal["gelu", "relu"] = "gelu",
    fusion: Fusion = "multiply",
    dropout: Probability = 0.1,
    name: str = "vilbert_classifier",
) -> Functional:
    """Classifies a pair of text and image: the answers of VQA.

    `logits = W_2 norm(gelu(W_1 pair + b_1)) + b_2`.

    Args:
        num_classes: C. Default: the answers of VQA that are frequent enough.
        hidden_dim: Width of the head's hidden layer.
        head: `"gelu"`, the equation above, of 2020; or `"relu"`, of 2019: `W_2
            drop(relu(W_1 pair + b_1)) + b_2`, which drops half of the units in
            training.

    Returns:
        A model from the encoder's inputs to logits (B, C).

    Reference:
        Lu et al. 2019, section 3.2 (arXiv:1908.02265); `"gelu"`: Lu et al. 2020,
        "12-in-1", section 3 (arXiv:1912.02315).
    """
    encoder = as_encoder(encoder, build_vilbert)
    check_positive("num_classes", num_classes)
    check_choice("head", head, ("gelu", "relu"))
    hidden = Dense(
        check_positive("hidden_dim", hidden_dim),
        activation=head,
        kernel_initializer=INITIALIZER,
        name="classifier_hidden",
    )(make_pair(encoder, fusion, dropout))
    if head == "gelu":
        hidden = LayerNormalization(epsilon=1e-12, name="classifier_norm")(hidden)
    else:
        hidden = Dropout(0.5, name="classifier_hidden_dropout")(hidden)
    layer = logits_layer(num_classes, "classifier", kernel_initializer=INITIALIZER)
    return Functional(encoder.input, layer(hidden), name=name)


@described_as(build_vilbert_pretrainer)
def build_vilbert_scorer(
    encoder: Encoder = "base",
    *,
    fusion: Fusion = "multiply",
    dropout: Probability = 0.1,
    name: str = "vilbert_scorer",
) -> Functional:
    """Builds a model that scores how well a text and an image fit together.

    The answers of VCR are such pairs with one image, the images of a caption pairs with
    one text. It learns by `losses.ChoiceCrossEntropy`.

    Returns:
        A model from the encoder's inputs to logits (B, 1).

    Reference:
        Lu et al. 2019, section 3.2, "Visual Commonsense Reasoning" and "Caption-Based
        Image Retrieval" (arXiv:1908.02265).
    """
    encoder = as_encoder(encoder, build_vilbert)
    logits = pair_scores(encoder, fusion, dropout)
    return Functional(encoder.input, logits, name=name)


@described_as(build_vilbert_pretrainer)
def build_vilbert_referring(
    encoder: Encoder = "base",
    *,
    dropout: Probability = 0.1,
    name: str = "vilbert_referring",
) -> Functional:
    """Finds the region that a phrase refers to.

    Args:
        dropout: Probability of dropping a unit of a region's features.

    Returns:
        A model from the encoder's inputs to logits (B, R), one for each region without
        the one of the whole image; -1e4 in padding. The target of a region in training
        is its intersection over union with the true box, or 0 below 0.5
        (`losses.ReferringCrossEntropy`). Keras warns in training that the words of
        the last co-attention get no gradient: no region depends on them.

    Raises:
        ValueError: If `encoder` is a model from `build_vln_bert`, which has no region
            of the whole image.

    Reference:
        Lu et al. 2019, section 3.2, "Grounding Referring Expressions"
        (arXiv:1908.02265).
    """
    encoder = as_region_encoder(encoder, build_vilbert)
    check_fraction("dropout", dropout)
    regions = encoder.output["region_output"][:, 1:]
    regions = Dropout(dropout, name="referring_dropout")(regions)
    layer = logits_layer(1, "referring", kernel_initializer=INITIALIZER)
    logits = layer(regions)[..., 0]
    is_real = ops.cast(encoder.input["region_padding_mask"], "bool")
    return Functional(encoder.input, ops.where(is_real, logits, -1e4), name=name)
