"""A model's inference for this process, its weights made constants."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_attn.export.signatures import input_structure, is_declared
from keras_attn.kernels.runtime import require_tensorflow

# Of a graph, with its constants.
_LARGEST = 2**31


def freeze(model: keras.Model) -> Callable[[Any], Any]:
    """Compiles a model's inference, with the weights that it has now as constants.

    For a server on a CPU in bfloat16. oneDNN keeps matrices in an order of its own,
    into which TensorFlow brings variables at every call, constants once: a forward pass
    of BERT-base takes a third less, of ViT-B/16 a sixth less, in float32 no less
    (TensorFlow 2.21, AMX). It costs a start: with BERT-base the first call takes half a
    minute, and the process ten times the memory of the weights. What is assigned to
    weights later the function does not see: freeze the model again.

    Args:
        model: Functional or sequential, with less than 2 GB of weights.

    Returns:
        A function from what the model takes, arrays or tensors in batches of any size,
        to what it returns with `training=False`.

    Raises:
        TypeError: for a model that does not declare its inputs.
        ValueError: for more weights than a graph can hold.
        RuntimeError: on another backend than TensorFlow.

    Example:
        ```python
        keras.config.set_dtype_policy("bfloat16")
        encode = export.freeze(models.load_checkpoint("bert-base-uncased"))
        outputs = encode({"token_ids": ids, "padding_mask": mask, "segment_ids": types})
        ```
    """
    require_tensorflow("`freeze`")
    if not isinstance(model, keras.Model) or not is_declared(model):
        raise TypeError(
            "`model` must be a functional or sequential `keras.Model` that knows its "
            f"inputs. Received: model={model!r}"
        )
    values = [(weight, weight.numpy()) for weight in model.weights]
    size = sum(value.nbytes for _, value in values)
    if size >= _LARGEST:
        raise ValueError(
            "`model` must have less than 2 GB of weights, which is what a graph can "
            "hold; a half-precision dtype policy takes half. "
            f"Received: {size / 1e9:.1f} GB"
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
    values.clear()  # They are in the graph now.

    def frozen(inputs):
        return graph(
            keras.tree.map_structure(
                lambda spec, given: ops.convert_to_tensor(given, spec.dtype.name),
                specs,
                inputs,
            )
        )

    return frozen
