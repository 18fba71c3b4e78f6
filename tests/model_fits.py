"""One training step of a tiny model, in every way that Keras can run it.

Three files of tests run these checks, for texts, for whole images, and for pixels and
boxes, because a file of tests stays in one process.
"""

import functools

import keras
import numpy as np
import pytest
from model_cases import (
    GRAPHS,
    create,
    eager_outputs_of,
    given,
    inputs_for,
    is_detector,
    named,
    numpy,
    outputs_of,
    randomize,
    unpools,
)
from model_contract import close, few_of, is_idle, labels_for, remove_noise, train

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
# Also fitted in a graph without XLA. The contract of layers does so with every layer.
TRACED = ("bert_base", "rnnsearch_50", "swin_tiny")
# Most of the time of a compiled fit is compilation, and a second equal block compiles
# as the first does. The second layer of an LSTM has other inputs.
ONE_OF_EACH_BLOCK = {
    name: {"num_layers": 1} if graph.smaller is None else graph.smaller
    for name, graph in GRAPHS.items()
    if (graph.smaller or "num_layers" in graph.tiny) and name not in TRACED
}


def fits_of(cases):
    """The two tests of fits, for these cases, in a file that is marked `compiled`.

    Few models are fitted inside a scope: the contract of layers tests every layer
    inside one.

    Args:
        cases: Names from `GRAPHS`.
    """
    scoped = cases if ON_TENSORFLOW else [case for case in cases if case in TRACED]

    # New functions for each call: a mark changes the function that it is put on.
    @pytest.mark.parametrize("case", few_of(cases))
    def with_xla(case):
        _check_fit_with_xla(case)

    @pytest.mark.parametrize("case", few_of(scoped))
    def in_scope(case):
        _check_fit_in_scope(case)

    return with_xla, in_scope


def without_dropout(case):
    """A new model of a case without dropout, so that two runs can be compared."""
    model = create(case, **ONE_OF_EACH_BLOCK.get(case, {}))
    remove_noise(model)
    return model


def is_only_compiled(case):
    """Whether a case is not fitted without XLA.

    JAX compiles each operation by itself then, which is five times the work of a fit
    that is compiled as a whole. Its gradients are those of the same operations; those
    that layers define are tested in their contract.
    """
    return not ON_TENSORFLOW and case not in TRACED


@functools.cache
def fitted(case):
    """A model of a case after one step without XLA, if possible, and without a scope.

    Returns:
        The model, its loss before the step, and its weights and outputs after it.
    """
    model = without_dropout(case)
    if is_only_compiled(case):
        loss = train(model, jit_compile=True)
    else:
        loss = train(model, run_eagerly=case not in TRACED)
    return model, loss, weights_of(model), outputs_of(model, inputs_for(model))


def weights_of(model):
    """The values of all weights by their paths."""
    weights = {weight.path: numpy(weight) for weight in model.weights}
    assert len(weights) == len(model.weights)
    return weights


def _check_fit_with_xla(case):
    """The same loss, weights and outputs with XLA and without."""
    model, loss, weights, _ = fitted(case)
    randomize(model)
    before = weights_of(model)
    assert np.isfinite(loss)
    for weight in model.trainable_variables:
        name = weight.path
        # With SGD the change is the gradient.
        assert np.isfinite(weights[name]).all(), name
        assert np.any(weights[name] != before[name]) or is_idle(weight, model), name
    if not is_only_compiled(case):
        np.testing.assert_allclose(train(model, jit_compile=True), loss, rtol=1e-5)
        for weight in model.trainable_variables:
            name, new = weight.path, numpy(weight)
            np.testing.assert_allclose(new, weights[name], rtol=1e-5, atol=1e-5)
            assert np.any(new != before[name]) or is_idle(weight, model), name
    inputs = inputs_for(model)
    flat = {
        # Rows and images of one value, whose deviation is zero.
        # The dVAE takes images in [0, 1], and boxes are shares of an image.
        name: np.full_like(value, 1 if case == "dvae_dalle" or "boxes" in name else 10)
        if value.dtype == np.float32
        else value
        for name, value in inputs.items()
    }
    # Rounding would change the order of equal scores, and the place of a maximum.
    has_ties = is_detector(model) or unpools(model)
    cases = [(inputs, 1e-5), *([] if has_ties else [(flat, 1e-3)])]
    for fed, tolerance in cases:
        compiled = named(model.predict_on_batch(given(model, fed)))
        close(compiled, eager_outputs_of(model, fed), tolerance, rtol=tolerance)
    if type(model).compute_loss is not keras.Model.compute_loss:
        return  # It has losses of its own, which its tests compare.
    # The loss is that of the outputs before the step.
    outputs = outputs_of(randomize(model), inputs, training=True)
    labels = labels_for(outputs)
    # The loss of an autoencoder is that of the hidden patches.
    counted = outputs.get("hidden", slice(None))
    expected = sum(
        np.mean((outputs[name] - labels[name])[counted] ** 2) for name in labels
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def _check_fit_in_scope(case):
    """The same loss, weights and outputs inside `keras.RematScope`."""
    _, loss, weights, outputs = fitted(case)
    with keras.RematScope("full"):
        again = without_dropout(case)
    loss_in_scope = train(again, run_eagerly=case not in TRACED)
    np.testing.assert_allclose(loss_in_scope, loss, rtol=1e-5)
    assert {weight.path for weight in again.weights} == set(weights)
    for weight in again.weights:
        np.testing.assert_allclose(
            numpy(weight), weights[weight.path], 1e-5, 1e-5, err_msg=weight.path
        )
    close(outputs_of(again, inputs_for(again)), outputs, 1e-5, rtol=1e-5)
