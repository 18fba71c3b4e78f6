"""Which backend runs, and what it is tracing."""

import keras
import numpy as np
import pytest

from keras_attn.kernels import runtime

IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


def test_another_backend_than_tensorflow_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="`plan` needs .* TensorFlow.*backend='jax'"):
        runtime.require_tensorflow("`plan`")
    for is_so in (
        runtime.is_tensorflow,
        runtime.is_tensorflow_on_cpu,
        runtime.is_tracing,
        runtime.is_compiled_by_xla,
        runtime.has_distribution_strategy,
    ):
        assert not is_so()


@pytest.mark.skipif(not IS_TENSORFLOW, reason="asks TensorFlow")
def test_tracing_and_xla():
    import tensorflow as tf

    states = []

    def trace(x):
        states.append((runtime.is_tracing(), runtime.is_compiled_by_xla()))
        return x

    trace(tf.zeros(()))
    tf.function(trace)(tf.zeros(()))
    tf.function(trace, jit_compile=True)(tf.zeros(()))
    assert states == [(False, False), (True, False), (True, True)]


def test_a_fixed_shape_has_three_axes_and_an_unknown_batch_at_most():
    assert runtime.has_fixed_shape(np.zeros((2, 3, 5)))
    assert not runtime.has_fixed_shape(np.zeros((2, 3)))
    assert runtime.has_fixed_shape(keras.KerasTensor((None, 3, 5)))
    assert not runtime.has_fixed_shape(keras.KerasTensor((2, None, 5)))
