"""Functions for which half precision is not enough: softmax and normalization.

In mixed precision a layer computes in float16 or bfloat16. Exponentials and variances
lose too many digits there, so they are computed in float32.
"""

import keras
from keras import ops


def at_least_float32(inputs):
    """The inputs in float32, or in float64 if they have it already."""
    return ops.cast(inputs, at_least_float32_dtype(inputs.dtype))


def at_least_float32_dtype(dtype) -> str:
    """The dtype that `at_least_float32` returns for inputs of a dtype."""
    return keras.backend.result_type(dtype, "float32")
