"""Shapes of inputs: axis 0 is the batch, any other unknown axis is a length."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

Specs = dict[str, tf.TensorSpec]


def check_sizes(
    batch_size: int | None, sequence_length: int | Mapping[str, int] | None
) -> None:
    """Raises for sizes that are not positive integers."""
    lengths = sequence_length
    by_name = lengths if isinstance(lengths, Mapping) else {"sequence_length": lengths}
    for argument, size in {"batch_size": batch_size, **by_name}.items():
        if size is None:
            continue
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            name = "batch_size" if argument == "batch_size" else "sequence_length"
            raise ValueError(
                f"`{name}` must be a positive integer, or None to leave it open"
                + ("" if name == "batch_size" else ", or a dictionary by input name")
                + f". Received: {argument}={size!r}"
            )


def fixed(
    specs: Specs,
    batch_size: int | None = None,
    sequence_length: int | Mapping[str, int] | None = None,
) -> Specs:
    """Fixes the unknown sizes of inputs; known sizes stay.

    Args:
        specs: Inputs by name.
        batch_size: Size of axis 0; None leaves it open.
        sequence_length: Size of every other unknown axis, for all inputs or by input
            name; None leaves them open.

    Returns:
        Inputs by name.
    """
    if isinstance(sequence_length, Mapping):
        unknown = sorted(set(sequence_length) - set(specs))
        if unknown:
            raise ValueError(
                f"`sequence_length` has keys that are not inputs: {unknown}; the "
                f"inputs are {sorted(specs)}. "
                f"Received: sequence_length={dict(sequence_length)}"
            )
        lengths = {name: sequence_length.get(name) for name in specs}
    else:
        lengths = dict.fromkeys(specs, sequence_length)
    return {
        name: _with_shape(spec, _filled(spec, batch_size, lengths[name]))
        for name, spec in specs.items()
    }


def fixed_like(specs: Specs, shapes: Mapping[str, Any]) -> Specs:
    """Fixes unknown lengths (not the batch) to the lengths of shapes, by input name."""
    result = {}
    for name, spec in specs.items():
        known = shapes.get(name)
        sizes = list(spec.shape)
        if known is not None and len(known) == len(sizes):
            for axis in range(1, len(sizes)):
                sizes[axis] = known[axis] if sizes[axis] is None else sizes[axis]
        result[name] = _with_shape(spec, sizes)
    return result


def open_lengths(specs: Specs) -> list[str]:
    """Names of the inputs with an unknown length."""
    return [name for name, spec in specs.items() if None in tuple(spec.shape)[1:]]


def open_images(specs: Specs) -> list[str]:
    """Names of the images (batch, rows, columns, channels) of unknown size."""
    return [name for name in open_lengths(specs) if len(specs[name].shape) == 4]


def open_batch(specs: Specs) -> bool:
    """Whether any input has an unknown batch size."""
    return any(len(spec.shape) and spec.shape[0] is None for spec in specs.values())


def batch_of(specs: Specs) -> int | None:
    """The batch size of the inputs; None if it is unknown."""
    sizes = [spec.shape[0] for spec in specs.values() if len(spec.shape)]
    return next((size for size in sizes if size is not None), None)


def _filled(spec: tf.TensorSpec, batch: int | None, length: int | None) -> list:
    return [
        (batch if axis == 0 else length) if size is None else size
        for axis, size in enumerate(spec.shape)
    ]


def _with_shape(spec: tf.TensorSpec, shape) -> tf.TensorSpec:
    return tf.TensorSpec(shape, spec.dtype, name=spec.name)
