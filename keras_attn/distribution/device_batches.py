"""Batches whose rows the devices of a layout (`keras.distribution`) must share evenly.

JAX divides a batch into equal parts. Keras notices a batch that it cannot divide when
the model's variables are in the middle of a step, and the model is of no use after
that; so arrays are checked before.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

# Of Keras, if `batch_size` is None.
_BATCH_SIZE = 32


def row_devices() -> int:
    """Devices of this process among which the rows of a batch are divided, or 1."""
    distribution = keras.distribution.distribution()
    name = getattr(distribution, "batch_dim_name", None)
    if distribution is None or name is None or keras.backend.backend() != "jax":
        return 1
    import jax

    mesh = distribution.device_mesh
    if name not in mesh.axis_names:
        return 1
    size = mesh.shape[mesh.axis_names.index(name)]
    # Each process gives its own rows.
    return max(1, size // jax.process_count())


def check_rows(
    inputs: Any, batch_size: int | None = None, validation_split: float = 0.0
) -> None:
    """Raises unless the devices can share every batch.

    Args:
        inputs: An array, or arrays in any structure; anything else is not checked.
        batch_size: Rows per batch; None = 32.
        validation_split: Share of the rows that Keras holds out.

    Raises:
        ValueError: If they cannot.
    """
    if row_devices() == 1:
        return
    rows = count_rows(inputs)
    if rows is None:
        return
    kept = math.floor(rows * (1.0 - validation_split))
    for count in {kept, rows - kept} - {0}:
        _check_count(count, batch_size)


def _check_count(rows, batch_size):
    devices = row_devices()
    batch_size = _BATCH_SIZE if batch_size is None else batch_size
    sizes = {min(rows, batch_size), rows % batch_size}
    if any(size % devices for size in sizes):
        raise ValueError(
            f"Each batch must have a multiple of {devices} rows, which the devices of "
            "the distribution share: choose such a `batch_size`, and leave out rows at "
            "the end or add some with a `sample_weight` of 0. Received: "
            f"batch_size={batch_size}, {rows} rows, {rows % batch_size or batch_size} "
            "in the last batch"
        )


def padded_rows(
    inputs: Any, batch_size: int | None = None, *, in_one_batch: bool = False
) -> tuple[Any, int | None]:
    """Arrays with as many rows as the devices can share; the last row is repeated.

    Args:
        inputs: An array, or arrays in any structure; anything else is returned.
        batch_size: Rows per batch; None = 32.
        in_one_batch: Whether all rows are one batch.

    Returns:
        The inputs, and how many of their rows are real; None if all are.

    Raises:
        ValueError: If the devices cannot share `batch_size` rows.
    """
    devices = row_devices()
    rows = None if devices == 1 else count_rows(inputs)
    if not rows:
        return inputs, None
    missing = -rows % devices
    if not in_one_batch:
        _check_count(rows + missing, batch_size)
    if not missing:
        return inputs, None

    def pad(array):
        return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])

    return keras.tree.map_structure(pad, inputs), rows


def first_rows(outputs: Any, rows: int | None) -> Any:
    """The outputs for the real rows of `padded_rows`; all of them if that is None."""
    if rows is None:
        return outputs
    return keras.tree.map_structure(lambda output: output[:rows], outputs)


def count_rows(inputs: Any) -> int | None:
    """Rows of arrays in any structure; None for anything else, such as a data set."""
    arrays = keras.tree.flatten(inputs)
    are_arrays = all(isinstance(x, np.ndarray) and x.ndim for x in arrays)
    counts = {len(array) for array in arrays} if are_arrays else set()
    return counts.pop() if len(counts) == 1 else None


@contextlib.contextmanager
def explaining() -> Iterator[None]:
    """Within this block JAX' error about a batch that it cannot divide is explained.

    Raises:
        ValueError: Instead of that error.
    """
    try:
        yield
    except ValueError as error:
        if type(error).__name__ != "IndivisibleError":
            raise
        raise ValueError(
            f"Each batch must have a multiple of {row_devices()} rows, which the "
            "devices of the distribution share: batch the data set with "
            "`drop_remainder=True`, or pass it through `data.split_batches`, whose "
            "devices each get a whole batch that they cannot share. Load the model "
            f"again before its next use. Received: {error}"
        ) from error
