"""Helpers of the model contract."""

from typing import Any

import keras
import numpy as np
import pytest
from model_cases import (
    CASES,
    ONE_OF_EACH,
    TEXT,
    given,
    has_own_loss,
    inputs_for,
    learns_from_words,
    outputs_of,
    truth_for,
)
from model_family import B

from keras_attn.layers import GumbelSoftmax

# One model of each kind of inputs and of decoder: where the property is one of the
# layers, whose contract tests it, and a case takes seconds to compile.
FEW = ("bert_base", "rnnsearch_50", "swin_tiny", "gpt_117m", "unet")
FEW += ("faster_rcnn_resnet50", "clip_vit_base_patch32")
# One head of each model that has some.
FIRST_HEADS = {made.name: case for case, made in reversed(CASES.items()) if made.head}


def each_of(cases, is_variation):
    """Cases as parameters; those for which a function of their names holds in turn."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, marks=pytest.mark.variation)
            if is_variation(case)
            else case
            for case in cases
        ],
    )


def is_further(case):
    """Whether it is an option of a model, or not the first head of it."""
    made = CASES[case]
    return bool(made.options or (made.head and case not in FIRST_HEADS.values()))


every_case = each_of(CASES, is_further)
every_text_case = each_of(TEXT, is_further)
# What does not depend on the model, but for the kinds of layers that it has.
every_family = each_of(CASES, lambda case: case not in ONE_OF_EACH)
# What the contract of layers tests as well.
every_kind = each_of(CASES, lambda case: case not in FEW)


def few_of(cases):
    """Cases as parameters, of which all but `FEW` are variations."""
    return [
        case if case in FEW else pytest.param(case, marks=pytest.mark.variation)
        for case in cases
    ]


def close(actual, expected, atol, rtol=0.0):
    """Compares outputs by name."""
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=rtol, atol=atol)


def labels_for(outputs):
    """Random targets for every output but the mask of hidden patches.

    The loss is the mean squared error.
    """
    rng = np.random.default_rng(3)
    return {
        name: rng.normal(size=value.shape).astype("float32")
        for name, value in outputs.items()
        if value.dtype != bool
    }


def remove_noise(model):
    """Lets layers that sample compute the same in every step of training."""
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
        if isinstance(layer, GumbelSoftmax):
            # Noise has no effect.
            layer.temperature = layer.final_temperature = 1e6


def objective_of(model, inputs, outputs, batch=B) -> tuple[Any, Any]:
    """What a model learns in tests: labels, and the losses to compile it with.

    Args:
        model: The model.
        inputs: From `inputs_for` it.
        outputs: Called for the outputs by name, or anything with their shapes and
            dtypes, if the labels depend on them.
        batch: Rows of the inputs.
    """
    if has_own_loss(model):
        return truth_for(model, batch), None
    if learns_from_words(model):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return inputs["decoder_token_ids"], loss
    labels: Any = labels_for(outputs())
    losses: Any = dict.fromkeys(labels, "mse")
    if not isinstance(model.output, dict):
        (labels,), (losses,) = labels.values(), losses.values()
    return labels, losses


def train(model, jit_compile=False, run_eagerly=False):
    """Fits one step and returns its loss."""
    inputs = inputs_for(model)
    labels, losses = objective_of(model, inputs, lambda: outputs_of(model, inputs))
    model.compile(
        keras.optimizers.SGD(0.1),
        loss=losses,
        jit_compile=jit_compile,
        run_eagerly=run_eagerly,
    )
    history = model.fit(given(model, inputs), labels, batch_size=B, verbose=0)
    return history.history["loss"][0]


# What the logits of a model do not depend on: after the last co-attention the words do
# not reach the regions.
_UNUSED = {"vilbert_referring": ("co_attention_1/text_",)}


def is_idle(weight, model):
    """Whether no gradient moves a weight: a key bias, which the softmax cancels."""
    is_key_bias = weight.path.endswith(("key_bias", "/key/bias"))
    return is_key_bias or weight.path.startswith(_UNUSED.get(model.name, "-"))


def calls_of(model):
    """Every way to call a model with arrays, by name; all take the inputs alone."""
    names = ("predict", "predict_on_batch", "fit", "evaluate")
    names += ("train_on_batch", "test_on_batch")
    return {"call": model, **{name: getattr(model, name) for name in names}}
