"""Functions that TensorFlow's graphs call: fused by XLA, or traced once for all."""

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
        return _make_graph(function, tensors, jit_compile=True)(*tensors)

    return call


def traced_once(function):
    """Traces a function once for all calls in TensorFlow graphs, of any lengths.

    Args:
        function: As for `xla_fused`.

    Returns:
        A function with the same arguments and results.
    """

    @functools.wraps(function)
    def call(*tensors):
        if not is_tracing():
            return function(*tensors)
        return _make_graph(function, tensors, jit_compile=None)(*tensors)

    return call


def _make_graph(function, tensors, jit_compile):
    specifications = tuple((tuple(x.shape), x.dtype) for x in tensors)
    return _traced(function, specifications, jit_compile)


@functools.cache
def _traced(function, specifications, jit_compile):
    """One graph for all layers of the same size."""
    import tensorflow as tf

    with tf.init_scope():
        compiled = tf.function(function, jit_compile=jit_compile, autograph=False)
        return compiled.get_concrete_function(
            *(tf.TensorSpec(shape, dtype) for shape, dtype in specifications)
        )
