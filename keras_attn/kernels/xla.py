"""Operations that XLA joins into one where TensorFlow runs the rest one by one."""

import functools

import keras


def xla_fused(function):
    """The same function of tensors, compiled by XLA inside a TensorFlow graph on a CPU.

    There each element-wise operation reads and writes all of its tensors, and a dozen
    in a row wait for memory, not for arithmetic; compiled together they read and write
    once. XLA compiles anew for each shape, at least for an epoch's last batch where it
    is smaller, so this is for what `has_fixed_shape`. An accelerator, JAX and an eager
    call get the function itself.

    Args:
        function: Of tensors and to tensors, on `keras.ops` alone and without a state.

    Returns:
        A function.
    """

    @functools.wraps(function)
    def call(*tensors):
        if not (runs_on_cpu_alone() and is_in_a_graph()):
            return function(*tensors)
        specifications = tuple((tuple(x.shape), x.dtype) for x in tensors)
        return _compiled(function, specifications)(*tensors)

    return call


def has_fixed_shape(tensor) -> bool:
    """Whether a tensor's shape is known but for its batch.

    Two axes alone may be a batch of texts made flat, which has another size each time.
    """
    return len(tensor.shape) > 2 and None not in tensor.shape[1:]


def runs_on_cpu_alone() -> bool:
    """Whether Keras runs on TensorFlow, and that has nothing but a CPU."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return all(x.device_type == "CPU" for x in tf.config.get_visible_devices())


def is_in_a_graph() -> bool:
    """Whether TensorFlow is tracing a function."""
    import tensorflow as tf

    return tf.inside_function()


def is_in_xla() -> bool:
    """Whether the function that TensorFlow is tracing is one that XLA compiles.

    That is so inside `tf.function(jit_compile=True)`, at any depth, and therefore in
    the steps of a Keras model with `jit_compile=True`.
    """
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


@functools.cache
def _compiled(function, specifications):
    """Traced once for all layers of that size, of which each would compile it anew."""
    import tensorflow as tf

    with tf.init_scope():
        compiled = tf.function(function, jit_compile=True, autograph=False)
        return compiled.get_concrete_function(
            *(tf.TensorSpec(shape, dtype) for shape, dtype in specifications)
        )
