"""Element-wise functions that XLA fuses."""

import numpy as np
import pytest
from keras import ops
from model_cases import numpy

from keras_attn.kernels.runtime import is_tensorflow_on_cpu
from keras_attn.kernels.xla import xla_fused


@xla_fused
def scaled(x, y):
    """Two operations."""
    return ops.exp(x) * y


X, Y = np.random.default_rng(0).normal(size=(2, 3, 5)).astype("float32")


def test_eager_calls_run_the_function_unchanged():
    np.testing.assert_allclose(scaled(ops.array(X), ops.array(Y)), np.exp(X) * Y, 1e-6)


@pytest.mark.skipif(
    not is_tensorflow_on_cpu(),
    reason="functions are compiled on TensorFlow on a CPU only",
)
class TestInAGraph:
    def call(self, **options):
        import tensorflow as tf

        return tf.function(lambda x, y: scaled(x, y), **options)

    @pytest.mark.parametrize("jit_compile", [False, True])
    def test_it_computes_the_same(self, jit_compile):
        call = self.call(jit_compile=jit_compile)
        np.testing.assert_allclose(call(X, Y), np.exp(X) * Y, 1e-6)
        np.testing.assert_allclose(call(X[:2], Y[:2]), np.exp(X[:2]) * Y[:2], 1e-6)

    def test_it_is_one_operation_compiled_once_for_each_shape(self):
        import tensorflow as tf

        specification = tf.TensorSpec((None, 5))
        names = []
        for _ in range(2):
            call = self.call().get_concrete_function(specification, specification)
            kinds = {node.type for node in call.graph.get_operations()}
            assert not kinds & {"Exp", "Mul"}
            definition = call.graph.as_graph_def()
            names.append([f.signature.name for f in definition.library.function])
        assert names[0] == names[1] and len(names[0]) == 1

    def test_outside_a_function_the_graph_has_every_operation(self):
        import tensorflow as tf

        with tf.Graph().as_default() as graph:
            given = tf.compat.v1.placeholder(tf.float32, (3, 5))
            scaled(given, given)
        assert {"Exp", "Mul"} <= {node.type for node in graph.get_operations()}

    def test_it_has_a_gradient(self):
        import tensorflow as tf

        call = self.call()
        with tf.GradientTape() as tape:
            x = tf.constant(X)
            tape.watch(x)
            total = tf.reduce_sum(call(x, Y))
        (gradient,) = tape.gradient(total, [x])
        np.testing.assert_allclose(numpy(gradient), np.exp(X) * Y, 1e-6)
