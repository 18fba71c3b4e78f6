"""A loop whose iterations do not overlap, so that their tensors share memory."""

from typing import Any

from keras import ops

from keras_attn.kernels.runtime import is_tensorflow


def sequential_loop(condition, body, state) -> Any:
    """`ops.while_loop`, one iteration at a time.

    TensorFlow starts up to ten iterations before the first has ended, as far as they do
    not depend on it, and then ten times as much memory is in use.

    Args:
        condition: From the state to a boolean.
        body: From the state to the next state.
        state: A tuple of tensors.

    Returns:
        The last state, a tuple.
    """
    if not is_tensorflow():
        return ops.while_loop(condition, body, state)
    import tensorflow as tf

    return tf.while_loop(condition, body, state, parallel_iterations=1)
