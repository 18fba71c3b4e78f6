"""The contract of every model and head, at a tiny size: its structure.

`test_contract_numbers.py` tests what it computes.
"""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from initial_weights import assert_independent, assert_seed_decides
from model_cases import (
    CASES,
    DECODERS,
    GRAPH_OF,
    GRAPHS,
    TINY,
    S,
    create,
    digest,
    given,
    initial_weights,
    inputs_for,
    numpy,
    outputs_of,
    seeded,
    tiny,
)
from model_contract import close, every_case

from keras_attn import models
from keras_attn.indices import index_ranges

# Inputs that options and heads add to those of the card.
FURTHER_INPUTS = {
    "position_ids": "(B, T) int32",
    "masked_positions": "(B, P) int32",
    "permutation_mask": "(B, T, T) bool",
    "target_mapping": "(B, P, T) float",
    "memory_0": "(B, M, D) float",
    "memory_1": "(B, M, D) float",
}
# Letters of axes whose length is unknown.
LENGTHS = set("MPSTU")


@pytest.mark.parametrize("name", sorted(set(TINY) - set(GRAPHS)))
def test_variants_that_differ_only_in_size_have_the_same_graph(name):
    expected, model = tiny(GRAPH_OF[name]), models.create(name, **TINY[name])
    assert [x.name for x in model.inputs] == [x.name for x in expected.inputs]
    for layer, same in zip(model.layers, expected.layers, strict=True):
        assert type(layer) is type(same)
        assert layer.get_config() == same.get_config()
    operations = [type(x) for x in model.operations]
    assert operations == [type(x) for x in expected.operations]


@every_case
def test_inputs_have_documented_names_and_types(case):
    model = tiny(case)
    if isinstance(model.input, dict):
        assert set(model.input) == {tensor.name for tensor in model.inputs}
    documented = {**FURTHER_INPUTS, **CASES[case].card.inputs}
    for tensor in model.inputs:
        match = re.match(r"\((.*?)\) (bool|int32|float)", documented[tensor.name])
        assert match, documented[tensor.name]
        axes, kind = match.groups()
        assert tensor.dtype == {"float": "float32"}.get(kind, kind)
        axes = [axis for axis in axes.split(",") if axis]
        assert len(tensor.shape) == len(axes)
        # The batch size and lengths are unknown, but for the number of patches.
        assert tensor.shape[0] is None
        if tensor.name != "noise" and len(axes) > 1 and axes[1].strip() in LENGTHS:
            assert tensor.shape[1] is None
    # What the suites know of it before it is built.
    assert (case in DECODERS) == hasattr(model, "incremental")


@every_case
def test_weight_paths_are_unique(case):
    model = tiny(case)
    assert len({weight.path for weight in model.weights}) == len(model.weights)


@every_case
def test_random_weights_are_independent_and_follow_the_seed(case):
    drawn = initial_weights(case)
    computed = GRAPHS[CASES[case].name].tables
    tables = {name for name in drawn if any(table in name for table in computed)}
    assert_independent({n: v for n, v in drawn.items() if n not in tables})
    assert_seed_decides(drawn, seeded(case, 2)[1], tables)


def test_one_seed_gives_the_same_weights_in_another_process():
    script = (
        "import json, model_cases as m; "
        "print(json.dumps({c: m.digest(m.seeded(c, 1)[1]) for c in m.GRAPHS}))"
    )
    tests = Path(__file__).parent.parent
    path = os.pathsep.join([str(tests), str(tests.parent)])
    printed = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ).stdout
    # The order of a set of strings differs between processes and must not matter.
    here = {case: digest(initial_weights(case)) for case in GRAPHS}
    assert json.loads(printed.splitlines()[-1]) == here


@every_case
def test_a_model_has_the_given_name(case):
    made = CASES[case]
    if made.head is None:
        sizes = {**TINY[made.name], **made.options}
        model = models.create(made.name, **sizes, name="mine")
    else:
        encoder = create(made.name)
        model = made.head(encoder, **made.head_options, name="mine")
        # A head shares the weights of its encoder.
        shared = {id(weight) for weight in encoder.weights}
        assert sum(id(weight) in shared for weight in model.weights) > 0.7 * len(shared)
    assert model.name == "mine"


