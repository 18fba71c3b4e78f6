"""A loop whose iterations do not overlap, so that their tensors share memory."""

from typing import Any

from keras import ops

from keras_attn.kernels.runtime import is_tensorflow


def sequential_scan(body, state, count, output_dtype) -> tuple[tuple, Any]:
    """`state, output = body(index, *state)` for each index from 0, one at a time.

    In the loops of Keras, TensorFlow starts up to ten iterations before the first has
    ended, as far as they do not depend on it, and then has ten times as many tensors in
    memory.

    Args:
        body: From an index and the state to the next state, a tuple, and an output
            (...).
        state: A tuple of tensors.
        count: N, the number of iterations, known or not.
        output_dtype: Dtype of the outputs.

    Returns:
        The last state, and the outputs (N, ...).
    """
    if not is_tensorflow():
        indices = ops.arange(count, dtype="int32")
        return ops.scan(lambda state, index: body(index, *state), state, indices)
    import tensorflow as tf

    def step(index, outputs, *state):
        state, output = body(index, *state)
        return (index + 1, outputs.write(index, output), *state)

    _, outputs, *state = tf.while_loop(
        lambda index, *_: index < count,
        step,
        (0, tf.TensorArray(output_dtype, size=count), *state),
        parallel_iterations=1,
    )
    return tuple(state), outputs.stack()
