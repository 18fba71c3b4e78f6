"""Every model with LoRA weights, quantized weights, and both.

These tests run in `make test-variations`; where a model is loaded,
`test_contract.py` gives a few models updates and integers, and
`test_adaptation.py` tests both in every layer. What takes neither is listed in
`adaptation_cases.py`.
"""

import pytest
from adaptation_cases import REFUSED_MODELS
from model_adaptation import (
    adapt,
    assert_file_keeps,
    assert_merges,
    assert_pair_is_kept,
    quantize,
)
from model_cases import GRAPHS, create, expected_outputs, inputs_for, outputs_of
from model_contract import close

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


@pytest.mark.parametrize("case", REFUSED_MODELS)
def test_a_model_without_kernels_is_refused(case):
    model = create(case)
    with pytest.raises(ValueError, match="no kernel that can have LoRA weights"):
        enable_lora(model, 1, targets="all")
    with pytest.raises(ValueError, match="has no kernel to quantize"):
        model.quantize("int8")
