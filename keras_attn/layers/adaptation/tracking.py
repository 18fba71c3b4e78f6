"""State of a layer that is built already."""

import contextlib
from collections.abc import Iterator

import keras


@contextlib.contextmanager
def unlocked(layer: keras.layers.Layer) -> Iterator[None]:
    """Lets a layer that is built take further weights and layers."""
    was_locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        yield
    finally:
        if was_locked:
            layer._lock_state()


def fix_layers_inside(layer: keras.layers.Layer) -> None:
    """Fixes the layers inside a layer that is not trainable.

    A layer that is loaded creates those inside it anew, and Keras restores only its own
    `trainable`: their weights would train.
    """
    if not layer.trainable:
        for each in layer._flatten_layers(include_self=False):
            each.trainable = False


def set_untracked(layer: keras.layers.Layer, name: str, value) -> None:
    """Sets an attribute that Keras neither counts among the weights nor saves."""
    layer.__dict__[name] = value


@contextlib.contextmanager
def named(layer: keras.layers.Layer, name: str) -> Iterator[None]:
    """Within this block paths of weights begin with a layer's path and a name."""
    with contextlib.ExitStack() as scopes:
        for each in (*(layer.path or layer.name).split("/"), name):
            scopes.enter_context(keras.name_scope(each, deduplicate=False))
        yield
