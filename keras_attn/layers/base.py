"""The base class of our layers, which writes their configuration."""

import functools
import inspect

import keras

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class BaseLayer(keras.layers.Layer):
    """A Keras layer whose constructor arguments are attributes of the same names.

    So `get_config` needs no list of them. A subclass with an argument that is no
    attribute writes a `get_config` of its own, with all of its own arguments.
    """

    def get_config(self):
        """The arguments of the constructor, in a form that JSON can hold."""
        names = _arguments(type(self))
        own = {name: _serialized(getattr(self, name)) for name in names}
        return {**super().get_config(), **own}


@functools.cache
def _arguments(layer_class) -> tuple[str, ...]:
    """Names of the arguments of a class and of its bases up to `BaseLayer`."""
    names = {}
    for parent in layer_class.__mro__:
        if parent is BaseLayer:
            break
        if not issubclass(parent, BaseLayer) or "get_config" in vars(parent):
            continue
        if "__init__" in vars(parent):
            _, *parameters = inspect.signature(parent.__init__).parameters.values()
            names |= {x.name: x for x in parameters if x.kind not in _VARIADIC}
    return tuple(names)


def _serialized(value):
    if isinstance(value, keras.initializers.Initializer):
        return keras.initializers.serialize(value)
    if callable(value):
        return keras.activations.serialize(value)
    return value
