"""Functions with a gradient of their own, which hold nothing else in memory."""

import contextlib
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_attn.kernels.runtime import is_tensorflow

# Of a function whose parts have random numbers of their own.
NO_SECOND_ORDER = (
    "Second-order gradients of the attention of long sequences, which are attended to "
    "in parts, need probabilities without dropout: set the dropout of the attention "
    "to 0."
)


def with_gradient(
    forward: Callable, backward: Callable, whole: Callable, *inputs
) -> Any:
    """The outputs of `forward`, whose gradient is computed by `backward`.

    On TensorFlow the gradient has a gradient too, computed with `whole`; on JAX it has
    one where its loops do.

    Args:
        forward: From the inputs to the outputs, a tensor, and what else `backward`
            needs.
        backward: From the outputs, what `forward` returned besides, the gradient of the
            outputs and the inputs, to the gradients of the inputs.
        whole: From the inputs to the same outputs, by operations that can be
            differentiated any number of times.
        *inputs: Tensors.
    """

    @ops.custom_gradient
    def call(*inputs):
        with _unrecorded():
            outputs, saved = forward(*inputs)

        def gradient(upstream):
            def compute(upstream, *inputs):
                return backward(outputs, saved, upstream, *inputs)

            if not is_tensorflow():
                return compute(upstream, *inputs)
            return _differentiable(compute, whole)(upstream, *inputs)

        return outputs, gradient

    return call(*inputs)


def _differentiable(compute, whole):
    """A gradient that TensorFlow can differentiate, with `whole`."""
    import tensorflow as tf

    @tf.custom_gradient
    def first_order(upstream, *inputs):
        # An eager gradient may need a tape of its own.
        with contextlib.nullcontext() if tf.executing_eagerly() else _unrecorded():
            gradients = tuple(compute(upstream, *inputs))

        def second_order(*upstreams):
            sources, zero = [upstream, *inputs], tf.UnconnectedGradients.ZERO
            with tf.GradientTape() as outer:
                outer.watch(sources)
                with tf.GradientTape() as inner:
                    inner.watch(inputs)
                    outputs = whole(*inputs)
                found: Any = inner.gradient(
                    outputs, list(inputs), upstream, unconnected_gradients=zero
                )
            return outer.gradient(
                found, sources, list(upstreams), unconnected_gradients=zero
            )

        return gradients, second_order

    return first_order


@contextlib.contextmanager
def _unrecorded():
    """Within this block TensorFlow's tapes record nothing.

    `tf.custom_gradient` has them record the function as a whole, and each of its
    operations besides: in an eager call all scores would stay in memory, and in a graph
    two tapes differentiate a compiled function as soon as it is called.
    """
    if not is_tensorflow():
        yield
        return
    from tensorflow.python.eager import record

    with record.stop_recording():
        yield
