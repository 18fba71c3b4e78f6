"""What TensorFlow's graph optimizer makes of the forms that `kernels` writes for it.

Nothing else would show that it no longer recognizes them: the numbers stay the same.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from keras_attn.kernels.layer_norm import has_onednn
from keras_attn.layers import FeedForward, LayerNormalization

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow" or not has_onednn(),
    reason="oneDNN's operations need TensorFlow on an x86 CPU",
)


def optimized_operations(function, inputs):
    """The operations that run, with what a product is fused with."""
    graph = tf.function(function, autograph=False)
    context.enable_run_metadata()
    graph(inputs)
    functions = context.export_run_metadata().function_graphs
    context.disable_run_metadata()
    found = []
    for node in functions[-1].post_optimization_graph.node:
        fused = node.attr["fused_ops"].list.s if "fused_ops" in node.attr else ()
        found.append("+".join([node.op, *(name.decode() for name in fused)]))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_feed_forward_network_is_two_operations(dtype):
    layer = FeedForward(16, activation="gelu", dtype=dtype)
    inputs = tf.cast(np.random.default_rng(0).normal(size=(2, 8, 8)), dtype)
    layer(inputs)
    operations = optimized_operations(layer, inputs)
    products = [name for name in operations if "MatMul" in name]
    assert products == ["_FusedMatMul+BiasAdd+GeluExact", "_FusedMatMul+BiasAdd"]
    assert not {"Mul", "Erf", "Erfc"} & {*operations}


@pytest.mark.parametrize("shape", [(6, 8), (2, 6, 8), (2, 3, 4, 8)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layer_norm_is_one_operation(shape, dtype):
    layer = LayerNormalization(dtype=dtype)
    inputs = tf.cast(np.random.default_rng(0).normal(size=shape), dtype)
    expected = layer(inputs)
    operations = optimized_operations(layer, inputs)
    assert operations.count("_MklLayerNorm") == 1
    assert "FusedBatchNormV3" not in operations
    found = tf.function(layer, autograph=False)(inputs)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(
        tf.cast(found, "float32"), tf.cast(expected, "float32"), atol=tolerance
    )
