"""Shapes of inputs: axis 0 is the batch, any other unknown axis is a length."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf


class Specs(dict[str, tf.TensorSpec]):
    """Shape and dtype of each input, by name."""

    @property
    def batch(self) -> int | None:
        """The batch size; None if it is unknown."""
        sizes = [spec.shape[0] for spec in self.values() if len(spec.shape)]
        return next((size for size in sizes if size is not None), None)

    @property
    def has_open_batch(self) -> bool:
        """Whether any input has an unknown batch size."""
        return any(len(spec.shape) and spec.shape[0] is None for spec in self.values())

    @property
    def open_lengths(self) -> list[str]:
        """Names of the inputs with an unknown length."""
        return [name for name, spec in self.items() if None in tuple(spec.shape)[1:]]

    @property
    def open_images(self) -> list[str]:
        """Names of the images (batch, rows, columns, channels) of unknown size."""
        return [name for name in self.open_lengths if len(self[name].shape) == 4]

    def fixed(
        self,
        batch_size: int | None,
        sequence_length: int | Mapping[str, int] | None = None,
        like: Mapping[str, Any] | None = None,
    ) -> "Specs":
        """Fixes unknown sizes; known sizes stay.

        Args:
            batch_size: Size of axis 0; None leaves it open.
            sequence_length: Size of every other unknown axis, for all inputs or by
                input name; None leaves them to `like`.
            like: Arrays, tensors or their specs by input name, whose lengths fix those
                still unknown, if they have as many axes.

        Raises:
            ValueError: If `sequence_length` has the name of no input.
        """
        lengths, like = sequence_length, like or {}
        if isinstance(lengths, Mapping) and not lengths.keys() <= self.keys():
            raise ValueError(
                "`sequence_length` has keys that are not inputs: "
                f"{sorted(lengths.keys() - self.keys())}; the inputs are "
                f"{sorted(self)}. Received: sequence_length={dict(lengths)}"
            )
        result = Specs()
        for name, spec in self.items():
            length = lengths.get(name) if isinstance(lengths, Mapping) else lengths
            known = like[name].shape if name in like else ()
            shape = list(spec.shape)
            for axis, size in enumerate(shape):
                if size is None and axis == 0:
                    shape[axis] = batch_size
                elif size is None and length is not None:
                    shape[axis] = length
                elif size is None and len(known) == len(shape):
                    shape[axis] = known[axis]
            result[name] = tf.TensorSpec(shape, spec.dtype, name=spec.name)
        return result


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
