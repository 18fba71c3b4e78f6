"""Computes on the rows of each device by itself, where XLA would connect devices.

The condition of a loop is one value for all devices: if it depends on the data, XLA
exchanges it in each iteration.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_attn.kernels.runtime import is_tensorflow

_local = threading.local()


@contextlib.contextmanager
def divided_rows(mesh: Any, axis: str) -> Iterator[None]:
    """Within it, the rows of a batch are those of the devices of a mesh.

    Args:
        mesh: A `jax.sharding.Mesh`.
        axis: The axis of the mesh that divides the rows.
    """
    before = getattr(_local, "division", None)
    _local.division = (mesh, axis)
    try:
        yield
    finally:
        _local.division = before


def on_each_device(function: Callable, *tensors) -> Any:
    """`function(*tensors)`, computed by each device from its own rows.

    On JAX, where a `keras.distribution` divides the batch. TensorFlow's strategies run
    the whole model on each device as it is.

    Args:
        function: From tensors (B, …) to a tensor (B, …); a row of the result depends on
            no other row of the tensors.
        *tensors: (B, …), each with the same B.
    """
    division = None if is_tensorflow() else _division()
    rows = tensors[0].shape[0]
    if division is None or not isinstance(rows, int):
        return function(*tensors)
    import jax
    from jax.sharding import PartitionSpec

    mesh, axis = division
    if rows % mesh.shape[axis]:
        return function(*tensors)
    rows = PartitionSpec(axis)
    return jax.shard_map(
        function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False
    )(*tensors)


def _division():
    """The mesh and its axis that divides batches; None if there is no such mesh."""
    division = getattr(_local, "division", None)
    distribution = keras.distribution.distribution()
    if division is None and distribution is not None:
        axis = distribution.batch_dim_name
        mesh = distribution.device_mesh
        if axis in mesh.axis_names:
            division = (mesh.backend_mesh, axis)
    return division
