"""Sizes of a variant as defaults of a builder's arguments."""

import inspect
from typing import Any, cast

import pytest

from keras_attn import models
from keras_attn.models import vit
from keras_attn.models.parts.encoder import EncoderOptions, text_encoder
from keras_attn.models.parts.variants import (
    FROM_VARIANT,
    block_sizes,
    passes_options_to,
    with_sizes,
)

SIZES = {
    "base": {"num_layers": 2, "norm_first": True, "window": None},
    "large": {"num_layers": 3, "norm_first": False, "window": 5},
}


@with_sizes(SIZES)
def build(
    variant="base",
    *,
    num_layers=FROM_VARIANT,
    norm_first=FROM_VARIANT,
    window=FROM_VARIANT,
    dropout=0.1,
    mask=None,
):
    """Returns its arguments."""
    return variant, num_layers, norm_first, window, dropout, mask


def test_arguments_take_the_values_of_the_variant():
    assert build() == ("base", 2, True, None, 0.1, None)
    assert build("large") == ("large", 3, False, 5, 0.1, None)
    assert build(variant="large", num_layers=None) == build("large")


def test_given_arguments_override_the_variant():
    built = build("large", num_layers=7, dropout=0.0, mask="causal")
    assert built == ("large", 7, False, 5, 0.0, "causal")
    # Values that are false are values.
    assert build(norm_first=False, num_layers=0) == ("base", 0, False, None, 0.1, None)


def test_the_signature_and_the_docstring_are_those_of_the_builder():
    names = ["variant", "num_layers", "norm_first", "window", "dropout", "mask"]
    parameters = inspect.signature(build).parameters
    assert list(parameters) == names
    assert parameters["num_layers"].default is FROM_VARIANT is None
    assert parameters["dropout"].default == 0.1
    assert (build.__name__, build.__doc__) == ("build", "Returns its arguments.")


def test_published_builders_show_every_option():
    parameters = inspect.signature(models.build_bert).parameters
    assert {"variant", "num_layers", "mlp_dim", "dropout", "name"} <= set(parameters)
    assert inspect.Parameter.VAR_KEYWORD not in {x.kind for x in parameters.values()}
    assert "num_layers" in (models.build_bert.__doc__ or "")


def test_options_that_are_passed_on_are_in_the_signature():
    def encode(inputs, pooled=True, *, num_layers=FROM_VARIANT, dropout=0.1):
        return inputs, pooled, num_layers, dropout

    @with_sizes({"base": {"num_layers": 2}})
    @passes_options_to(encode)
    def build_encoder(variant="base", *, name="encoder", **blocks):
        return encode(variant, **blocks)

    parameters = inspect.signature(build_encoder).parameters
    assert list(parameters) == ["variant", "name", "num_layers", "dropout"]
    assert parameters["dropout"].default == 0.1
    assert build_encoder(dropout=0.0) == ("base", True, 2, 0.0)
    # Arguments that the builder chooses itself cannot be passed on.
    for unknown in ("pooled", "num_layer"):
        with pytest.raises(TypeError, match=f"build_encoder.*'{unknown}'"):
            cast("Any", build_encoder)(**{unknown: 1})


@pytest.mark.parametrize(
    "shared, options",
    [(text_encoder, EncoderOptions), (vit._encode, vit._BlockOptions)],
)
def test_options_that_are_passed_on_have_types(shared, options):
    taken = inspect.signature(shared).parameters.values()
    named = {x.name for x in taken if x.kind is inspect.Parameter.KEYWORD_ONLY}
    assert set(options.__annotations__) == named


def test_unknown_variants_and_arguments_are_refused():
    with pytest.raises(
        ValueError, match="`variant` must be one of 'base', 'large'.*variant='huge'"
    ):
        build("huge")
    with pytest.raises(TypeError, match="num_layer"):
        build(num_layer=3)  # pyright: ignore


def test_every_size_must_be_an_argument_without_a_default():
    def without(variant="base"):
        return variant

    def with_default(variant="base", *, num_layers=12):
        return variant, num_layers

    for builder in (without, with_default):
        with pytest.raises(TypeError, match=f"`{builder.__name__}` needs .*`num_la"):
            with_sizes({"base": {"num_layers": 2}})(builder)


def test_a_feed_forward_network_is_four_times_as_wide_as_its_block():
    assert block_sizes(num_layers=12, hidden_dim=768, num_heads=11) == {
        "num_layers": 12,
        "hidden_dim": 768,
        "num_heads": 11,
        "mlp_dim": 3072,
    }
