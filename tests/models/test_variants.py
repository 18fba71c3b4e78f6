"""Sizes of a variant as defaults of a builder's arguments."""

import copy
import inspect
import pickle
from typing import Any, cast

import pytest

from keras_attn import models
from keras_attn.docstrings.arguments import descriptions
from keras_attn.docstrings.descriptions import described_as
from keras_attn.models.catalog.variants import FROM_VARIANT, with_sizes

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
    assert build(variant="large", num_layers=FROM_VARIANT) == build("large")


def test_given_arguments_override_the_variant():
    built = build("large", num_layers=7, dropout=0.0, mask="causal")
    assert built == ("large", 7, False, 5, 0.0, "causal")
    # Values that are false are values, and so is None.
    assert build(norm_first=False, num_layers=0) == ("base", 0, False, None, 0.1, None)
    assert build("large", window=None) == ("large", 3, False, None, 0.1, None)


def test_the_signature_and_the_docstring_are_those_of_the_builder():
    names = ["variant", "num_layers", "norm_first", "window", "dropout", "mask"]
    parameters = inspect.signature(build).parameters
    assert list(parameters) == names
    assert parameters["num_layers"].default is FROM_VARIANT
    assert "num_layers=<the variant's>," in str(inspect.signature(build))
    assert copy.deepcopy(FROM_VARIANT) is pickle.loads(pickle.dumps(FROM_VARIANT))
    assert parameters["dropout"].default == 0.1
    assert (build.__name__, build.__doc__) == ("build", "Returns its arguments.")


def test_none_is_a_value_where_the_signature_has_it():
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_dim": 6, "num_heads": 3}
    sizes |= {"mlp_dim": 5, "vocabulary_size": 7}
    model = models.build_gpt("gpt3_small", **sizes, window=None)
    assert model.get_layer("block_1").window is None
    model = models.build_gpt("gpt3_small", **sizes)
    assert model.get_layer("block_1").window == 256
    with pytest.raises(ValueError, match="`num_layers` must .*Received: num_layers=No"):
        models.build_gpt("gpt3_small", num_layers=None)  # pyright: ignore


def test_a_size_of_other_variants_is_none():
    @with_sizes({"vit": {"patch_size": 32}, "resnet": {"stem_dim": 64}})
    def build_tower(variant="vit", *, patch_size=FROM_VARIANT, stem_dim=FROM_VARIANT):
        return variant, patch_size, stem_dim

    assert build_tower() == ("vit", 32, None)
    assert build_tower("resnet", stem_dim=7) == ("resnet", None, 7)


def test_the_docstring_says_which_defaults_are_those_of_the_variant():
    @with_sizes({"base": {"num_layers": 2}})
    def build_documented(variant="base", *, num_layers=FROM_VARIANT, dropout=0.1):
        """Builds.

        Args:
            variant: A row.
            num_layers: Number of blocks.
            dropout: A probability.
        """
        return variant, num_layers, dropout

    described = descriptions(inspect.getdoc(build_documented) or "")
    assert described == {
        "variant": "A row.",
        "num_layers": "Number of blocks. Default: the variant's.",
        "dropout": "A probability.",
    }


def test_lent_descriptions_say_which_defaults_are_those_of_the_variant():
    def stack(*, num_layers):
        """Builds.

        Args:
            num_layers: Number of blocks.
        """

    @with_sizes({"base": {"num_layers": 2}})
    @described_as(stack)
    def build_encoder(variant="base", *, num_layers=FROM_VARIANT):
        """Builds."""
        return variant, num_layers

    assert build_encoder() == ("base", 2)
    described = descriptions(inspect.getdoc(build_encoder) or "")
    assert described == {"num_layers": "Number of blocks. Default: the variant's."}
    with pytest.raises(TypeError, match="build_encoder.*'num_layer'"):
        cast("Any", build_encoder)(num_layer=3)


def test_unknown_variants_and_arguments_are_refused():
    with pytest.raises(ValueError, match="`variant` must be one of 'base', 'large'.*v"):
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
