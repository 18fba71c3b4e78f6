"""Functions whose intermediate values are computed again for the gradient."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_attn.kernels.runtime import is_tensorflow


def recomputed(function: Callable, *tensors) -> Any:
    """`function(*tensors)`; on JAX the gradient needs only the tensors.

    XLA may keep an intermediate value several times, in the shape and the dtype of each
    operation that reads it. TensorFlow without XLA keeps it once, and computing it
    again would take time; there nothing is.

    Args:
        function: A pure function of tensors.
        *tensors: Its arguments.
    """
    if is_tensorflow() or any(map(keras.utils.is_keras_tensor, tensors)):
        return function(*tensors)
    import jax

    return jax.checkpoint(function)(*map(ops.convert_to_tensor, tensors))
