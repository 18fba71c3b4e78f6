"""Pads the keys or values of a prompt to the length of a cache.

Legend: B batch, G key/value heads, P prompt length, L length of the cache, H head size.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_positive, check_rank
from keras_attn.layers.base import BaseLayer


# Saved files use its former name.
@keras.saving.register_keras_serializable("keras_attn", "CacheRoom")
class PadCache(BaseLayer):
    """Pads keys or values with zeros, so that decoding steps can write into them.

    Args:
        length: L, the maximum length of prompt and continuation together.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Keys or values of the prompt, (B, G, P, H), P ≤ L.

    Returns:
        (B, G, L, H).

    Raises:
        ValueError: If `inputs` does not have 4 axes, or the prompt is longer than the
            cache.
    """

    def __init__(self, length: int, **kwargs):
        super().__init__(**kwargs)
        self.length = check_positive("length", length)

    def call(self, inputs):
        self.compute_output_shape(inputs.shape)  # Checks the shape.
        batch, groups, _, size = ops.shape(inputs)
        empty = ops.zeros((batch, groups, self.length, size), inputs.dtype)
        return ops.slice_update(empty, (0, 0, 0, 0), inputs)

    def compute_output_shape(self, inputs_shape):
        check_rank("inputs", inputs_shape, 4, "(batch, key/value heads, length, size)")
        if inputs_shape[2] is not None and inputs_shape[2] > self.length:
            raise ValueError(
                "`inputs` must not be longer than the cache: shorten the prompt, or "
                f"use a larger `length`. Received: prompt length={inputs_shape[2]}, "
                f"length={self.length}"
            )
        return (*inputs_shape[:2], self.length, inputs_shape[3])
