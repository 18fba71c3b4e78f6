"""Lets Keras find our registered classes, whether they have been imported or not.

A saved model names each class as it was registered, such as `keras_attn>SwinBlock`.
Keras looks that name up in a dictionary, to which a class is added when its module is
imported. Here the dictionary imports our packages when Keras asks for one of our names
that is missing. So `keras.saving.load_model` works after a bare `import keras_attn`,
which imports neither Keras nor any layer, and a class may move to a different module.

`keras.initializers.get` looks only in a copy of the dictionary, so the initializers are
imported when it is copied, which Keras does whenever it reads a configuration.
"""

import importlib
import sys

_PREFIX = "keras_attn>"
# Importing these packages imports everything that is registered.
_PACKAGES = ("ops", "layers", "losses", "metrics", "models", "training")
# The only package of these with initializers. It imports no TensorFlow, which a
# process on JAX would otherwise wait for.
_INITIALIZERS = "keras_attn.layers"


class RegisteredObjects(dict):
    """Keras' dictionary from registered names to classes and functions."""

    def __contains__(self, name):
        """Whether the name is registered, once our packages are imported."""
        is_missing = not super().__contains__(name)
        if is_missing and isinstance(name, str) and name.startswith(_PREFIX):
            for package in _PACKAGES:
                importlib.import_module(f"keras_attn.{package}")
        return super().__contains__(name)

    def __iter__(self):
        """Iterates over the names. As it is overridden, `{**self}` calls `keys`."""
        return super().__iter__()

    def keys(self):
        """The registered names, once our initializers are imported."""
        importlib.import_module(_INITIALIZERS)
        return super().keys()


class _AfterKeras:
    """An import finder that calls `register` once Keras has been imported."""

    def find_spec(self, name, path=None, target=None):
        """Finds Keras through the other finders; returns None for all other modules."""
        if name != "keras":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader) -> None:
        execute = loader.exec_module

        def execute_and_register(module):
            execute(module)
            register()
            if self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = execute_and_register


def register() -> None:
    """Replaces Keras' dictionary with ours, and keeps its entries."""
    from keras.src.saving import object_registration

    objects = object_registration.GLOBAL_CUSTOM_OBJECTS
    if not isinstance(objects, RegisteredObjects):
        object_registration.GLOBAL_CUSTOM_OBJECTS = RegisteredObjects(objects)


def register_after_keras() -> None:
    """Registers now if Keras is imported, otherwise as soon as it is."""
    if "keras" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterKeras())
