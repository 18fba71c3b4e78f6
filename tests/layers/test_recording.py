"""The scores that every attention layer records."""

import inspect

import keras
import numpy as np
import pytest
from attention_reference import array_of
from layer_cases import CASES, NOT_INSTANTIATED
from layer_contract import assert_close, built, functional, tensors

from keras_attn import layers
from keras_attn.layers.recorder import record_attention_scores

ATTENDING = [
    name
    for name in layers.__all__
    if name not in NOT_INSTANTIATED
    and "return_attention_scores"
    in inspect.signature(getattr(layers, name).call).parameters
]
# Maps a layer to the scores among its outputs, in the order of its attentions, unless
# they are its second output, (B, N, T, S).
SCORES_OF = {
    "AdditiveAttention": lambda outputs: [outputs[1][:, None]],
    "DotProductAttention": lambda outputs: [outputs[1][:, None]],
    "AdditiveAttention2D": lambda outputs: [outputs[1][:, None]],
    "TransformerDecoderBlock": lambda outputs: list(outputs[1:3]),
    "MLPDotAttention": lambda outputs: [outputs[1][:, None]],
    "AttentionSpeller": lambda outputs: [outputs["attention_scores"]],
    "FrameAttentionRNN": lambda outputs: [outputs["attention_scores"]],
    "AttentionRNN": lambda outputs: [outputs["attention_scores"]],
    "HardAttentionRNN": lambda outputs: [outputs["attention_scores"]],
    "CoAttentionBlock": lambda outputs: list(outputs[2:]),
    "WordGuidedAttention": lambda outputs: [outputs[1][:, None, None]],
}
MHA_CASE = CASES["MultiHeadAttention"]["causal"]
CASES = [
    pytest.param(
        *(name, case),
        id=f"{name}-{variant}",
        marks=pytest.mark.variation if number else (),
    )
    for name in ATTENDING
    for number, (variant, case) in enumerate(CASES[name].items())
    if "cache" not in case.inputs
]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_scores_are_recorded_and_outputs_are_unchanged(name, case):
    layer = built(case)
    scores_of = SCORES_OF.get(name, lambda outputs: [outputs[1]])
    static = {**case.static, "return_attention_scores": True}
    expected = layer(**tensors(case), **static)
    plain = layer(**tensors(case), **case.static)
    with record_attention_scores() as recorded:
        again = layer(**tensors(case), **case.static)
    assert_close(again, plain, atol=0)
    assert_close(list(recorded.values()), scores_of(expected), atol=1e-6)
    for path, scores in recorded.items():
        assert path.startswith(layer.path)
        assert len(scores.shape) == 4
    with record_attention_scores() as recorded:
        pass
    assert recorded == {}


@pytest.mark.parametrize(("name", "case"), CASES)
def test_symbolic_calls_are_not_recorded(name, case):
    layer = case.make()
    with record_attention_scores() as recorded:
        model = functional(case, layer)
    assert recorded == {}
    if name == "AttentionRNN" or case is MHA_CASE:
        # JAX compiles with XLA only.
        model.compile(jit_compile=keras.config.backend() == "jax")
        with record_attention_scores() as recorded:
            model.predict(tensors(case), verbose=0)
        assert recorded == {}
        # A model compiled while recording still runs, and is recorded when called.
        model.predict(tensors(case), verbose=0)
        with record_attention_scores() as recorded:
            model(tensors(case))
        assert len(recorded) == 1


def test_models_can_be_fitted_while_recording():
    inputs = keras.Input((5, 11))
    model = keras.Model(inputs, layers.MultiHeadAttention(3, 5)(inputs))
    model.compile("sgd", "mse", run_eagerly=keras.config.backend() == "tensorflow")
    before = [array_of(w) for w in model.trainable_variables]
    with record_attention_scores():
        model.fit(np.ones((2, 5, 11)), np.ones((2, 5, 11)), verbose=0)
    after = [array_of(w) for w in model.trainable_variables]
    assert any((a != b).any() for a, b in zip(after, before, strict=True))
