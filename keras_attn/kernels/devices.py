"""Which devices compute, and what each of them computes by itself.

The condition of a loop is one value for all devices: if it depends on the data, XLA
exchanges it in each iteration. And XLA cannot divide a kernel of Pallas at all.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras

from keras_attn.kernels.runtime import is_tensorflow, thread_setting

_local = threading.local()


def divided_rows(mesh: Any, axis: str) -> AbstractContextManager[None]:
    """Within this block the rows of a batch are divided among the devices of a mesh.

    Args:
        mesh: A `jax.sharding.Mesh`.
        axis: The axis of the mesh that divides the rows.
    """
    return thread_setting(_local, "division", (mesh, axis))


def platform() -> str:
    """The kind of device that Keras computes on: "cpu", "gpu" or "tpu"."""
    if is_tensorflow():
        import tensorflow as tf

        kinds = {x.device_type.lower() for x in tf.config.get_visible_devices()}
        return next((kind for kind in ("tpu", "gpu") if kind in kinds), "cpu")
    division = _division()
    if division is not None:
        return division[0].devices.flat[0].platform
    import jax

    return jax.default_backend()


def on_each_device(function: Callable, *tensors, has_heads: bool = False) -> Any:
    """`function(*tensors)`, computed by each device from its own rows.

    On JAX, where a `keras.distribution` divides the batch. TensorFlow's strategies run
    the whole model on each device as it is.

    Args:
        function: From tensors (B, …) to a tensor (B, …); a row of the result depends on
            no other row of the tensors.
        *tensors: (B, …), each with the same B.
        has_heads: Whether the second axis of the result, and of all tensors of its
            rank, are heads that depend on no other head. They are then divided by the
            mesh's other axis, which divides weights by heads.
    """
    division = None if is_tensorflow() else _division()
    rows = tensors[0].shape[0]
    if division is None or not isinstance(rows, int):
        return function(*tensors)
    import jax
    from jax.sharding import PartitionSpec

    mesh, rows_axis = division
    heads_axis = None
    if has_heads:
        heads = [x.shape[1] for x in tensors if len(x.shape) == len(tensors[0].shape)]
        others = (axis for axis in mesh.axis_names if axis != rows_axis)
        heads_axis = next(others, None)
        if heads_axis and any(count % mesh.shape[heads_axis] for count in heads):
            heads_axis = None
    if rows % mesh.shape[rows_axis]:
        rows_axis = None
    by_heads = PartitionSpec(rows_axis, heads_axis)
    specs = tuple(
        by_heads if len(x.shape) == len(tensors[0].shape) else PartitionSpec(rows_axis)
        for x in tensors
    )
    return jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=by_heads, check_vma=False
    )(*tensors)


def _division():
    """The mesh and its axis that divides batches; None without such a mesh."""
    division = getattr(_local, "division", None)
    distribution = keras.distribution.distribution()
    if division is None and distribution is not None:
        axis = distribution.batch_dim_name
        mesh = distribution.device_mesh
        if axis in mesh.axis_names:
            division = (mesh.backend_mesh, axis)
    return division
