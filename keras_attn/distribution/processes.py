"""Several processes that train one model with JAX: which one this is, and who writes.

With every other backend there is one process, number 0. All processes run the same
program, because a computation on a distributed array is one that all take part in; only
the first one writes files.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np


def process_count() -> int:
    """The number of processes that train together."""
    if keras.backend.backend() != "jax":
        return 1
    import jax

    return jax.process_count()


def process_id() -> int:
    """The number of this process, from 0."""
    if keras.backend.backend() != "jax":
        return 0
    import jax

    return jax.process_index()


def device_count() -> int:
    """Devices of all processes among which batches are divided; 1 if none are."""
    distribution = keras.distribution.distribution()
    return 1 if distribution is None else distribution.device_mesh.devices.size


def is_writer() -> bool:
    """Whether this process writes the files of all: it is the first one."""
    return process_id() == 0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within this block one process works by itself, as when it saves a model.

    Variables that Keras makes in the block belong to this process. A distributed one
    would make it wait for the others, in which nothing happens.
    """
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


def event_writer(log_dir: str | os.PathLike) -> Any:
    """A writer of TensorBoard's event files, which writes nothing in other processes.

    Args:
        log_dir: Folder of the event file.
    """
    import tensorflow as tf

    if not is_writer():
        return tf.summary.create_noop_writer()
    return tf.summary.create_file_writer(os.fspath(log_dir))


def whole_array(variable: Any) -> np.ndarray:
    """The value of a variable or tensor, gathered from all processes if it is divided.

    Every process must call it for the same variables in the same order, also one that
    writes nothing.
    """
    value = getattr(variable, "value", variable)
    if keras.backend.backend() == "jax":
        import jax
        from jax.experimental import multihost_utils

        if (
            isinstance(value, jax.Array)
            and not value.is_fully_addressable
            and not value.is_fully_replicated
        ):
            value = multihost_utils.process_allgather(value, tiled=True)
    return keras.ops.convert_to_numpy(value)


def check_same(what: str, value: bytes | str) -> None:
    """Raises, in every process, unless all processes have the same value.

    It also waits for all of them.

    Args:
        what: What must be the same, for the message.
        value: Compared by its SHA-256.

    Raises:
        ValueError: If it is not the same.
    """
    if process_count() == 1:
        return
    from jax.experimental import multihost_utils

    data = value.encode() if isinstance(value, str) else value
    digest = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
    digests = np.asarray(multihost_utils.process_allgather(digest))
    unlike = np.flatnonzero((digests != digests[0]).any(axis=1))
    if unlike.size:
        raise ValueError(
            f"All processes must have the same {what}. Received: process 0 has other "
            f"than process {', '.join(map(str, unlike))}"
        )
