"""Decoding compiles for TPUs: the prompt, a step, and whole loops of `generate`."""

import pytest
from model_cases import CASES, DECODERS, inputs_for
from tpu_programs import (
    ROWS,
    TOPOLOGY,
    check_is_local,
    check_only_says_when_it_ends,
    few_of_families,
    in_precision,
    model_of,
)

from keras_attn.decoding import Beam, Greedy, Sample
from keras_attn.models.parts.keras_state import without_allocating
from keras_attn.models.plans import tpu

LENGTH = 16
# Models that read a token at each step, not their surroundings.
WRITERS = [case for case in DECODERS if "world_state" not in CASES[case].card.inputs]
STRATEGIES = {
    "greedy": Greedy(),
    "sample": Sample(temperature=0.7, top_k=5, top_p=0.9, seed=1),
    "beam": Beam(3),
}


@pytest.mark.tpu
@pytest.mark.parametrize("case", few_of_families(DECODERS))
@in_precision("mixed_bfloat16")
def test_prompt_and_step_are_local(case, dtype_policy):
    model = model_of(case)
    with without_allocating():
        prefill = model.incremental(LENGTH).prefill
    inputs = inputs_for(prefill, batch=ROWS, target=1)
    for compile_one in (tpu.compile_prefill, tpu.compile_step):
        program = compile_one(model, inputs, max_length=LENGTH, topology=TOPOLOGY)
        check_is_local(program)


@pytest.mark.tpu
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", few_of_families(WRITERS))
def test_devices_that_generate_only_say_when_they_end(case, strategy):
    model = model_of(case)
    with without_allocating():
        prefill = model.incremental().prefill
    program = tpu.compile_generate(
        model,
        inputs_for(prefill, batch=ROWS, target=1),
        5,
        strategy=STRATEGIES[strategy],
        end_token_id=2,
        topology=TOPOLOGY,
    )
    check_only_says_when_it_ends(program)
