"""Every model with LoRA weights of quantized kernels, in `make test-variations`."""

import pytest
from model_adaptation import (
    TAKE_UPDATES,
    adapt,
    assert_file_keeps,
    assert_merges,
    assert_pair_is_kept,
    quantize,
)
from model_cases import create, expected_outputs, inputs_for, outputs_of
from model_contract import close

from keras_attn.training import adapters_off


@pytest.mark.variation
@pytest.mark.parametrize("case", TAKE_UPDATES)
def test_a_model_takes_updates_of_integers(case, tmp_path):
    model = create(case)
    inputs = inputs_for(model)
    integers = quantize(model, "int4", inputs, expected_outputs(case))
    adapted = adapt(model, inputs, integers)
    with adapters_off(model):
        close(outputs_of(model, inputs), integers, 0)
    loaded = assert_file_keeps(model, inputs, adapted, tmp_path / "both.keras")
    assert_pair_is_kept(model, loaded)
    assert_merges(model, inputs, adapted)
