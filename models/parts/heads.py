"""What goes on top of an encoder: from its features to the logits of a task.

Each function takes an encoder, a functional model with the outputs `sequence_output`
(B, T, D) and `pooled_output` (B, D), and returns a model that shares its layers. The
names of the layers added are those that checkpoints are read by.

Legend: B batch, T length, P positions asked for, D width, V vocabulary, C classes.
"""

import keras
from keras import ops
from keras.layers import Dense

from keras_attn.checks import check_fraction, check_positive
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import truncated_normal
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.token_embedding import OutputBias
from keras_attn.layers.token_pooling import TokenPooling
from keras_attn.models.parts.functional import Functional

# The published fine-tuning start, for every model of the family.
INITIALIZER = truncated_normal(0.02)


def as_encoder(encoder, build):
    """An encoder as it is, or the variant of that name, built.

    Args:
        encoder: A model with `sequence_output`, or the name of a variant.
        build: The builder of encoders that the name is for.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(encoder, str):
        return build(encoder)
    outputs = getattr(encoder, "output", None)
    if not isinstance(outputs, dict) or "sequence_output" not in outputs:
        raise TypeError(
            f"`encoder` must be the name of a variant, or a model from "
            f"`{build.__name__}`. Received: encoder={encoder!r}"
        )
    return encoder


def classifier(
    encoder, features, num_classes, *, dropout, hidden=None, use_bias=True, name
):
    """Logits (B, C) from features (B, E), or (B, T, C) from (B, T, E).

    Args:
        encoder: Gives the model its inputs.
        features: A tensor of the encoder's graph.
        num_classes: C.
        dropout: Probability of dropping a feature, in front of each layer.
        hidden: Activation of a hidden layer in between. None = there is none.
        use_bias: Whether the last layer has one.
        name: Of the model.

    Returns:
        A model from the encoder's inputs to the logits.
    """
    check_positive("num_classes", num_classes)
    check_fraction("dropout", dropout)
    features = Dropout(dropout, name="classifier_dropout")(features)
    if hidden is not None:
        features = Dense(
            features.shape[-1],
            activation=hidden,
            kernel_initializer=INITIALIZER,
            name="classifier_hidden",
        )(features)
        features = Dropout(dropout, name="classifier_hidden_dropout")(features)
    logits = _logits(num_classes, "classifier", use_bias)(features)
    return Functional(encoder.input, logits, name=name)


def next_sentence(encoder, *, name):
    """Logits (B, 2): the second sentence follows the first, or it does not."""
    logits = _logits(2, "next_sentence")(encoder.output["pooled_output"])
    return Functional(encoder.input, logits, name=name)


def span(encoder, *, dropout, name):
    """Logits (B, T) of where an answer starts, and of where it ends."""
    check_fraction("dropout", dropout)
    features = Dropout(dropout, name="span_dropout")(encoder.output["sequence_output"])
    logits = _logits(2, "span")(features)
    outputs = {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    return Functional(encoder.input, outputs, name=name)


def sentence_encoder(encoder, *, pooling, normalize, name):
    """One vector (B, D) a sentence, by default the mean over its real tokens."""
    inputs = encoder.input
    embedding = TokenPooling(pooling, name="sentence_pooling")(
        encoder.output["sequence_output"], inputs["padding_mask"]
    )
    # What follows are distances, and those of halves are coarse.
    embedding = ops.cast(embedding, "float32")
    if normalize:
        embedding = keras.layers.UnitNormalization(
            dtype="float32", name="sentence_norm"
        )(embedding)
    return Functional(inputs, embedding, name=name)


def masked_lm_logits(encoder, *, transform, epsilon=None, masked_positions=None):
    """Logits over the vocabulary from the encoder's own embeddings and a bias.

    Args:
        encoder: Its `token_embedding` is the output matrix.
        transform: Activation of the layer in front. None = there is none.
        epsilon: Of the norm behind that layer.
        masked_positions: (B, P), where logits are wanted. None = everywhere.

    Returns:
        A tensor of logits, (B, T, V) or (B, P, V).
    """
    features = encoder.output["sequence_output"]
    if masked_positions is not None:
        index = ops.expand_dims(masked_positions, -1)
        features = ops.take_along_axis(features, index, axis=1)
    if transform is not None:
        features = Dense(
            features.shape[-1],
            activation=transform,
            kernel_initializer=INITIALIZER,
            name="masked_lm_transform",
        )(features)
        features = LayerNormalization(epsilon=epsilon, name="masked_lm_norm")(features)
    embedding = encoder.get_layer("token_embedding")
    return OutputBias(name="masked_lm_logits")(embedding(features, reverse=True))


def masked_positions_input(wanted):
    """The input that says which positions to predict, if it is wanted: a dict."""
    if not wanted:
        return {}
    return {
        "masked_positions": keras.Input((None,), dtype="int32", name="masked_positions")
    }


def _logits(units, name, use_bias=True):
    return Dense(
        units,
        use_bias=use_bias,
        kernel_initializer=INITIALIZER,
        # In float32 whatever the policy: a softmax follows.
        dtype="float32",
        name=name,
    )
