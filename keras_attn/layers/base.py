"""Base class of the layers: writes `get_config` from the constructor."""

import functools
from collections.abc import Mapping

import keras

from keras_attn.checks.configuration import argument_names
from keras_attn.layers.adaptation.kernel_layer import RestoresAdapters
from keras_attn.layers.adaptation.quantization import Quantizable


class BaseLayer(Quantizable, RestoresAdapters):
    """A Keras layer with one attribute per constructor argument, of the same name.

    So `get_config` needs no list of the arguments. A subclass with an argument that is
    not an attribute defines its own `get_config`, which adds all arguments of its own
    constructor to the result of `super().get_config()`. Otherwise the argument is left
    out, and a loaded layer gets its default.
    """

    # Argument to attribute, where Keras has another use for the name.
    argument_attributes: Mapping[str, str] = {}

    def get_config(self):
        """The constructor arguments, serializable as JSON."""
        config = super().get_config()
        arguments = _arguments(type(self))  # pyright: ignore[reportArgumentType]
        attributes = {x: self.argument_attributes.get(x, x) for x in arguments}
        own = {
            name: _serialized(getattr(self, attribute))
            for name, attribute in attributes.items()
            if name not in config and hasattr(self, attribute)
        }
        return config | own


@functools.cache
def _arguments(layer_class) -> tuple[str, ...]:
    """Names of the arguments of a class and its bases, up to `BaseLayer`.

    Classes that define `get_config` are left out: they list their own.
    """
    names = {}
    for parent in layer_class.__mro__:
        if parent is BaseLayer:
            break
        if not issubclass(parent, BaseLayer) or "get_config" in vars(parent):
            continue
        if "__init__" in vars(parent):
            names |= dict.fromkeys(argument_names(parent.__init__))
    return tuple(names)


def _serialized(value):
    if isinstance(value, keras.layers.Layer):
        return keras.saving.serialize_keras_object(value)
    if isinstance(value, keras.initializers.Initializer):
        return keras.initializers.serialize(value)
    if isinstance(value, keras.regularizers.Regularizer):
        return keras.regularizers.serialize(value)
    if isinstance(value, keras.constraints.Constraint):
        return keras.constraints.serialize(value)
    if callable(value):
        return keras.activations.serialize(value)
    return value
