import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.kernels.precision import at_least_float32, at_least_float32_dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_half_precision_becomes_float32(dtype):
    if dtype == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has no float64 by default")
    expected = "float64" if dtype == "float64" else "float32"
    outputs = at_least_float32(ops.cast(np.ones(3), dtype))
    assert keras.backend.standardize_dtype(outputs.dtype) == expected
    assert at_least_float32_dtype(dtype) == expected
