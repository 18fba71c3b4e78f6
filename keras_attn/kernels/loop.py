"""Loops whose iterations do not overlap, so that their tensors share memory.

In the loops of Keras, TensorFlow starts up to ten iterations before the first has
ended, as far as they do not depend on it, and then has ten times as many tensors in
memory.
"""

from typing import Any

from keras import ops

from keras_attn.kernels.runtime import is_tensorflow


def sequential_scan(body, state, count, output_dtype) -> tuple[tuple, Any]:
    """`state, output = body(index, *state)` for each index from 0, one at a time.

    Args:
        body: From an index and the state to the next state, a tuple, and an output
            (...), or a tuple of them.
        state: A tuple of tensors, or of blocks from `zero_blocks`.
        count: N, the number of iterations, known or not.
        output_dtype: Dtype of the outputs; a tuple if there are several.

    Returns:
        The last state, and the outputs (N, ...).
    """
    if not is_tensorflow():
        indices = ops.arange(count, dtype="int32")
        return ops.scan(lambda state, index: body(index, *state), state, indices)
    import tensorflow as tf

    def step(index, outputs, *state):
        state, output = body(index, *state)
        written = tf.nest.map_structure(
            lambda array, value: array.write(index, value), outputs, output
        )
        return (index + 1, written, *state)

    arrays = tf.nest.map_structure(
        lambda dtype: tf.TensorArray(dtype, size=count), output_dtype
    )
    _, outputs, *state = tf.while_loop(
        lambda index, *_: index < count,
        step,
        (0, arrays, *state),
        parallel_iterations=1,
    )
    outputs = tf.nest.map_structure(lambda array: array.stack(), outputs)
    return tuple(state), outputs


def sequential_loop(body, state, count) -> tuple:
    """`state = body(index, *state)` for each index from 0, one at a time.

    Args:
        body: From an index and the state to the next state, a tuple.
        state: A tuple of tensors, or of blocks from `zero_blocks`.
        count: The number of iterations, known or not.
    """
    if not is_tensorflow():
        import jax

        return jax.lax.fori_loop(0, count, lambda i, state: body(i, *state), state)
    import tensorflow as tf

    _, *state = tf.while_loop(
        lambda index, *_: index < count,
        lambda index, *state: (index + 1, *body(index, *state)),
        (0, *state),
        parallel_iterations=1,
    )
    return tuple(state)


def zero_blocks(count, shape, dtype) -> Any:
    """Blocks of zeros that a loop adds to in place.

    A tensor that a loop of TensorFlow updates in part is copied whole.

    Args:
        count: N, the number of blocks.
        shape: Shape of a block.
        dtype: Of the blocks.
    """
    zeros = ops.zeros((count, *shape), dtype)
    if not is_tensorflow():
        return zeros
    import tensorflow as tf

    blocks = tf.TensorArray(dtype, size=count, clear_after_read=False)
    return blocks.unstack(zeros)


def add_to_block(blocks, index, values) -> Any:
    """Blocks with the values added to one of them.

    Args:
        blocks: From `zero_blocks`.
        index: Of the block.
        values: (...), in the shape of the block.
    """
    if not is_tensorflow():
        return blocks.at[index].add(values.astype(blocks.dtype))
    values = ops.cast(values, blocks.dtype)
    return blocks.write(index, blocks.read(index) + values)


def stack_blocks(blocks) -> Any:
    """Blocks as one tensor, (N, ...)."""
    return blocks.stack() if is_tensorflow() else blocks
