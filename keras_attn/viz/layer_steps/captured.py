"""The calls of a model's attention layers, with the arguments that they were given."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras

from keras_attn.viz.layer_steps.arguments import attention_inside, known_class


class LayerCall(NamedTuple):
    """One call of an attention layer.

    Attributes:
        layer: The layer.
        arguments: What it was called with, by name.
    """

    layer: keras.layers.Layer
    arguments: dict[str, Any]


def capture_calls(model: keras.Model, inputs) -> list[LayerCall]:
    """Runs a model once, and returns the calls of its attention layers in order.

    They are the layers whose steps can be shown. A decoder that attends at every step
    of a recurrence does not call its attention as a layer, and is not among them.

    Args:
        model: A Keras model.
        inputs: Its inputs, a batch of one.
    """
    calls: list[LayerCall] = []
    with _watching(attention_inside(model), calls):
        model(inputs, training=False)
    return calls


@contextmanager
def _watching(watched: list, calls: list[LayerCall]) -> Iterator[None]:
    """Notes the outermost calls of layers: one that pools has another one inside."""
    inside = []

    def watch(layer):
        parent: Any = known_class(layer)  # A subclass may take `*arguments`.
        own, signature = layer.call, inspect.signature(parent.call)

        def call(*args, **kwargs):
            if not inside:
                given = dict(signature.bind(layer, *args, **kwargs).arguments)
                given.pop("self")
                calls.append(LayerCall(layer, given))
            inside.append(layer)
            try:
                return own(*args, **kwargs)
            finally:
                inside.pop()

        # Not by `setattr`, in which Keras looks for layers and weights.
        vars(layer)["call"] = call

    try:
        for layer in watched:
            watch(layer)
        yield
    finally:
        for layer in watched:
            vars(layer).pop("call", None)
