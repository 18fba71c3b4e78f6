"""Inputs of a graph whose sizes a data set does not say, though the model's inputs do.

Files that are decoded in a `tf.data` pipeline have an unknown height and width, and
what a Python function returns has no known shape at all. Layers that cut images into
patches or windows compute with sizes that they must know.
"""

from collections.abc import Sequence
from typing import Any

import keras


def with_known_sizes(inputs: Any, declared: Sequence[keras.KerasTensor]) -> Any:
    """The inputs, with the sizes that the model declares where they are unknown.

    A graph of TensorFlow then checks them when it runs; other backends know all sizes.

    Args:
        inputs: What a model is called with: a tensor, several in the order of its
            inputs, or a dictionary of them by name.
        declared: The inputs of the model.
    """
    if keras.backend.backend() != "tensorflow":
        return inputs
    if isinstance(inputs, dict):
        shapes = {each.name: each.shape for each in declared}
        return {name: with_shape(x, shapes.get(name)) for name, x in inputs.items()}
    if isinstance(inputs, list | tuple):
        if len(inputs) != len(declared):
            return inputs
        pairs = zip(inputs, declared, strict=True)
        return type(inputs)([with_shape(x, each.shape) for x, each in pairs])
    return with_shape(inputs, declared[0].shape) if len(declared) == 1 else inputs


def with_shape(value: Any, shape: tuple[int | None, ...] | None) -> Any:
    """A tensor with the sizes of `shape` where its own are unknown."""
    found = getattr(value, "shape", None)
    # Symbolic tensors of Keras and arrays have tuples.
    if shape is None or not hasattr(found, "rank"):
        return value
    if found.rank is not None:
        if found.rank != len(shape):
            return value  # Keras adds or removes a last axis of 1.
        pairs = zip(tuple(found), shape, strict=True)
        if not any(x is None and y is not None for x, y in pairs):
            return value
    import tensorflow as tf

    return tf.ensure_shape(value, shape) if isinstance(value, tf.Tensor) else value
