"""The graph of a training step, in which nothing is allocated or computed.

Legend: B batch, T length.
"""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_attn.checks.indices import length_ranges
from keras_attn.checks.inputs import MASKED_INPUTS
from keras_attn.kernels.lean_attention import whole_scores
from keras_attn.models.parts.functional import input_structure

# The length of a row if the number of positions is unlimited.
_DEFAULT_LENGTH = 128


@dataclass(frozen=True)
class TracedStep:
    """The graph of a training step without its loss.

    Attributes:
        inputs: Of the model.
        outputs: Of the model.
        forward: The operations of the forward pass.
        backward: The operations of the backward pass.
    """

    inputs: list[Any]
    outputs: list[Any]
    forward: list[Any]
    backward: list[Any]


def trace(model: keras.Model, graph: Any, rows: int, length: int) -> TracedStep:
    """Adds a training step without its loss to a graph.

    Args:
        model: Built in the graph.
        graph: The current `tf.Graph`.
        rows: B.
        length: T, tokens per row.
    """
    import tensorflow as tf

    for layer in model._flatten_layers():
        if getattr(layer, "unroll", None) is False:
            layer.unroll = True  # The graph of a loop hides the number of its steps.
    start = len(graph.get_operations())
    inputs = keras.tree.map_structure(
        lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape),
        input_specs(model, rows, length),
    )
    with whole_scores():
        outputs = keras.tree.flatten(model(inputs, training=True))
    middle = len(graph.get_operations())
    differentiable = [each for each in outputs if each.dtype.is_floating]
    gradients = [
        tf.compat.v1.placeholder(each.dtype, each.shape) for each in differentiable
    ]
    with warnings.catch_warnings():
        # Harmless, because nothing is computed here.
        warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")
        tf.gradients(
            differentiable,
            [weight.value for weight in model.trainable_variables],
            gradients,
        )
    operations = graph.get_operations()
    return TracedStep(
        keras.tree.flatten(inputs),
        outputs,
        operations[start:middle],
        operations[middle:],
    )


def input_specs(model: keras.Model, rows: int, sequence: int | None = None) -> Any:
    """Shapes and dtypes of a batch, in the structure that the model is called with.

    Args:
        model: The model.
        rows: B.
        sequence: T, tokens per row; None: as `plan` has it.

    Returns:
        A structure of `keras.KerasTensor`.
    """
    length = row_length(model, sequence) if has_tokens(model) else 1
    # DALL·E has positions for a caption and an image together.
    limits = length_ranges(model) if length == getattr(model, "max_length", 0) else {}

    def spec(tensor):
        masked = MASKED_INPUTS.get(tensor.name, (tensor.name,))[0]
        _, end = limits.get(masked, (1, None))
        size = min(length, end - 1) if end else length
        return keras.KerasTensor(
            (rows, *(n or size for n in tensor.shape[1:])), tensor.dtype
        )

    return keras.tree.map_structure(spec, input_structure(model))


@contextlib.contextmanager
def dtype_policy(dtype: str | None) -> Iterator[None]:
    """Makes a dtype policy the current one; None: the current one stays.

    Args:
        dtype: One of `DTYPES`.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype or before)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def has_tokens(model: keras.Model) -> bool:
    """Whether the rows of the inputs may have any length.

    Args:
        model: The model.
    """
    return any(None in tensor.shape[1:] for tensor in model.inputs)


def row_length(model: keras.Model, sequence: int | None) -> int:
    """Tokens per row; 1 for a model of images.

    Args:
        model: The model.
        sequence: T; None: the number of its positions, or 128.

    Raises:
        ValueError: If a model of images has no size, or one without tokens a length.
    """
    if any(len(x.shape) == 4 and None in x.shape[1:] for x in model.inputs):
        raise ValueError(
            "`image_size` must be given to plan a model of images of any size. "
            "Received: image_size=None"
        )
    if has_tokens(model):
        return sequence or _positions(model) or _DEFAULT_LENGTH
    if sequence is not None:
        raise ValueError(
            "`sequence` is for models of tokens; for a model of images, override "
            f"`image_size`. Received: sequence={sequence}"
        )
    return 1


def _positions(model):
    """The maximum number of tokens of a row, if the model sets a limit."""
    limit = getattr(model, "max_length", None)
    if limit is not None:
        return limit
    limits = (getattr(layer, "max_sequence_length", None) for layer in model.layers)
    return min(filter(None, limits), default=None)
