"""Every model with LoRA weights, quantized weights, and both.

These tests run in `make test-variations`; where a model is loaded,
`test_contract.py` gives a few models updates and integers, and
`test_adaptation.py` tests both in every layer. What takes neither is listed in
`adaptation_cases.py`.
"""

import numpy as np
import pytest
from adaptation_cases import REFUSED_MODELS, draw_updates, weights_of
from model_adaptation import (
    BLOCKS,
    adapt,
    assert_file_keeps,
    assert_merges,
    assert_pair_is_kept,
    quantize,
)
from model_cases import GRAPHS, create, expected_outputs, inputs_for, outputs_of
from model_contract import close, remove_noise, train

from keras_attn.training import adapters_off, dequantize, enable_lora

every_model = pytest.mark.parametrize(
    "case", [case for case in GRAPHS if case not in REFUSED_MODELS]
)


@pytest.mark.variation
@every_model
def test_a_model_takes_updates_and_integers_and_both(case, tmp_path):
    model = create(case)
    inputs, expected = inputs_for(model), expected_outputs(case)
    adapted = adapt(model, inputs, expected)
    assert_file_keeps(model, inputs, adapted, tmp_path / "updates.keras")
    assert_merges(model, inputs, adapted)
    for mode in ("int8", "int4"):
        integers = quantize(model, mode, inputs, outputs_of(model, inputs))
        assert_file_keeps(model, inputs, integers, tmp_path / f"{mode}.keras")
        adapted = adapt(model, inputs, integers)
        with adapters_off(model):
            close(outputs_of(model, inputs), integers, 0)
        loaded = assert_file_keeps(model, inputs, adapted, tmp_path / "both.keras")
        assert_pair_is_kept(model, loaded)
        assert_merges(model, inputs, adapted)
        dequantize(model)


@pytest.mark.variation
@every_model
def test_updates_on_integers_learn_and_nothing_else_moves(case):
    model = create(case)
    remove_noise(model)
    # The other test says how near its outputs are.
    model.quantize("int4", block_size=BLOCKS["int4"])
    enable_lora(model, 1, targets="all")
    draw_updates(model)
    before = weights_of(model)
    assert np.isfinite(train(model, run_eagerly=True))
    trained = {weight.path for weight in model.trainable_variables}
    moved = {x for x, value in weights_of(model).items() if (value != before[x]).any()}
    # A Gumbel softmax counts its steps.
    assert moved - {"relaxation/updates"} <= trained
    assert len(moved) > len(trained) / 2


@pytest.mark.parametrize("case", REFUSED_MODELS)
def test_a_model_without_kernels_is_refused(case):
    model = create(case)
    with pytest.raises(ValueError, match="no kernel that can have LoRA weights"):
        enable_lora(model, 1, targets="all")
    with pytest.raises(ValueError, match="has no kernel to quantize"):
        model.quantize("int8")
