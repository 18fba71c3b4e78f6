"""Room for what is yet to be written, behind what a prompt left in a cache.

Legend: B batch, G key/value heads, P prompt length, L length of the cache, H head size.
"""

import keras
from keras import ops

from keras_attn.checks import check_positive, check_rank


@keras.saving.register_keras_serializable("keras_attn")
class CacheRoom(keras.layers.Layer):
    """Lengthens a key/value cache with zeros, so that steps can write into it.

    Args:
        length: L, the most tokens that prompt and continuation have together.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Keys and values of the prompt, (B, 2, G, P, H), P ≤ L.

    Returns:
        (B, 2, G, L, H).

    Raises:
        ValueError: for another rank, or a prompt longer than the cache.
    """

    def __init__(self, length, **kwargs):
        super().__init__(**kwargs)
        self.length = check_positive("length", length)

    def call(self, inputs):
        check_rank("inputs", inputs, 5, "(batch, 2, key/value heads, length, key_dim)")
        if inputs.shape[3] is not None and inputs.shape[3] > self.length:
            raise ValueError(
                "`inputs` are longer than the cache; shorten the prompt, or build with "
                f"a larger `length`. Received: prompt length={inputs.shape[3]}, "
                f"length={self.length}"
            )
        batch, pair, groups, _, size = ops.shape(inputs)
        empty = ops.zeros((batch, pair, groups, self.length, size), inputs.dtype)
        return ops.slice_update(empty, (0, 0, 0, 0, 0), inputs)

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:3], self.length, inputs_shape[4])

    def get_config(self):
        return {**super().get_config(), "length": self.length}
