"""Where numbers must not be in half precision: softmax, normalization, logits.

In mixed precision a layer computes in float16 or bfloat16. Exponentials, variances and
losses lose too many digits there, so they are computed in float32.
"""

import keras
from keras import ops

# The `dtype` of a layer whose outputs are logits or enter a loss.
LOGITS_DTYPE = "float32"


def at_least_float32(inputs):
    """The inputs in float32, or in float64 if they have it already."""
    return ops.cast(inputs, at_least_float32_dtype(inputs.dtype))


def at_least_float32_dtype(dtype) -> str:
    """The dtype that `at_least_float32` returns for inputs of a dtype."""
    return keras.backend.result_type(dtype, "float32")
