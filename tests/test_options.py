"""Descriptions that are written once, and docstrings that are completed from them."""

import inspect

from keras_attn.docstrings.arguments import (
    descriptions,
    with_descriptions,
    with_sentence,
)
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import TransformerDecoderBlock, TransformerEncoderBlock
from keras_attn.layers.base import BaseLayer


def sized(inputs, rank=2, *, seed=5, width=3, name="sized"):
    """Returns its arguments.

    Args:
        inputs: A tensor.
        seed: A seed.
        width: Number of columns.
        name: What it is called.

    Returns:
        A tuple.
    """
    return inputs, rank, seed, width, name


class Sized(BaseLayer):
    """A layer.

    Args:
        units: Number of units.

    Call arguments:
        inputs: A tensor.
    """

    def __init__(self, *, units=4, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def call(self, inputs):
        return inputs


def test_blocks_of_both_kinds_have_the_same_arguments():
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
