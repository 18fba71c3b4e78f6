"""A sum of token vectors with a learned weight for each position.

Legend: B batch, T length, D width.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_positive
from keras_attn.checks.inputs import check_length
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.embeddings.token_pooling import (
    check_token_shapes,
    mask_of_tokens,
)
from keras_attn.layers.initializers import independent_copy
from keras_attn.ops import row_positions


@keras.saving.register_keras_serializable("keras_attn")
class PositionWeightedSum(BaseLayer):
    """`Σ_t w_t x_t + b`: one weight for each position, the same for all units.

    Args:
        max_sequence_length: Number of positions with a weight.
        kernel_initializer: Initializer of w. By default the layer starts as a plain
            sum.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True = a real token. Positions count from the first real
            token. Default: the Keras mask of the inputs, or else all tokens are real.

    Returns:
        (B, D).

    Raises:
        ValueError: If `inputs` does not have 3 axes, or has more tokens than
            `max_sequence_length`.

    Masking:
        A padded token adds nothing. A row without a real token gives b.

    Reference:
        Xu and Saenko 2016, equation 5 (arXiv:1511.05234).
    """

    def __init__(
        self,
        max_sequence_length: int,
        *,
        kernel_initializer: Initializer = "ones",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_sequence_length = check_positive(
            "max_sequence_length", max_sequence_length
        )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    @property
    def length_ranges(self):
        """Range of valid lengths, `(start, stop)`, excluding `stop`."""
        return {"inputs": (1, self.max_sequence_length + 1)}

    def build(self, inputs_shape, padding_mask_shape=None):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.max_sequence_length,),
            initializer=independent_copy(self.kernel_initializer),
        )
        self.bias = self.add_weight(
            name="bias", shape=(inputs_shape[-1],), initializer="zeros"
        )

    def call(self, inputs, padding_mask=None, mask=None):
        padding_mask = mask_of_tokens(inputs, padding_mask, mask)
        check_length("inputs", inputs.shape, (0, self.max_sequence_length + 1))
        # In a graph of unknown length, padding may extend beyond the table.
        positions = ops.minimum(
            row_positions(padding_mask), self.max_sequence_length - 1
        )
        weights = ops.take(self.kernel, positions, axis=0)
        weights = ops.where(ops.cast(padding_mask, "bool"), weights, 0)  # (B, T)
        row = ops.expand_dims(ops.cast(weights, inputs.dtype), 1)
        return ops.add(ops.squeeze(ops.matmul(row, inputs), 1), self.bias)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, inputs_shape, padding_mask_shape=None):
        check_token_shapes(inputs_shape, padding_mask=padding_mask_shape)
        return inputs_shape[0], inputs_shape[2]
