"""Every model with LoRA weights, and then, in place of them, with quantized weights.

These tests run in `make test-variations`, as do those of both together
(`test_contract_qlora.py`); where a model is loaded, `test_contract.py` gives a few
models updates and integers, and `test_adaptation.py` tests both in every layer. What
takes neither is listed in `adaptation_cases.py`.
"""

import pytest
from adaptation_cases import REFUSED_MODELS
from model_adaptation import TAKE_UPDATES, assert_takes_updates_and_integers
from model_cases import create, expected_outputs, inputs_for

from keras_attn.training import enable_lora


@pytest.mark.variation
@pytest.mark.parametrize("case", TAKE_UPDATES)
def test_a_model_takes_updates_and_integers(case, tmp_path):
    model, path = create(case), tmp_path / "integers.keras"
    inputs, expected = inputs_for(model), expected_outputs(case)
    assert_takes_updates_and_integers(model, inputs, expected, path)


@pytest.mark.parametrize("case", REFUSED_MODELS)
def test_a_model_without_kernels_is_refused(case):
    model = create(case)
    with pytest.raises(ValueError, match="no kernel that can have LoRA weights"):
        enable_lora(model, 1, targets="all")
    with pytest.raises(ValueError, match="has no kernel to quantize"):
        model.quantize("int8")
