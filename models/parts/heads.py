"""Task heads: from the features of an encoder to logits.

Each head takes an encoder, a functional model with the outputs `sequence_output`
(B, T, D) and `pooled_output` (B, D), and returns a model that shares its layers.
Checkpoints refer to the layers of the heads by name. The builders of all families take
the descriptions of their arguments from here.

Legend: B batch, T length, P masked positions, D width, V vocabulary, C classes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attn.checks.arguments import check_boolean, check_fraction, check_positive
from keras_attn.layers import Dense
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.embeddings.token_embedding import OutputBias
from keras_attn.layers.embeddings.token_pooling import TokenPooling
from keras_attn.layers.initializers import truncated_normal
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog.variants import check_variant
from keras_attn.models.parts.functional import Functional, sequence_inputs

# What a head is built on: a model, or the name of a variant to build first.
Encoder = str | keras.Model

# The published initializer of BERT and its successors, for pre-training and heads.
INITIALIZER = truncated_normal(0.02)


def logits_layer(units, name, **options):
    """A `Dense` layer in float32 under every dtype policy, because a softmax follows.

    Args:
        units: Number of logits.
        name: Name of the layer.
        **options: Further arguments of `Dense`.
    """
    return Dense(units, dtype="float32", name=name, **options)


def as_encoder(encoder, build):
    """Returns an encoder unchanged, or builds the variant of that name.

    Args:
        encoder: A model with `sequence_output`, or the name of a variant.
        build: The builder to call with the name.

    Raises:
        ValueError: If `encoder` is a name that is not among the variants.
        TypeError: If `encoder` is neither a model nor a name.
    """
    if isinstance(encoder, str):
        check_variant("encoder", encoder, build)
        return build(encoder)
    outputs = getattr(encoder, "output", None)
    if not isinstance(outputs, dict) or "sequence_output" not in outputs:
        raise TypeError(
            f"`encoder` must be the name of a variant, or a model from "
            f"`{build.__name__}`. Received: encoder={encoder!r}"
        )
    return encoder


def classifier(
    encoder,
    num_classes,
    *,
    features=None,
    dropout,
    hidden=None,
    use_bias=True,
    name,
):
    """Logits (B, C) from features (B, E), or (B, T, C) from (B, T, E).

    Args:
        encoder: An encoder, whose layers are shared. A builder also takes the name of a
            variant, which it builds.
        num_classes: C; 1 for a regression.
        features: A tensor of the encoder's graph. Default: its pooled output.
        dropout: Probability of dropping a feature before each layer.
        hidden: Activation of a hidden layer; None for no hidden layer.
        use_bias: Whether the last layer has a bias.
        name: Name of the model.

    Returns:
        A model from the encoder's inputs to the logits.
    """
    check_positive("num_classes", num_classes)
    check_fraction("dropout", dropout)
    if features is None:
        features = encoder.output["pooled_output"]
    features = Dropout(dropout, name="classifier_dropout")(features)
    if hidden is not None:
        features = Dense(
            features.shape[-1],
            activation=hidden,
            kernel_initializer=INITIALIZER,
            name="classifier_hidden",
        )(features)
        features = Dropout(dropout, name="classifier_hidden_dropout")(features)
    logits = logits_layer(
        num_classes, "classifier", use_bias=use_bias, kernel_initializer=INITIALIZER
    )(features)
    return Functional(encoder.input, logits, name=name)


def token_classifier(encoder, num_classes, *, dropout, name):
    """Logits (B, T, C) from the features of each token.

    Args:
        encoder: An encoder, whose layers are shared. A builder also takes the name of a
            variant, which it builds.
        num_classes: C.
        dropout: Probability of dropping a unit of the sequence output.
        name: Name of the model.
    """
    features = encoder.output["sequence_output"]
    return classifier(
        encoder, num_classes, features=features, dropout=dropout, name=name
    )


def next_sentence(encoder, *, name):
    """Logits (B, 2): class 0 means that the second sentence follows the first.

    Args:
        encoder: An encoder, whose layers are shared. A builder also takes the name of a
            variant, which it builds.
        name: Name of the model.
    """
    layer = logits_layer(2, "next_sentence", kernel_initializer=INITIALIZER)
    logits = layer(encoder.output["pooled_output"])
    return Functional(encoder.input, logits, name=name)


def span(encoder, *, dropout, name):
    """Logits (B, T) for the start of an answer, and for its end.

    Args:
        encoder: An encoder, whose layers are shared. A builder also takes the name of a
            variant, which it builds.
        dropout: Probability of dropping a unit of the sequence output.
        name: Name of the model.
    """
    check_fraction("dropout", dropout)
    features = Dropout(dropout, name="span_dropout")(encoder.output["sequence_output"])
    logits = logits_layer(2, "span", kernel_initializer=INITIALIZER)(features)
    outputs = {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    return Functional(encoder.input, outputs, name=name)


class Projection(NamedTuple):
    """A dense layer after the pooling of a sentence encoder.

    Attributes:
        units: Width of its output.
        activation: Keras' name of its activation; None for none.
        use_bias: Whether it has a bias.
    """

    units: int
    activation: str | None = "tanh"
    use_bias: bool = True


def sentence_encoder(encoder, pooling, normalize, projections, name):
    """One vector (B, D) per sentence, pooled over its real tokens.

    Args:
        encoder: An encoder, whose layers are shared. A builder also takes the name of a
            variant, which it builds.
        pooling: How `layers.TokenPooling` makes one vector of the real tokens: `"mean"`
            or `"max"` of all, the `"first"` or `"last"` of them, …; several are
            concatenated.
        normalize: Whether to scale vectors to length 1, so that their dot product is
            the cosine similarity.
        projections: Dense layers after the pooling: units, activation (default: "tanh")
            and whether it has a bias (default: True) of each.
        name: Name of the model.
    """
    check_boolean("normalize", normalize)
    inputs, features = encoder.input, encoder.output["sequence_output"]
    modes: Any = (pooling,) if isinstance(pooling, str) else pooling
    if not isinstance(modes, Sequence) or not modes or len({*modes}) < len(modes):
        raise ValueError(
            "`pooling` must have at least one kind of pooling, each once. "
            f"Received: pooling={pooling!r}"
        )
    names = [f"sentence_pooling_{mode}" for mode in modes]
    if len(modes) == 1:
        names = ["sentence_pooling"]
    pooled = [
        TokenPooling(mode, name=each)(features, inputs["padding_mask"])
        for mode, each in zip(modes, names, strict=True)
    ]
    embedding = pooled[0]
    if len(pooled) > 1:
        embedding = keras.layers.Concatenate(name="sentence_pooling")(pooled)
    # Distances between half-precision vectors would be too coarse.
    embedding = ops.cast(embedding, "float32")
    if not isinstance(projections, Sequence) or not all(
        isinstance(each, tuple | list) and 1 <= len(each) <= 3 for each in projections
    ):
        raise ValueError(
            "`projections` must have the units of each layer, then perhaps its "
            'activation and whether it has a bias, such as `((256, "tanh"),)`. '
            f"Received: projections={projections!r}"
        )
    for number, each in enumerate(projections):
        projection = Projection(*each)
        check_positive("projections", projection.units)
        embedding = Dense(
            projection.units,
            activation=projection.activation,
            use_bias=projection.use_bias,
            dtype="float32",
            name=f"sentence_projection_{number}",
        )(embedding)
    if normalize:
        embedding = keras.layers.UnitNormalization(
            dtype="float32", name="sentence_norm"
        )(embedding)
    return Functional(inputs, embedding, name=name)


def masked_lm(encoder, *, masked_positions=False, transform=False, name):
    """Logits (B, T, V) of the original tokens, by the encoder's own embeddings.

    Args:
        encoder: An encoder, whose layers are shared; its `token_embedding` is the
            output matrix. A builder also takes the name of a variant, which it builds.
        masked_positions: Whether to add an input of this name, (B, P), and return
            logits (B, P, V) at these positions only. The product with the vocabulary is
            the most expensive part of a small model, and 85% of the positions are not
            trained on.
        transform: Whether a dense layer and a norm come first, with the activation and
            the epsilon of the encoder's blocks.
        name: Name of the model.

    Returns:
        A model from the encoder's inputs to the logits.
    """
    check_boolean("masked_positions", masked_positions)
    inputs, features = encoder.input, encoder.output["sequence_output"]
    if masked_positions:
        positions = sequence_inputs("masked_positions")
        inputs = {**inputs, **positions}
        index = ops.expand_dims(positions["masked_positions"], -1)
        features = ops.take_along_axis(features, index, axis=1)
    if transform:
        features = transformed(encoder, features, "masked_lm")
    logits = tied_logits(encoder.get_layer("token_embedding"), features)
    return Functional(inputs, logits, name=name)


def transformed(encoder, features, name):
    """A dense layer and a norm, as in the encoder's blocks, (…, D) -> (…, D)."""
    block = encoder.get_layer("block_0")
    features = Dense(
        features.shape[-1],
        activation=block.activation,
        kernel_initializer=INITIALIZER,
        name=f"{name}_transform",
    )(features)
    norm = LayerNormalization(epsilon=block.layer_norm_epsilon, name=f"{name}_norm")
    return norm(features)


def tied_logits(token_embedding, features):
    """Logits (…, V) from features (…, D): the token embeddings, and a bias."""
    return OutputBias(name="masked_lm_logits")(token_embedding(features, reverse=True))
