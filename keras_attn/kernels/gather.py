"""Gathers rows within each example, so that devices need no rows of each other.

A gather over the rows of the whole batch, flattened, needs the rows of all devices in
each of them: XLA does not know that an index never leaves its example.
"""

import threading
from contextlib import AbstractContextManager

from keras import ops

from keras_attn.kernels.runtime import is_tensorflow, thread_setting

_local = threading.local()


def flat_gathers() -> AbstractContextManager[None]:
    """Within this block `gather_rows` is one gather over the rows of the batch.

    LiteRT and ONNX have an operator for it, and none for a gather within each example.
    """
    return thread_setting(_local, "flat", True)


def gather_rows(values, indices):
    """The rows of each example at its own indices.

    Args:
        values: (B, N, …), with known sizes but B.
        indices: (B, K…) int32, with any number of axes, in [0, N).

    Returns:
        (B, K…, …).
    """
    if getattr(_local, "flat", False):
        return _flat(values, indices)
    if is_tensorflow():
        import tensorflow as tf

        return tf.gather(values, indices, batch_dims=1)
    import jax

    def of_example(rows, indices):
        return rows.at[indices].get(mode="clip")

    return jax.vmap(of_example)(*map(ops.convert_to_tensor, (values, indices)))


def _flat(values, indices):
    count = values.shape[1]
    rows = ops.reshape(values, (-1, *values.shape[2:]))
    first = ops.arange(ops.shape(indices)[0], dtype="int32") * count
    first = ops.reshape(first, (-1, *(1 for _ in indices.shape[1:])))
    return ops.take(rows, indices + first, axis=0)
