"""Sinusoidal and learned position embeddings, added or concatenated.

Legend: B batch, T length, R rows, C columns, D width of the inputs, P width of the
positions.
"""

from typing import Literal, get_args

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import (
    check_choice,
    check_not_negative,
    check_positive,
    check_rank,
)
from keras_attn.checks.indices import check_indices
from keras_attn.checks.inputs import check_length
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy
from keras_attn.ops import sinusoids, sinusoids_2d

Merge = Literal["add", "concatenate"]
MERGES = get_args(Merge)


@keras.saving.register_keras_serializable("keras_attn")
class SinusoidalPositionEmbedding(BaseLayer):
    """Adds or concatenates sines and cosines of the position; it has no weights.

    `PE(p, 2i) = sin(p / w^(2i/P))`, `PE(p, 2i+1) = cos(p / w^(2i/P))`. On a grid the
    first half of P encodes the row and the second half the column.

    Args:
        merge: `"add"` (then P = D) or `"concatenate"`.
        position_dim: P, for `"concatenate"`. Default: D.
        max_wavelength: w; wavelengths run from 2π to 2πw positions.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D), or a grid (B, R, C, D).
        positions: Integer positions of a sequence, (T,) or (B, T). Default: 0 … T-1.

    Returns:
        The shape of the inputs; with `"concatenate"` the last axis is D + P.

    Raises:
        ValueError: If `inputs` does not have 3 or 4 axes, or is a grid and P is odd or
            `positions` are given.

    Reference:
        Vaswani et al. 2017, section 3.5 (arXiv:1706.03762).
    """

    def __init__(
        self,
        merge: Merge = "add",
        *,
        position_dim: int | None = None,
        max_wavelength: float = 10_000,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        check_choice("merge", merge, MERGES)
        self.merge = merge
        self.position_dim = _check_position_dim(merge, position_dim)
        self.max_wavelength = max_wavelength

    def call(self, inputs, positions=None):
        dim = self.position_dim or inputs.shape[-1]
        if len(inputs.shape) == 4:
            if positions is not None:
                raise ValueError(
                    "`positions` are for sequences; a grid's positions are its rows "
                    f"and columns. Received: inputs.shape={tuple(inputs.shape)}"
                )
            if dim % 2:
                raise ValueError(
                    "A grid needs positions of even width, half for the row and half "
                    f"for the column. Received: width={dim}"
                )
            rows, columns = ops.shape(inputs)[1:3]
            table = sinusoids_2d(rows, columns, dim, self.max_wavelength)
        else:
            self.compute_output_shape(inputs.shape)  # Checks the shape.
            if positions is None:
                positions = ops.arange(ops.shape(inputs)[1], dtype="int32")
            table = sinusoids(positions, dim, self.max_wavelength)
        return _merge(inputs, table, self.merge)

    def compute_output_shape(self, inputs_shape, positions_shape=None):
        if len(inputs_shape) != 4:  # A grid.
            check_rank("inputs", inputs_shape, 3, "(batch, length, width)")
        return _merged_shape(inputs_shape, self.merge, self.position_dim)


@keras.saving.register_keras_serializable("keras_attn")
class LearnedPositionEmbedding(BaseLayer):
    """Adds or concatenates one learned vector per position.

    Args:
        max_sequence_length: Number of positions, from 0.
        merge: `"add"` (then P = D) or `"concatenate"`.
        position_dim: P, for `"concatenate"`. Default: D.
        first_row: F, row of position 0; the rows before it are negative positions.
        embeddings_initializer: Initializer of the vectors, (F + max_sequence_length,
            P).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D). Flatten a grid to a sequence first.
        positions: Integers in [-F, max_sequence_length), (T,) or (B, T).
            Default: 0 … T-1.

    Returns:
        (B, T, D), or (B, T, D + P) with `"concatenate"`.

    Raises:
        ValueError: If `inputs` does not have 3 axes, the sequence is longer than
            `max_sequence_length`, or, in an eager call, a position is out of range.

    Reference:
        Gehring et al. 2017 (arXiv:1705.03122); Vaswani et al. 2017, table 3 row E.
    """

    def __init__(
        self,
        max_sequence_length: int,
        merge: Merge = "add",
        *,
        position_dim: int | None = None,
        first_row: int = 0,
        embeddings_initializer: Initializer = "uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        check_choice("merge", merge, MERGES)
        self.max_sequence_length = check_positive(
            "max_sequence_length", max_sequence_length
        )
        self.merge = merge
        self.position_dim = _check_position_dim(merge, position_dim)
        self.first_row = check_not_negative("first_row", first_row)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, inputs_shape):
        dim = self.position_dim or inputs_shape[-1]
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.first_row + self.max_sequence_length, dim),
            initializer=independent_copy(self.embeddings_initializer),
        )

    @property
    def index_ranges(self):
        """Range of valid positions, `(start, stop)`, excluding `stop`."""
        return {"positions": (-self.first_row, self.max_sequence_length)}

    @property
    def length_ranges(self):
        """Range of valid lengths, `(start, stop)`, excluding `stop`."""
        return {"inputs": (1, self.max_sequence_length + 1)}

    def call(self, inputs, positions=None):
        self.compute_output_shape(inputs.shape)  # Checks the shape.
        check_length("inputs", inputs.shape, (0, self.max_sequence_length + 1))
        first = self.first_row
        if positions is None:
            table = self.embeddings[first : first + ops.shape(inputs)[1]]
        else:
            check_indices("positions", positions, self.index_ranges["positions"])
            rows = ops.add(positions, first) if first else positions
            table = ops.take(self.embeddings, rows, axis=0)
        return _merge(inputs, table, self.merge)

    def compute_output_shape(self, inputs_shape, positions_shape=None):
        check_rank("inputs", inputs_shape, 3, "(batch, length, width)")
        return _merged_shape(inputs_shape, self.merge, self.position_dim)


def _check_position_dim(merge, position_dim):
    if position_dim is None:
        return None
    if merge == "add":
        raise ValueError(
            "`position_dim` requires merge='concatenate': added positions are as wide "
            f"as the inputs. Received: position_dim={position_dim}, merge='add'"
        )
    return check_positive("position_dim", position_dim)


def _merge(inputs, table, merge):
    table = ops.cast(table, inputs.dtype)
    if merge == "add":
        return ops.add(inputs, table)
    shape = (*ops.shape(inputs)[:-1], table.shape[-1])
    return ops.concatenate([inputs, ops.broadcast_to(table, shape)], axis=-1)


def _merged_shape(inputs_shape, merge, position_dim):
    if merge == "add":
        return tuple(inputs_shape)
    width = inputs_shape[-1]
    return (*inputs_shape[:-1], width + (position_dim or width))
