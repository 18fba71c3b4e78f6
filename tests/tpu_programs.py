"""The programs of a tiny model, compiled for four chips, and what holds for their text.

No array is allocated and nothing is computed. Each model has as few blocks as in the
tests of fits.
"""

import collections
import re

import keras
import pytest
from model_cases import CASES, ONE_OF_EACH, build, given, inputs_for, named
from model_contract import few_of, objective_of
from model_fits import ONE_OF_EACH_BLOCK

from keras_attn.models.parts.keras_state import undone, without_allocating
from keras_attn.models.plans import tpu

TOPOLOGY, ROWS = "v5e:2x2", 4
# Their loss compares each image with the texts of all devices.
COMPARES_ALL_ROWS = ("clip", "siglip")
_COLLECTIVE = re.compile(
    r"= (.*) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    r"|collective-broadcast)(?:-start)?\("
)
# Calls of the host, and types of 64 bits, which a TPU emulates.
_FOREIGN = re.compile(r"callback|\bsend\(|\brecv\(|outfeed|\bf64\b|X64|\b[su]64\[")


def programs_of(cases):
    """The tests of models: a forward pass in float32, a training step in bfloat16.

    A model of each family: a few of them always, the others in turn.

    Args:
        cases: Names of `CASES`.
    """
    cases = few_of_families(cases)

    @pytest.mark.tpu
    @pytest.mark.parametrize("case", cases)
    @in_precision("float32")
    def forward(case, dtype_policy):
        model = model_of(case)
        inputs = given(model, inputs_for(model, batch=ROWS))
        check_is_local(tpu.compile_forward(model, inputs, topology=TOPOLOGY))

    @pytest.mark.tpu
    @pytest.mark.parametrize("case", cases)
    @in_precision("mixed_bfloat16")
    def training_step(case, dtype_policy):
        model = model_of(case)
        inputs = inputs_for(model, batch=ROWS)
        labels, losses = objective_of(
            model, inputs, lambda: _specs_of_outputs(model, inputs), batch=ROWS
        )
        model.compile(keras.optimizers.SGD(0.1), loss=losses)
        program = tpu.compile_training_step(
            model, given(model, inputs), labels, topology=TOPOLOGY
        )
        check_text(program)
        found = set(collectives_of(program))
        if CASES[case].card.family in COMPARES_ALL_ROWS:
            assert found, "an image is compared with the texts of all devices"
        else:
            assert found == {"all-reduce"}, found

    return forward, training_step


def few_of_families(cases):
    """The first model of each family, as parameters by `few_of`."""
    return few_of([case for case in cases if case in ONE_OF_EACH])


def in_precision(policy):
    """Gives a test its `dtype_policy`."""
    return pytest.mark.parametrize("dtype_policy", [policy], indirect=True)


def model_of(case):
    """A new model of a case, whose weights are not allocated."""
    with undone(), without_allocating():
        return build(case, **ONE_OF_EACH_BLOCK.get(case, {}))


def _specs_of_outputs(model, inputs):
    """The shapes and dtypes of the outputs, by name."""
    import jax

    with without_allocating():
        outputs = jax.eval_shape(
            lambda inputs: model(inputs, training=False), given(model, inputs)
        )
    return named(outputs)


def collectives_of(program):
    """How often devices exchange something, by operation."""
    return collections.Counter(kind for _, kind in _COLLECTIVE.findall(program.text))


def check_text(program):
    """Raises if a program calls the host or has types of 64 bits."""
    assert not _FOREIGN.findall(program.text)


def check_is_local(program):
    """Raises if a device needs anything of another one."""
    check_text(program)
    assert not collectives_of(program)


def check_only_says_when_it_ends(program):
    """Raises if devices exchange more than whether their rows are done."""
    check_text(program)
    for result, kind in _COLLECTIVE.findall(program.text):
        assert kind == "all-reduce", kind
        assert re.fullmatch(r"(pred|[su]8|[su]32)\[\](\{.*\})?", result), result
