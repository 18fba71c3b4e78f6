"""Which backend Keras runs on, on which devices, and what it is tracing."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras


@contextlib.contextmanager
def thread_setting(local: threading.local, name: str, value: Any) -> Iterator[None]:
    """Within this block an attribute of a thread's data has a value; None outside.

    Args:
        local: The thread's data.
        name: Of the attribute.
        value: Of the attribute.
    """
    before = getattr(local, name, None)
    setattr(local, name, value)
    try:
        yield
    finally:
        setattr(local, name, before)


def is_tensorflow() -> bool:
    """Whether TensorFlow is Keras' backend."""
    return keras.backend.backend() == "tensorflow"


def require_tensorflow(feature: str) -> None:
    """Raises unless TensorFlow is Keras' backend.

    Args:
        feature: What needs TensorFlow, as the subject of the message.

    Raises:
        RuntimeError: If the backend is not TensorFlow. The message names the feature
            and the backend.
    """
    if not is_tensorflow():
        raise RuntimeError(
            f"{feature} needs Keras' TensorFlow backend: set KERAS_BACKEND=tensorflow "
            f"before Keras is imported. Received: backend={keras.backend.backend()!r}"
        )


def is_tensorflow_on_cpu() -> bool:
    """Whether TensorFlow is the backend and sees no device but CPUs."""
    if not is_tensorflow():
        return False
    import tensorflow as tf

    return all(x.device_type == "CPU" for x in tf.config.get_visible_devices())


def is_tracing() -> bool:
    """Whether TensorFlow is the backend and is tracing a `tf.function`."""
    if not is_tensorflow():
        return False
    import tensorflow as tf

    return tf.inside_function()


def is_compiled_by_xla() -> bool:
    """Whether XLA compiles the function that TensorFlow is tracing.

    True inside `tf.function(jit_compile=True)`, at any depth, and therefore in the
    steps of a Keras model with `jit_compile=True`.
    """
    if not is_tensorflow():
        return False
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


def has_distribution_strategy() -> bool:
    """Whether TensorFlow is the backend and runs in a `tf.distribute` strategy."""
    if not is_tensorflow():
        return False
    import tensorflow as tf

    return tf.distribute.has_strategy()


def infers_shapes() -> bool:
    """Whether Keras computes only shapes, as when a functional model is built."""
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    return in_symbolic_scope()


def is_differentiated_twice(tensors) -> bool:
    """Whether several of TensorFlow's tapes, or a persistent one, watch a tensor."""
    from tensorflow.python.ops import gradients_util

    found = gradients_util.PossibleTapeGradientTypes(tensors)
    return found == gradients_util.POSSIBLE_GRADIENT_TYPES_HIGHER_ORDER


def has_fixed_shape(tensor) -> bool:
    """Whether all axes of a tensor are known, except perhaps the batch.

    False for rank 2: its first axis may be the tokens of a batch, flattened, whose
    number changes from batch to batch. An unknown length is None, or a symbol while
    Keras infers shapes on JAX.
    """
    return len(tensor.shape) > 2 and all(isinstance(n, int) for n in tensor.shape[1:])
