"""The steps of every attention layer lead to what the layer returns."""

import keras
import layer_cases
import numpy as np
import pytest
from attention_reference import softmax
from layer_contract import B, D, S, T, built, flat, normal, tensors

from keras_attn import layers
from keras_attn.viz import AttentionSteps, attention_steps
from keras_attn.viz.layer_steps import explain_call, permute
from keras_attn.viz.layer_steps.kinds import KINDS

CASES = [
    pytest.param(case, id=f"{name}-{variant}")
    for name, cases in layer_cases.CASES.items()
    if issubclass(getattr(layers, name), tuple(KINDS))
    for variant, case in cases.items()
    if "cache" not in case.inputs
]


def first_of(case):
    """The arguments of a call of a case, of its first example."""
    rows = {x: np.asarray(tensor)[:1] for x, tensor in tensors(case).items()}
    return {**rows, **case.static}


def softmax_of(steps):
    hidden = np.where(steps.mask, steps.scores, -np.inf)
    return np.apply_along_axis(softmax, -1, hidden)


def test_every_attention_layer_has_a_case():
    shown = {type(case.values[0].make()) for case in CASES}
    assert {parent for each in shown for parent in each.__mro__} >= set(KINDS)


@pytest.mark.parametrize("case", CASES)
def test_steps_lead_to_what_the_layer_returns(case):
    layer = built(case)
    call = first_of(case)
    steps = explain_call(layer, call)
    output = flat(layer(**call))[0].reshape(steps.output.shape)
    np.testing.assert_allclose(steps.output, output, atol=1e-6, rtol=1e-6)
    scale = max(1, np.abs(steps.scores).max())
    np.testing.assert_allclose(steps.weights, softmax_of(steps), atol=1e-6 * scale)
    np.testing.assert_allclose(steps.weights @ steps.values, steps.mixed, atol=1e-5)
    heads, queries, keys = steps.scores.shape
    assert steps.queries.shape[0] == steps.keys.shape[0] == heads == len(steps.heads)
    assert steps.keys.shape[1] == steps.values.shape[1] == keys
    assert steps.mixed.shape == (heads, queries, steps.values.shape[2])
    for pair in [(0, 0, 0), (heads - 1, queries - 1, keys // 2)]:
        details = steps.details(*pair)
        numbers = [number for _, number in details]
        assert sum(numbers) == pytest.approx(steps.scores[pair], abs=1e-9)
        for name, values in steps.terms.items():
            own = [number for term, number in details if term.startswith(name)]
            assert sum(own) == pytest.approx(values[pair], abs=1e-9)
    assert [panel.name for panel in steps.panels()][-1] == "Y"
