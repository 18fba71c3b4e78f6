"""Inference with the weights as constants, in this process."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_attn.kernels.runtime import require_tensorflow
from keras_attn.models.parts.functional import input_structure, is_declared

# Size of a graph in bytes, protobuf's limit.
_LARGEST = 2**31


def freeze(model: keras.Model) -> Callable[[Any], Any]:
    """Compiles a model's inference with its current weights as constants.

    For serving in bfloat16 on a CPU. oneDNN stores matrices in its own layout, to which
    TensorFlow converts variables at every call but constants only once. This takes a
    third off a forward pass of BERT-base and a sixth off a forward pass of ViT-B/16,
    but nothing in float32 (TensorFlow 2.21, AMX). With BERT-base the first call takes
    half a minute, and the process ten times the memory of the weights. Later changes of
    the weights have no effect on the function: freeze the model again.

    Args:
        model: Functional or sequential, with less than 2 GB of weights.

    Returns:
        A function with the model's inputs, arrays or tensors in batches of any size,
        and its outputs with `training=False`.

    Raises:
        TypeError: If the model does not declare its inputs.
        ValueError: If the weights are too large for a graph.
        RuntimeError: If the backend is not TensorFlow.

    Example:
        ```python
        import numpy as np
        from keras_attn import export, models

        gpt = models.build_gpt(num_layers=1, hidden_dim=32, vocabulary_size=100)
        read = export.freeze(gpt)  # Faster; it does not follow later training.
        read({"token_ids": np.array([[5, 6]]), "padding_mask": np.ones((1, 2))})
        ```
    """
    require_tensorflow("`freeze`")
    if not isinstance(model, keras.Model) or not is_declared(model):
        raise TypeError(
            "`model` must be a functional or sequential `keras.Model` with declared "
            f"inputs. Received: model={model!r}"
        )
    values = [(weight, weight.numpy()) for weight in model.weights]
    size = sum(value.nbytes for _, value in values)
    if size >= _LARGEST:
        raise ValueError(
            "`model` must have less than 2 GB of weights, the limit of a graph; a "
            f"half-precision dtype policy halves them. Received: {size / 1e9:.1f} GB"
        )
    specs = keras.tree.map_structure(
        lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype),
        input_structure(model),
    )

    def call(inputs):
        constants = [(weight, tf.constant(value)) for weight, value in values]
        with keras.StatelessScope(state_mapping=constants):
            return model(inputs, training=False)

    graph = tf.function(call, autograph=False).get_concrete_function(specs)
    values.clear()  # The graph has its own copies.

    def frozen(inputs):
        return graph(
            keras.tree.map_structure(
                lambda spec, given: ops.convert_to_tensor(given, spec.dtype.name),
                specs,
                inputs,
            )
        )

    return frozen
