"""`MultiHeadAttention.from_keras`: the weights of Keras' layer, laid out as ours."""

import math

import keras
import numpy as np
from keras import ops

from keras_attn.layers.attention.multi_head_checks import check_keras_layer

# Arguments of Keras' layer that ours has under the same names.
_SHARED = """num_heads key_dim value_dim dropout use_bias use_gate output_shape
attention_axes sliding_window kernel_initializer bias_initializer kernel_regularizer
bias_regularizer activity_regularizer kernel_constraint bias_constraint seed name dtype
trainable""".split()


def from_keras(
    cls,
    layer: keras.layers.MultiHeadAttention,
    *,
    self_attention: bool = False,
    **kwargs,
):
    """A layer with the configuration and the weights of one of Keras.

    Args:
        cls: The class of the new layer.
        layer: The layer of Keras, which is built.
        self_attention: Whether the new layer is called with only a query, where Keras'
            is called with the same tensor twice. Its three kernels are then one.
        **kwargs: Arguments that are to differ, such as `name`.

    Returns:
        A built layer; without `self_attention` it is called as Keras' is.

    Raises:
        TypeError: If `layer` is another layer.
        ValueError: If it is not built, or quantized, or has inputs of different widths
            though `self_attention` is given.
    """
    widths = check_keras_layer(layer, self_attention)
    config = {x: y for x, y in layer.get_config().items() if x in _SHARED}
    made = cls.from_config({**config, **kwargs})
    query, key, value = [(None, None, width) for width in widths]
    made.build(query, *(() if self_attention else (value, key)))
    parts = [layer.query_dense, layer.key_dense, layer.value_dense]
    if self_attention:
        made.query_key_value.kernel.assign(_joined([_kernel(x) for x in parts]))
        if made.query_key_value.bias is not None:
            made.query_key_value.bias.assign(_joined([_bias(x) for x in parts]))
        pairs = []
    else:
        pairs = [*zip((made.query, made.key, made.value), parts, strict=True)]
    if made.use_gate:
        pairs.append((made.gate, layer._gate_dense))
    for ours, theirs in pairs:
        ours.kernel.assign(_kernel(theirs))
        if ours.bias is not None:
            ours.bias.assign(_bias(theirs))
    output = made.output_projection
    kernel = ops.convert_to_numpy(layer.output_dense.kernel)
    output.kernel.assign(kernel.reshape(output.kernel.shape))
    if output.bias is not None:
        output.bias.assign(_bias(layer.output_dense))
    return made


def _kernel(dense):
    """(D, N, H) -> (D, N·H)."""
    kernel = ops.convert_to_numpy(dense.kernel)
    return kernel.reshape(len(kernel), -1)


def _bias(dense):
    """(N, H) -> (N·H,)."""
    bias = ops.convert_to_numpy(dense.bias)
    return bias.reshape(math.prod(bias.shape))


def _joined(arrays):
    return np.concatenate(arrays, axis=-1)
