"""Token embeddings that are tied to the output layer.

Legend: B batch, T length, D width, V vocabulary.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.indices import check_indices
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers.adaptation.keras_layers import SavedByNumber
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy
from keras_attn.ops.weight_products import kernel_rows, product, transposed_product


@keras.saving.register_keras_serializable("keras_attn")
@described_as(keras.layers.ReversibleEmbedding)
class TokenEmbedding(SavedByNumber, keras.layers.ReversibleEmbedding):
    """One vector per token id; with `reverse=True`, one logit per token id.

    The same as Keras' `ReversibleEmbedding`, except that the reverse pass is one
    product of two matrices and returns float32 logits under every dtype policy, for a
    loss in float32.

    Args:
        input_dim: V.
        output_dim: D.
        reverse_dtype: Precision of the product of the reverse pass. Default: the
            layer's compute dtype; in bfloat16 it takes half the time of float32. In
            float16 a logit above 65504 is infinite, as in Keras' layers.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Token ids (B, T), or with `reverse` features (..., D).
        reverse: Whether to compute logits from features.

    Returns:
        (B, T, D), or with `reverse` logits (..., V) in float32.

    Raises:
        ValueError: If a token id is outside [0, V), in an eager call; a compiled graph
            does not check.

    Reference:
        Press and Wolf 2017, "Using the Output Embedding to Improve Language Models"
        (arXiv:1608.05859).
    """

    kernel_name = "_embeddings"

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        reverse_dtype: str | None = None,
        **kwargs,
    ):
        super().__init__(input_dim, output_dim, reverse_dtype=reverse_dtype, **kwargs)

    def add_weight(self, *args, **kwargs):
        # Rows are cast, not the table, and the product has a precision of its own.
        return super().add_weight(*args, **{**kwargs, "autocast": False})

    def call(self, inputs, reverse=False):
        if not reverse:
            check_indices("inputs", inputs, (0, self.input_dim))
            return self._embed(inputs)
        # Flattened: a batched product with one shared matrix is slower.
        flat = ops.reshape(inputs, (-1, inputs.shape[-1]))
        flat = ops.cast(flat, self.reverse_dtype or self.compute_dtype)
        logits = ops.cast(self._reversed(flat), "float32")
        if self.logit_soft_cap is not None:
            logits = self.logit_soft_cap * ops.tanh(logits / self.logit_soft_cap)
        return ops.reshape(logits, (*ops.shape(inputs)[:-1], self.input_dim))

    def _embed(self, token_ids):
        if isinstance(self._embeddings, keras.Variable):
            return super().call(token_ids)
        rows = kernel_rows(self._embeddings, token_ids)
        return ops.cast(rows, self.compute_dtype)

    def _reversed(self, features):
        if self.tie_weights:
            return transposed_product(features, self._embeddings)
        return product(features, ops.cast(self.reverse_embeddings, features.dtype))

    def compute_output_spec(self, inputs, reverse=False):
        spec = super().compute_output_spec(inputs, reverse=reverse)
        return keras.KerasTensor(spec.shape, "float32") if reverse else spec


@keras.saving.register_keras_serializable("keras_attn")
class OutputBias(BaseLayer):
    """Adds a learned bias to the logits of a `TokenEmbedding`.

    Args:
        bias_initializer: Initializer of the bias, (V,).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Logits (..., V).

    Returns:
        Logits (..., V).
    """

    def __init__(self, bias_initializer: Initializer = "zeros", **kwargs):
        # Logits are float32: a softmax over a vocabulary follows.
        super().__init__(**{"dtype": "float32", **kwargs})
        self.supports_masking = True
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, inputs_shape):
        self.bias = self.add_weight(
            name="bias",
            shape=(inputs_shape[-1],),
            initializer=independent_copy(self.bias_initializer),
        )

    def call(self, inputs):
        return ops.add(inputs, self.bias)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape
