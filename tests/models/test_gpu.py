"""A model of every family computes on a GPU what it computes on a CPU.

    KERAS_BACKEND=jax python -m pytest tests/models/test_gpu.py

Needs JAX with a GPU, and no TensorFlow.
"""

import keras
import numpy as np
import pytest
from model_cases import GRAPHS, given, inputs_for, tiny

from keras_attn import models

if keras.backend.backend() != "jax":
    pytest.skip("runs on JAX, which has both devices", allow_module_level=True)

import jax

try:
    GPU = jax.devices("gpu")[0]
except RuntimeError:
    pytest.skip("there is no GPU", allow_module_level=True)

# The first model of each.
FAMILIES = {models.describe(name).family: name for name in reversed(GRAPHS)}


def outputs_on(device, model, inputs):
    """The outputs of a compiled forward pass, as NumPy arrays."""

    def call(trainable, others, inputs):
        return model.stateless_call(trainable, others, inputs, training=False)[0]

    trainable = [x.value for x in model.trainable_variables]
    others = [x.value for x in model.non_trainable_variables]
    arguments = jax.device_put((trainable, others, inputs), device)
    with jax.default_matmul_precision("highest"):
        outputs = jax.jit(call)(*arguments)
    return {
        jax.tree_util.keystr(path): np.asarray(x)
        for path, x in jax.tree_util.tree_leaves_with_path(outputs)
    }


@pytest.mark.parametrize("name", FAMILIES.values(), ids=FAMILIES)
def test_outputs_on_a_gpu_are_those_on_a_cpu(name):
    model = tiny(name)
    inputs = given(model, inputs_for(model))
    expected = outputs_on(jax.devices("cpu")[0], model, inputs)
    found = outputs_on(GPU, model, inputs)
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-5)
