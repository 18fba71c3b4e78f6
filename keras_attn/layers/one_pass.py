"""Operations that XLA joins into one where TensorFlow runs the rest one by one."""

import functools

import keras


def in_one_pass(function):
    """The same function of tensors, compiled by XLA inside a TensorFlow graph on a CPU.

    There each element-wise operation reads and writes all of its tensors, and a dozen
    in a row wait for memory, not for arithmetic; compiled together they read and write
    once. XLA compiles anew for each shape, so this is for tensors that differ in their
    batch alone. An accelerator, JAX and an eager call get the function itself.

    Args:
        function: Of tensors and to tensors, on `keras.ops` alone and without a state.

    Returns:
        A function.
    """

    @functools.wraps(function)
    def call(*tensors):
        if not _is_in_a_graph_on_a_cpu():
            return function(*tensors)
        specifications = tuple((tuple(x.shape), x.dtype) for x in tensors)
        return _compiled(function, specifications)(*tensors)

    return call


def _is_in_a_graph_on_a_cpu():
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    devices = tf.config.list_physical_devices()
    return tf.inside_function() and all(x.device_type == "CPU" for x in devices)


@functools.cache
def _compiled(function, specifications):
    """Traced once for all layers of that size, of which each would compile it anew."""
    import tensorflow as tf

    with tf.init_scope():
        return tf.function(function, jit_compile=True).get_concrete_function(
            *(tf.TensorSpec(shape, dtype) for shape, dtype in specifications)
        )
