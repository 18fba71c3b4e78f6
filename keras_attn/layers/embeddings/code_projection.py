"""Projects discrete codes, or a distribution over codes, to vectors.

Legend: V vocabulary, D width.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_positive
from keras_attn.checks.indices import check_indices
from keras_attn.layers.adaptation.kernel_layer import KernelLayer
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy
from keras_attn.ops import project
from keras_attn.ops.weight_products import kernel_rows


@keras.saving.register_keras_serializable("keras_attn")
class CodeProjection(KernelLayer, BaseLayer):
    """`E[code] + b` for codes, `Σ_v w_v E[v] + b` for weights of codes.

    Both are the same for a one-hot w, but codes take no product with V rows.

    Args:
        vocabulary_size: V.
        units: D.
        kernel_initializer: Initializer of E, (V, D).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Integers in [0, V), (...), or weights (..., V).

    Returns:
        (..., D).

    Raises:
        ValueError: If a size is not a positive integer, or, in an eager call, a code is
            out of range.
    """

    def __init__(
        self,
        vocabulary_size: int,
        units: int,
        *,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = check_positive("vocabulary_size", vocabulary_size)
        self.units = check_positive("units", units)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.vocabulary_size, self.units),
            initializer=independent_copy(self.kernel_initializer),
        )
        self.bias = self.add_weight(
            name="bias", shape=(self.units,), initializer="zeros"
        )

    @property
    def index_ranges(self):
        """Range of valid codes, `(start, stop)`, excluding `stop`."""
        return {"inputs": (0, self.vocabulary_size)}

    def call(self, inputs):
        if not _are_codes(inputs):
            return project(inputs, self.kernel, self.bias)
        check_indices("inputs", inputs, self.index_ranges["inputs"])
        return ops.add(kernel_rows(self.kernel, inputs), self.bias)

    def compute_output_spec(self, inputs):
        shape = inputs.shape if _are_codes(inputs) else inputs.shape[:-1]
        return keras.KerasTensor((*shape, self.units), self.compute_dtype)


def _are_codes(inputs):
    return keras.backend.is_int_dtype(inputs.dtype)
