"""Patch merging: half the rows and columns of tokens, twice the width.

Legend: B batch, R rows, S columns, D width.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_positive_or_none, check_rank
from keras_attn.layers.adaptation.keras_layers import Dense
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.normalization.layer_normalization import LayerNormalization


@keras.saving.register_keras_serializable("keras_attn")
class PatchMerging(BaseLayer):
    """`norm([x_00; x_10; x_01; x_11]) W`, for each 2 × 2 square of tokens.

    x_ij is the token in row i, column j of the square. An odd number of rows or columns
    is padded with one row or column of zeros.

    Args:
        output_dim: Width of the output. Default: 2D.
        layer_norm_epsilon: Added to the variance.
        kernel_initializer: Initializer of W.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, R, S, D), with known R and S.

    Returns:
        (B, ⌈R/2⌉, ⌈S/2⌉, output_dim).

    Reference:
        Liu et al. 2021, section 3.1 (arXiv:2103.14030).
    """

    def __init__(
        self,
        output_dim: int | None = None,
        *,
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.output_dim = check_positive_or_none("output_dim", output_dim)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape):
        width = inputs_shape[-1]
        merged = (None, None, None, 4 * width)
        self.norm = LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
        )
        self.norm.build(merged)
        self.reduction = Dense(
            self.output_dim or 2 * width,
            use_bias=False,
            kernel_initializer=independent_copy(self.kernel_initializer),
            dtype=self.dtype_policy,
            name="reduction",
        )
        self.reduction.build((None, 4 * width))

    def call(self, inputs):
        self.compute_output_shape(inputs.shape)  # Checks the shape.
        _, rows, columns, width = inputs.shape
        if rows % 2 or columns % 2:
            padding = ((0, 0), (0, rows % 2), (0, columns % 2), (0, 0))
            inputs = ops.pad(inputs, padding)
            rows, columns = rows + rows % 2, columns + columns % 2
        squares = ops.reshape(inputs, (-1, rows // 2, 2, columns // 2, 2, width))
        # Columns before rows, the order of the published weights.
        merged = ops.transpose(squares, (0, 1, 3, 4, 2, 5))
        merged = ops.reshape(merged, (-1, rows // 2, columns // 2, 4 * width))
        # Flattened: a batched product with one shared matrix is slower.
        outputs = self.reduction(ops.reshape(self.norm(merged), (-1, 4 * width)))
        return ops.reshape(outputs, (-1, *merged.shape[1:3], outputs.shape[-1]))

    def compute_output_shape(self, inputs_shape):
        check_rank("inputs", inputs_shape, 4, "(batch, rows, columns, width)")
        batch, rows, columns, width = inputs_shape
        return batch, -(-rows // 2), -(-columns // 2), self.output_dim or 2 * width