@every_case
def test_symbolic_shapes_match_the_values(case):
    model = tiny(case)
    symbolic = model.output
    if not isinstance(symbolic, dict):
        symbolic = {"logits": symbolic}
    values = outputs_of(model, inputs_for(model))
    assert set(symbolic) == set(values)
    for name, symbol in symbolic.items():
        assert len(symbol.shape) == values[name].ndim
        for expected, size in zip(symbol.shape, values[name].shape, strict=True):
            assert expected in (None, size)
        assert symbol.shape[0] is None
        # Widths are known; lengths need not be.
        known = symbol.shape[-1] is not None or values[name].shape[-1] == S
        assert known or name in ("num_detections", "attention_scores")


def misshapen(inputs):
    """Yields an input's name, and inputs in which it has a wrong shape or no rows."""
    for name, value in inputs.items():
        yield name, {**inputs, name: value[0]}
        yield name, {**inputs, name: value[..., None, None]}
        if value.ndim > 1 and not name.startswith("memory_"):  # A memory may be empty.
            yield name, {**inputs, name: value[:, :0]}
    yield next(iter(inputs)), {name: value[:0] for name, value in inputs.items()}


@every_case
def test_an_error_names_the_input_with_a_wrong_shape_or_no_rows(case):
    model = tiny(case)
    inputs = inputs_for(model)
    for name, wrong in misshapen(inputs):
        shape = re.escape(str(wrong[name].shape))
        match = f"`{name}` must have the shape .*Received: shape={shape}"
        for call in (model, model.predict, model.predict_on_batch):
            with pytest.raises(ValueError, match=match):
                call(given(model, wrong))


def test_a_compiled_predict_refuses_images_without_a_batch_axis():
    """After tracing two ranks TensorFlow knows no shape at all."""
    model = tiny("vit_base_patch16")
    images = inputs_for(model)["images"]
    model.predict(images, verbose=0)
    for call in (model, model.predict, model.predict_on_batch):
        with pytest.raises(ValueError, match="`images` must have the shape"):
            call(images[0])


@every_case
def test_an_error_names_the_input_with_an_index_out_of_range(case):
    model = tiny(case)
    inputs = inputs_for(model)
    ranges = index_ranges(model)
    indices = {name for name, value in inputs.items() if value.dtype == "int32"}
    # XLNet only compares segments with each other, and the limit of a position to
    # predict is the length of the text.
    unlimited = {"segment_ids", "masked_positions"}
    assert indices - set(ranges) <= unlimited
    for name, (low, high) in ranges.items():
        # Images of any width have no largest one.
        limits = "at least 0" if high is None else rf"in \[{low}, {high}\)"
        for wrong in (low - 1,) if high is None else (low - 1, high):
            changed = inputs[name].copy()
            changed.flat[-1] = wrong
            match = rf"`{name}` must be {limits}, .*Received: {wrong} at"
            for call in (model, model.predict, model.predict_on_batch):
                with pytest.raises(ValueError, match=match):
                    call(given(model, {**inputs, name: changed}))


def plain(config):
    """A configuration as JSON holds it: a tuple becomes a list."""
    return json.loads(json.dumps(config))


@every_case
def test_a_saved_model_loads_with_the_same_outputs(case, tmp_path):
    model = tiny(case)
    inputs = inputs_for(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert type(loaded) is type(model)
    assert plain(loaded.get_config()) == plain(model.get_config())
    close(outputs_of(loaded, inputs), outputs_of(model, inputs), 0)
    if case not in DECODERS:
        return
    # The decoder finds its layers by name, so it must decode as before.
    ours, theirs = model.incremental(), loaded.incremental()
    assert ours.prompt == theirs.prompt
    inputs = inputs_for(ours.prefill)
    close(numpy(theirs.prefill(inputs)), numpy(ours.prefill(inputs)), 0)


@every_case
def test_a_configuration_and_a_clone_give_the_same_model(case):
    model = tiny(case)
    inputs = inputs_for(model)
    expected = outputs_of(model, inputs)
    twins = [keras.models.clone_model(model)]
    if case in GRAPHS:  # The others are made again from their files.
        twins.append(type(model).from_config(copy.deepcopy(model.get_config())))
    for twin in twins:
        assert type(twin) is type(model)
        assert not {id(w) for w in twin.weights} & {id(w) for w in model.weights}
        assert [w.shape for w in twin.weights] == [w.shape for w in model.weights]
        twin.set_weights(model.get_weights())
        close(outputs_of(twin, inputs), expected, 0)
        if case in DECODERS:
            assert twin.incremental().step.count_params() > 0
