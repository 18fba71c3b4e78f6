"""`help()` of everything public describes every argument, each in an entry of its own.

What Keras adds to every layer needs none: its own arguments of a constructor, and those
that it passes to `call` itself.
"""

import importlib
import inspect
import re
from typing import Any

import keras
import pytest
from test_api import PUBLIC

from keras_attn.docstrings.arguments import descriptions
from keras_attn.tiling import predict_tiles
from keras_attn.translator import Translator
from keras_attn.viz import callbacks

KERAS_ARGUMENTS = {"name", "dtype", "trainable", "autocast", "activity_regularizer"}
KERAS_CALL_ARGUMENTS = {"training", "mask"}


def _public() -> dict[str, Any]:
    """The public functions and classes, but for errors, by name."""
    named = {"predict_tiles": predict_tiles, "Translator": Translator}
    for module, names in PUBLIC.items():
        room = importlib.import_module(module)
        named |= {name: getattr(room, name) for name in names.split()}
    named |= {name: getattr(callbacks, name) for name in callbacks.__all__}
    return {
        name: value
        for name, value in named.items()
        if callable(value)
        and not (inspect.isclass(value) and issubclass(value, Exception))
    }


DOCUMENTED = _public()
LAYERS = {
    name: value
    for name, value in DOCUMENTED.items()
    if inspect.isclass(value)
    and issubclass(value, keras.layers.Layer)
    and not issubclass(value, keras.Model)
}


def _methods() -> dict[str, Any]:
    """The methods of public classes that we name ourselves, by name.

    What overrides a method of Keras or of Python is described there.
    """
    named = {}
    for name, value in DOCUMENTED.items():
        if inspect.isclass(value):
            bases = [
                x for x in value.__mro__ if not x.__module__.startswith("keras_attn")
            ]
            theirs = {method for base in bases for method in vars(base)}
            named |= {
                f"{name}.{method}": getattr(value, method)
                for method in dir(value)
                if not method.startswith("_")
                and method not in theirs
                and inspect.isroutine(getattr(value, method))
            }
    return named


METHODS = _methods()


def _undescribed(documented):
    """The arguments of a function, or of a constructor, that help does not describe."""
    docstring = inspect.getdoc(documented) or ""
    known = descriptions(docstring)
    # Attributes of a dataclass or a named tuple are the arguments of its constructor.
    if hasattr(documented, "__dataclass_fields__") or hasattr(documented, "_fields"):
        known |= descriptions(docstring, "Attributes")
    parameters = set(inspect.signature(documented).parameters)
    if inspect.isclass(documented) and issubclass(documented, keras.layers.Layer):
        parameters -= KERAS_ARGUMENTS
    return {name for name in parameters if not known.get(name)}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_argument_is_described(name):
    assert _undescribed(DOCUMENTED[name]) == set()


def test_every_argument_of_a_method_is_described():
    missing = {
        name: undescribed
        for name, method in METHODS.items()
        if (undescribed := _undescribed(method) - {"self"})
    }
    assert missing == {}
    assert {"Beam.advance", "Runner.step", "Translator.load"} <= set(METHODS)


@pytest.mark.parametrize("name", LAYERS)
def test_every_argument_of_a_call_is_described(name):
    known = descriptions(inspect.getdoc(LAYERS[name]) or "", "Call arguments")
    _, *arguments = inspect.signature(LAYERS[name].call).parameters
    masks = {f"{argument}_mask" for argument in arguments}  # Keras passes them.
    needed = set(arguments) - KERAS_CALL_ARGUMENTS - masks
    assert {argument for argument in needed if not known.get(argument)} == set()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_no_argument_is_described_elsewhere(name):
    docstring = inspect.getdoc(DOCUMENTED[name]) or ""
    for section in ("Args", "Call arguments"):
        for argument, text in descriptions(docstring, section).items():
            # Arguments of Keras and of `fit` are described there.
            pointer = re.match(r"As (in|for) `(?!keras\.|model\.fit)", text)
            assert not pointer, f"{argument}: {text}"


@pytest.mark.parametrize("name", PUBLIC["keras_attn.layers"].split())
def test_a_layer_shows_its_own_arguments(name):
    """`**kwargs` are Keras' arguments of a layer, or of the layer that it extends."""
    parameters = inspect.signature(LAYERS[name]).parameters.values()
    variadic = [x.name for x in parameters if x.kind is x.VAR_KEYWORD]
    known = descriptions(inspect.getdoc(LAYERS[name]) or "")
    bases = [base.__name__ for base in LAYERS[name].__mro__[1:]]
    for argument in variadic:
        text = known[argument]
        match = re.fullmatch(r"As for `keras\.layers\.(\w+)`\.", text)
        assert "of a Keras layer" in text or (match and match[1] in bases)


def test_builders_take_what_they_show_alone():
    for name, builder in DOCUMENTED.items():
        if name.startswith("build_"):
            with pytest.raises(TypeError, match=rf"{name}\(\).*'no_such_option'"):
                builder(no_such_option=1)
