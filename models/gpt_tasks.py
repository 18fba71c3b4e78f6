"""GPT's features for other tasks than the next token.

    features = norm(x), (B, T, D), in `gpt.py`, before the product with the embeddings
    build_gpt_encoder           features, and those of the last real token
    build_gpt_classifier        dropout(features of the last real token) W      (B, C)
    build_gpt_token_classifier  dropout(features) W + b                      (B, T, C)

A token's features depend on it and on those before it, so only the last one's are of
the whole text. Each builder takes a model of `build_gpt`, whose layers it shares, or
the name of a variant.

Legend: B batch, T length, D width, C classes.
"""

from keras_attn.checks.argument_types import Probability
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers.embeddings.token_pooling import TokenPooling
from keras_attn.models.catalog.variants import check_variant
from keras_attn.models.gpt import GPT, build_gpt, features
from keras_attn.models.parts import heads
from keras_attn.models.parts.functional import Functional, by_name
from keras_attn.ops import token_positions


def build_gpt_encoder(
    model: heads.Encoder = "gpt2_small", *, name: str = "gpt_encoder"
) -> Functional:
    """The model without its output layer: features for other tasks.

    Args:
        model: A model from `build_gpt`, or the name of a variant.
        name: Name of the model.

    Returns:
        A model from `token_ids` and `padding_mask`, each (B, T), to a dictionary with
        `sequence_output` (B, T, D) and `pooled_output` (B, D), the features of the last
        real token.
    """
    if isinstance(model, str):
        check_variant("model", model, build_gpt)
        model = build_gpt(model)
    if not isinstance(model, GPT):
        raise TypeError(
            "`model` must be the name of a variant, or a model from `build_gpt`. "
            f"Received: model={model!r}"
        )
    inputs, layers = model.input, by_name(model.layers)
    positions = token_positions(inputs["padding_mask"])
    hidden, _ = features(layers, positions=positions, **inputs)
    pooled = TokenPooling("last", name="last_token")(hidden, inputs["padding_mask"])
    outputs = {"sequence_output": hidden, "pooled_output": pooled}
    return Functional(inputs, outputs, name=name)


def build_gpt_classifier(
    model: heads.Encoder = "gpt2_small",
    *,
    num_classes: int,
    dropout: Probability = 0.1,
    name: str = "gpt_classifier",
) -> Functional:
    """Classifies a text by the features of its last token.

    Args:
        model: A model from `build_gpt` or `build_gpt_encoder`, or the name of a
            variant.
        num_classes: C.
        dropout: Probability of dropping a unit of the last token's features.
        name: Name of the model.

    Returns:
        A model from `token_ids` and `padding_mask` to logits (B, C).

    Reference:
        Radford et al. 2018, section 3.2.
    """
    encoder = _as_encoder(model)
    # One matrix, W_y, and no bias (equation 3).
    return heads.classifier(
        encoder, num_classes, dropout=dropout, use_bias=False, name=name
    )


@described_as(heads.token_classifier)
def build_gpt_token_classifier(
    model: heads.Encoder = "gpt2_small",
    *,
    num_classes: int,
    dropout: Probability = 0.1,
    name: str = "gpt_token_classifier",
) -> Functional:
    """Classifies each token, given the tokens before it: logits (B, T, C).

    Args:
        model: A model from `build_gpt` or `build_gpt_encoder`, or the name of a
            variant.
    """
    encoder = _as_encoder(model)
    return heads.token_classifier(encoder, num_classes, dropout=dropout, name=name)


def _as_encoder(model):
    if isinstance(getattr(model, "output", None), dict):
        return heads.as_encoder(model, build_gpt_encoder)
    return build_gpt_encoder(model)
