"""Element-wise operations that XLA fuses and TensorFlow would run one by one."""

import functools

from keras_attn.kernels.runtime import is_tensorflow_on_cpu, is_tracing


def xla_fused(function):
    """Compiles a function with XLA when it is called inside a TensorFlow graph on CPU.

    Run one by one, each element-wise operation reads and writes whole tensors, so a
    dozen of them are bound by memory bandwidth; fused, they read and write once. XLA
    compiles again for every new shape, such as an epoch's smaller last batch, so use it
    only for tensors that satisfy `has_fixed_shape`. In eager calls, on accelerators and
    on JAX the function runs unchanged.

    Args:
        function: A stateless function from tensors to tensors, written in `keras.ops`.

    Returns:
        A function with the same arguments and results.
    """

    @functools.wraps(function)
    def call(*tensors):
        if not (is_tensorflow_on_cpu() and is_tracing()):
            return function(*tensors)
        specifications = tuple((tuple(x.shape), x.dtype) for x in tensors)
        return _compiled(function, specifications)(*tensors)

    return call


@functools.cache
def _compiled(function, specifications):
    """One compiled function for all layers of the same size."""
    import tensorflow as tf

    with tf.init_scope():
        compiled = tf.function(function, jit_compile=True, autograph=False)
        return compiled.get_concrete_function(
            *(tf.TensorSpec(shape, dtype) for shape, dtype in specifications)
        )
