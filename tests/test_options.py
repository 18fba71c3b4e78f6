"""Options that are said once, and docstrings that are completed from them."""

import inspect
from typing import Annotated, Any, TypedDict, Unpack, cast

import pytest

from keras_attn.docstrings.arguments import (
    descriptions,
    with_descriptions,
    with_sentence,
)
from keras_attn.docstrings.options import Option, described_as, takes_options
from keras_attn.layers import TransformerDecoderBlock, TransformerEncoderBlock
from keras_attn.layers.base import BaseLayer, LayerArguments


class Sizes(TypedDict, total=False):
    width: Annotated[int | None, Option(3, "Number of columns.")]
    name: Annotated[str, Option("sized", "What it is called.")]


@takes_options
def sized(inputs, rank: int = 2, *, seed: int = 5, **sizes: Unpack[Sizes]):
    """Returns its arguments.

    Args:
        inputs: A tensor.
        seed: A seed.

    Returns:
        A tuple.
    """
    return inputs, rank, seed, sizes


def test_options_are_in_the_signature_with_type_and_default():
    parameters = inspect.signature(sized).parameters
    assert list(parameters) == ["inputs", "rank", "seed", "width", "name"]
    assert parameters["width"].default == 3
    assert parameters["width"].annotation == int | None
    assert parameters["width"].kind is inspect.Parameter.KEYWORD_ONLY


def test_options_are_described_in_the_order_of_the_signature():
    assert sized.__doc__ == inspect.cleandoc("""Returns its arguments.

        Args:
            inputs: A tensor.
            seed: A seed.
            width: Number of columns.
            name: What it is called.

        Returns:
            A tuple.""")


def test_a_call_has_the_defaults_of_options():
    assert sized(1) == (1, 2, 5, {"width": 3, "name": "sized"})
    assert sized(1, 7, width=None) == (1, 7, 5, {"width": None, "name": "sized"})


def test_other_arguments_are_refused():
    with pytest.raises(TypeError, match=r"^sized\(\) got an unexpected .*'widht'"):
        cast("Any", sized)(1, widht=3)
    with pytest.raises(TypeError, match=r"^sized\(\) missing .*'inputs'"):
        cast("Any", sized)(width=3)


class LayerSizes(LayerArguments, total=False):
    units: Annotated[int, Option(4, "Number of units.")]


class _Sized(BaseLayer):
    def __init__(self, *, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units


@takes_options
class Sized(_Sized):
    """A layer.

    Call arguments:
        inputs: A tensor.
    """

    def __init__(self, **options: Unpack[LayerSizes]):
        super().__init__(**options)

    def call(self, inputs):
        return inputs


def test_a_layer_takes_options_and_the_arguments_of_keras():
    parameters = inspect.signature(Sized).parameters
    assert list(parameters) == ["units", "options"]
    layer = Sized(name="mine", trainable=False)
    assert (layer.units, layer.name, layer.trainable) == (4, "mine", False)
    copy = Sized.from_config({**layer.get_config(), "units": 7})
    assert (copy.units, copy.name, copy.trainable) == (7, "mine", False)
    assert descriptions(inspect.getdoc(Sized) or "") == {"units": "Number of units."}
    with pytest.raises(ValueError, match="unit_s"):  # From Keras.
        cast("Any", Sized)(unit_s=3)


def test_blocks_of_both_kinds_have_the_same_options():
    encoder = inspect.signature(TransformerEncoderBlock).parameters
    decoder = inspect.signature(TransformerDecoderBlock).parameters
    assert set(decoder) - set(encoder) == {"window"}
    assert all(decoder[name] == encoder[name] for name in encoder)
    described = descriptions(inspect.getdoc(TransformerDecoderBlock) or "")
    assert described["layer_scale"].startswith("Initial value of a learned factor")


def test_descriptions_of_a_function_are_lent():
    @described_as(sized)
    def other(name, inputs, depth=1):
        """Does the same.

        Args:
            depth: A number.

        Reference:
            None.
        """

    assert other.__doc__ == inspect.cleandoc("""Does the same.

        Args:
            name: What it is called.
            inputs: A tensor.
            depth: A number.

        Reference:
            None.""")


def test_descriptions_of_a_layer_are_lent_with_those_of_its_call():
    @described_as(Sized)
    class Other(BaseLayer):
        """Another layer."""

        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)

        def call(self, inputs, other=None):
            return inputs

    docstring = inspect.getdoc(Other) or ""
    assert descriptions(docstring) == {"units": "Number of units."}
    assert descriptions(docstring, "Call arguments") == {"inputs": "A tensor."}
    assert docstring.index("Args:") < docstring.index("Call arguments:")


def test_descriptions_of_options_are_lent():
    @described_as(Sizes)
    def other(width):
        """Has a width of its own."""

    assert descriptions(other.__doc__ or "") == {"width": "Number of columns."}


DOCSTRING = inspect.cleandoc("""Draws.

    Args:
        height, width: Pixels, two numbers, or
            one for both.
        **options: More.

    Returns:
        Nothing: it draws.
    """)


def test_descriptions_are_read_from_a_docstring():
    size = "Pixels, two numbers, or one for both."
    assert descriptions(DOCSTRING) == {
        "height": size,
        "width": size,
        "options": "More.",
    }
    assert descriptions(DOCSTRING, "Call arguments") == {}
    assert descriptions("") == {}


def test_what_a_docstring_describes_stays():
    assert with_descriptions(DOCSTRING, {"width": "Other."}, ["width"]) == DOCSTRING


def test_a_long_description_is_wrapped():
    added = with_descriptions("Draws.", {"color": "red or " * 40 + "blue"}, ["color"])
    assert max(map(len, added.splitlines())) <= 80
    assert descriptions(added)["color"] == "red or " * 40 + "blue"


def test_a_sentence_ends_descriptions():
    ended = with_sentence(DOCSTRING, ["**options", "nothing"], "Or less.")
    assert descriptions(ended)["options"] == "More. Or less."
    assert with_sentence("Draws.", ["color"], "Or less.") == "Draws."
