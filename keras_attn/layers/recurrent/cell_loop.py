"""Base of the layers that run a Keras cell with attention, step by step.

Legend: B batch, T steps.
"""

import abc
from typing import Any

import keras
from keras import ops

from keras_attn.layers.attention.scored_attention import ScoredAttention
from keras_attn.layers.base import BaseLayer


class RecurrentAttention(BaseLayer):
    """Base class of the layers with a `cell` and an `attention`.

    Args:
        cell: A Keras cell.
        attention: An `AdditiveAttention` or `DotProductAttention`.
        unroll: Whether to unroll the loop if T is known.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Raises:
        TypeError: If `cell` or `attention` has an unsupported type.
        ValueError: If `cell` has dropout.
    """

    def __init__(
        self,
        cell: keras.layers.Layer,
        attention: ScoredAttention,
        *,
        unroll: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        _check_parts(cell, attention)
        self.cell = cell
        self.attention = attention
        self.unroll = unroll

    @classmethod
    def from_config(cls, config):
        config, parts = dict(config), {}
        for name in ("cell", "attention"):
            # Built in `build`, not here, so that the weights keep their paths.
            part = {**config.pop(name), "build_config": None}
            parts[name] = keras.saving.deserialize_keras_object(part)
        return cls(**parts, **config)


class CellStep(abc.ABC):
    """A step with a Keras cell, as `keras.layers.RNN` needs it.

    A subclass adds `call`, from the inputs and states of a step to its outputs and the
    next states.

    Args:
        cell: The Keras cell.
    """

    def __init__(self, cell):
        self.cell = cell
        self.state_size = as_list(cell.state_size)
        self.compute_dtype = cell.compute_dtype

    @abc.abstractmethod
    def call(self, inputs, states) -> tuple[Any, list]:
        """The outputs of a step, and the next states as a list."""

    def __call__(self, inputs, states) -> tuple[Any, list]:
        """As `call`."""
        return self.call(inputs, states)


def run_loop(layer, step, inputs, first_state, **options):
    """All steps of a loop, by `keras.layers.RNN`.

    Args:
        layer: The layer that provides the `unroll` and dtype policy of the loop.
        step: The step, passed to `keras.layers.RNN` as its cell.
        inputs: (B, T, …).
        first_state: The states before the first step, a list.
        **options: Further arguments of `keras.layers.RNN`.

    Returns:
        The outputs of all steps, (B, T, …), and the states after the last step.
    """
    loop = keras.layers.RNN(
        step,
        return_sequences=True,
        return_state=True,
        # While JAX traces, an unknown length is a symbol instead of None.
        unroll=layer.unroll and isinstance(inputs.shape[1], int),
        dtype=layer.dtype_policy,
        name="loop",
        **options,
    )
    outputs, *final_state = loop(inputs, initial_state=first_state)
    return outputs, final_state


def first_states(cell, initial_state, dtype) -> list:
    """The initial states of a cell, as a list of tensors of a dtype."""
    states, expected = as_list(initial_state), len(as_list(cell.state_size))
    if len(states) != expected:
        raise ValueError(
            "`initial_state` must hold one tensor for each state of the cell. "
            f"Received: {len(states)} of {expected} states"
        )
    return [ops.cast(state, dtype) for state in states]


def as_list(state) -> list:
    """One state or several, as a list."""
    return list(state) if isinstance(state, (list, tuple)) else [state]


def _check_parts(cell, attention) -> None:
    stacked = isinstance(cell, keras.layers.StackedRNNCells)
    if stacked or not hasattr(cell, "state_size"):
        raise TypeError(
            "`cell` must be a single Keras recurrent cell, such as "
            f"`keras.layers.GRUCell`. Received: cell={cell!r}"
        )
    if not isinstance(attention, ScoredAttention):
        raise TypeError(
            "`attention` must be an AdditiveAttention or a DotProductAttention. "
            f"Received: attention={attention!r}"
        )
    if getattr(cell, "dropout", 0) or getattr(cell, "recurrent_dropout", 0):
        raise ValueError(
            "`cell` must not have dropout: apply a `Dropout` layer to the inputs. "
            f"Received: cell.dropout={cell.dropout}, "
            f"cell.recurrent_dropout={cell.recurrent_dropout}"
        )
