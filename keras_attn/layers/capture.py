"""Running a model once to record its attention."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn.layers.keras_attention import keras_attention_recorded
from keras_attn.layers.recorder import record_attention_scores


def capture_attention(model: keras.Model, inputs) -> dict[str, np.ndarray]:
    """Runs a model on `inputs` and returns the attention scores of its layers.

    The model need not be rebuilt or configured: it may be compiled, fitted or loaded,
    in any precision. Weights, metrics and random generators do not change.

    Keras' own `MultiHeadAttention`, `GroupQueryAttention`, `Attention` and
    `AdditiveAttention` are recorded too, and KerasHub's models: those made of them,
    such as BERT, GPT-2 and ViT, and those whose attention has a `Softmax` layer, such
    as Llama. A query whose keys are all masked has zeros.

    Args:
        model: A Keras model with at least one attention layer.
        inputs: Inputs of the model: an array, or a list or dictionary of arrays, batch
            first.

    Returns:
        Path of each attention layer to its scores, (B, heads, T, S), float32
        probabilities, in the order in which the layers were called. A layer called
        again, or another one with the same path, gets `path:1`, `path:2`, …

    Raises:
        TypeError: If `model` is not a Keras model.
        ValueError: If nothing was recorded, or `inputs` are symbolic; also any error
            that the model raises for `inputs`.

    Example:
        ```python
        import numpy as np
        from keras_attn import models, viz

        vit = models.build_vit(num_layers=2, hidden_dim=64, num_heads=4, image_size=32)
        scores = viz.capture_attention(vit, np.zeros((1, 32, 32, 3)))
        scores["block_1/attention"].shape  # (1, 4, 5, 5): four patches and the class.
        ```
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` must be a `keras.Model`. Received: model={model!r} "
            f"of type {type(model).__name__}"
        )
    symbols = any(map(keras.backend.is_keras_tensor, keras.tree.flatten(inputs)))
    if symbols or tf.inside_function():
        raise ValueError(
            "`inputs` must be concrete values, neither `keras.Input` nor the symbols "
            "of a compiled function; call `capture_attention` outside of "
            f"`tf.function`. Received: inputs={inputs!r}"
        )
    if not model.built:
        # Building calls the layers with symbolic tensors, which must not be recorded.
        model(inputs, training=False)
    with record_attention_scores() as recorded, keras_attention_recorded(model):
        model(inputs, training=False)
    if not recorded:
        raise ValueError(
            "`model` must have an attention layer of `keras_attn.layers` or of Keras, "
            "or one with a `Softmax` layer; others do not record scores, nor does what "
            "is compiled inside of the model, as by `tf.function`, or by a "
            f"`RematScope` on JAX. Received: model={model.name!r} with the layers "
            f"{[layer.name for layer in model.layers]}"
        )
    return {
        path: np.asarray(ops.convert_to_numpy(ops.cast(scores, "float32")))
        for path, scores in recorded.items()
    }
