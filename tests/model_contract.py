"""What the contract suites of models share."""

from typing import Any

import keras
import numpy as np
import pytest
from model_cases import CASES, B, given, inputs_for, outputs_of

every_case = pytest.mark.parametrize("case", CASES)


def close(actual, expected, atol, rtol=0.0):
    """Compares outputs by name."""
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=rtol, atol=atol)


def labels_for(outputs):
    """A number for each output; the loss is the mean squared difference.

    Which patches are hidden is no number.
    """
    rng = np.random.default_rng(3)
    return {
        name: rng.normal(size=value.shape).astype("float32")
        for name, value in outputs.items()
        if value.dtype != bool
    }


def train(model, jit_compile=False, run_eagerly=False):
    """The loss of one step, the first of a fit."""
    inputs = inputs_for(model)
    labels: Any = labels_for(outputs_of(model, inputs))
    losses: Any = dict.fromkeys(labels, "mse")
    if not isinstance(model.output, dict):
        (labels,), (losses,) = labels.values(), losses.values()
    model.compile(
        keras.optimizers.SGD(0.1),
        loss=losses,
        jit_compile=jit_compile,
        run_eagerly=run_eagerly,
    )
    history = model.fit(given(model, inputs), labels, batch_size=B, verbose=0)
    return history.history["loss"][0]


def is_idle(weight):
    """A bias of the keys moves all scores of a query alike: softmax cancels it."""
    return weight.path.endswith(("key_bias", "/key/bias"))
