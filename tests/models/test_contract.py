"""The contract of every model and head, at a tiny size: its structure and its inputs.

Inputs that a model has no answer to are named. The checks come before anything is
compiled, so what was compiled before cannot change a message.

`test_contract_numbers.py` tests what it computes.
"""

import json
import re

import keras
import numpy as np
import pytest
from adaptation_cases import REFUSED_MODELS
from initial_weights import assert_independent, assert_seed_decides
from model_adaptation import assert_takes_updates_and_integers
from model_cases import (
    CASES,
    DECODERS,
    GRAPH_OF,
    GRAPHS,
    KINDS_OF_MODELS,
    ONE_OF_EACH,
    TINY,
    create,
    digest,
    expected_outputs,
    given,
    initial_weights,
    inputs_for,
    named,
    numpy,
    outputs_of,
    seeded,
    tiny,
)
from model_contract import (
    FEW,
    calls_of,
    close,
    each_of,
    every_case,
    every_family,
    every_kind,
    every_text_case,
    few_of,
)
from model_family import POSITIONS, B, C, S, V
from processes import run_python

from keras_attn import models
from keras_attn.checks.indices import index_ranges, length_ranges
from keras_attn.checks.inputs import check_finite
from keras_attn.decoding import generate, walk

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


@every_kind
def test_a_model_has_the_given_name_and_random_weights_by_the_seed(case):
    drawn = initial_weights(case)
    computed = GRAPHS[CASES[case].name].tables
    tables = {name for name in drawn if any(table in name for table in computed)}
    assert_independent({n: v for n, v in drawn.items() if n not in tables})
    model, other = seeded(case, 2, name="mine")
    assert model.name == "mine"
    assert_seed_decides(drawn, other, tables)


@pytest.mark.parametrize(
    "case", [case for case, made in CASES.items() if made.head is not None]
)
def test_a_head_shares_the_weights_of_its_encoder(case):
    """Or of one of its towers."""
    made = CASES[case]
    assert made.head is not None
    encoder = tiny(made.name)
    known = {id(weight) for weight in encoder.weights}
    are_trained = [layer.trainable for layer in encoder.layers]
    model = made.head(encoder, **made.head_options)
    # Of XLNet it trains a weight that the encoder alone does not; other tests share it.
    for layer, is_trained in zip(encoder.layers, are_trained, strict=True):
        layer.trainable = is_trained
    shared = sum(id(weight) in known for weight in model.weights)
    assert shared > 0.7 * min(len(known), len(model.weights))


@pytest.mark.runs
def test_one_seed_gives_the_same_weights_in_another_process():
    script = (
        "import json, model_cases as m; "
        "print(json.dumps({c: m.digest(m.seeded(c, 1)[1]) for c in m.KINDS_OF_MODELS}))"
    )
    printed = run_python("-c", script)
    # The order of a set of strings differs between processes and must not matter.
    here = {case: digest(initial_weights(case)) for case in KINDS_OF_MODELS}
    assert json.loads(printed.splitlines()[-1]) == here


@every_case
def test_symbolic_shapes_match_the_values(case):
    symbolic, values = named(tiny(case).output), expected_outputs(case)
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
        for call in calls_of(model).values():
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
            for call in calls_of(model).values():
                with pytest.raises(ValueError, match=match):
                    call(given(model, {**inputs, name: changed}))


def plain(config):
    """A configuration as JSON holds it: a tuple becomes a list."""
    return json.loads(json.dumps(config))


@every_family
def test_a_saved_model_loads_with_the_same_outputs(case, tmp_path):
    model = tiny(case)
    inputs = inputs_for(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert type(loaded) is type(model)
    assert plain(loaded.get_config()) == plain(model.get_config())
    close(outputs_of(loaded, inputs), expected_outputs(case), 0)
    if case in DECODERS:
        # The decoder finds its layers by name, so it must decode as before.
        ours, theirs = model.incremental(), loaded.incremental()
        assert ours.prompt == theirs.prompt
        given = inputs_for(ours.prefill)
        close(numpy(theirs.prefill(given)), numpy(ours.prefill(given)), 0)
    if case in FEW and case not in REFUSED_MODELS:
        expected, path = expected_outputs(case), tmp_path / "adapted.keras"
        assert_takes_updates_and_integers(loaded, inputs, expected, path)


@every_kind
def test_a_clone_is_the_same_model(case):
    """A model from a configuration alone is tested with those from files."""
    model = tiny(case)
    twin = keras.models.clone_model(model)
    assert type(twin) is type(model)
    assert not {id(w) for w in twin.weights} & {id(w) for w in model.weights}
    assert [w.shape for w in twin.weights] == [w.shape for w in model.weights]
    twin.set_weights(model.get_weights())
    close(outputs_of(twin, inputs_for(model)), expected_outputs(case), 0)
    if case in DECODERS:
        assert twin.incremental().step.count_params() > 0


# Models with a table of positions, whose size their builders call so.
POSITIONED = [
    case
    for case, made in CASES.items()
    if {"max_sequence_length", "max_question_length"} & set(TINY[made.name])
    and not case.endswith("image_encoder")
]
every_positioned = each_of(POSITIONED, lambda case: case not in ONE_OF_EACH)


@every_positioned
def test_an_error_names_the_text_that_is_longer_than_the_positions(case):
    model = tiny(case)
    ranges = length_ranges(model).items()
    allowed = {name: high - 1 for name, (_, high) in ranges if high is not None}
    assert len(allowed) == len(ranges) and set(allowed.values()) == {POSITIONS}
    name = "decoder_token_ids" if "decoder_token_ids" in allowed else "token_ids"
    longer = inputs_for(model, length=POSITIONS + 2, target=POSITIONS + 2)
    match = (
        f"`{name}` must have a length of at most {POSITIONS}, padding included.*"
        rf"Received: {name}.shape=\({B}, {POSITIONS + 2}\)"
    )
    for call in calls_of(model).values():
        with pytest.raises(ValueError, match=match) as raised:
            call(given(model, longer))
        assert "Exception encountered" not in str(raised.value)
    with pytest.raises(ValueError, match=match):  # While a graph is traced.
        model(
            {
                tensor.name: keras.KerasTensor(
                    longer[tensor.name].shape, tensor.dtype, name=tensor.name
                )
                for tensor in model.inputs
            }
        )


@pytest.mark.compiled
def test_a_model_that_has_compiled_a_graph_for_any_length_names_a_long_text():
    """TensorFlow's graph would fail in an operation, with a stack."""
    model = tiny("bert_base")
    for length in (5, 7, 11):
        model.predict(inputs_for(model, length=length), verbose=0)
    with pytest.raises(ValueError, match=f"`token_ids` .* at most {POSITIONS}"):
        model.predict(inputs_for(model, length=POSITIONS + 2), verbose=0)


@every_case
def test_an_error_names_the_input_that_is_not_finite(case):
    model = tiny(case)
    inputs = inputs_for(model)
    floats = [name for name, value in inputs.items() if value.dtype == np.float32]
    for name in floats:
        for wrong in ("nan", "inf", "-inf"):
            changed = inputs[name].copy()
            changed.flat[-1] = float(wrong)
            index = tuple(size - 1 for size in changed.shape)
            match = f"`{name}` must be finite numbers. Received: {wrong} at index "
            for call in calls_of(model).values():
                with pytest.raises(ValueError, match=match) as raised:
                    call(given(model, {**inputs, name: changed}))
                assert str(index) in str(raised.value)


def test_numbers_whose_sum_overflows_are_finite():
    values = np.full((B, 7), 3e38, "float32")
    check_finite("features", values)
    with pytest.raises(ValueError, match="nan at index"):
        check_finite("features", np.where(np.arange(7) == 1, np.nan, values))


@every_text_case
def test_an_error_names_the_row_of_padding_alone(case):
    model = tiny(case)
    inputs = inputs_for(model)
    inputs["padding_mask"][1] = False
    match = r"`padding_mask` must have .* real token in every row.*in rows \[1\]"
    for call in (model, model.predict, model.predict_on_batch):
        with pytest.raises(ValueError, match=match):
            call(given(model, inputs))
    # Numbers of a tokenizer.
    inputs["padding_mask"] = inputs["padding_mask"].astype("int32")
    with pytest.raises(ValueError, match=match):
        model(given(model, inputs))


@pytest.mark.parametrize("case", few_of(DECODERS))
def test_decoding_names_the_input_that_it_has_no_answer_to(case):
    model = tiny(case)
    inputs = inputs_for(model.incremental().prefill, target=1)

    def decode(wrong):
        if "world_state" not in inputs:
            return generate(model, wrong, 2)
        del wrong["world_state"]
        return walk(model, wrong, OneStep(), 2)

    for name, value in inputs.items():
        if value.dtype == np.float32 and name != "world_state":
            wrong = {**inputs, name: np.where(value == value.max(), np.nan, value)}
            with pytest.raises(ValueError, match=f"`{name}` must be finite"):
                decode(wrong)
    if "padding_mask" in inputs:
        wrong = {**inputs, "padding_mask": np.zeros_like(inputs["padding_mask"])}
        with pytest.raises(ValueError, match="`padding_mask` .* real token in every"):
            decode(wrong)


class OneStep:
    """An environment of two states, in which nothing happens."""

    stop_action = 0

    def start(self):
        return [0, 0]

    def observe(self, walks):
        _, *size = tiny("listen_attend_walk").input["world_state"].shape[1:]
        world = np.zeros((len(walks), *size), "float32")
        return world, np.ones((len(walks), C), bool)

    def move(self, walks, actions):
        return walks


SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    "case, loss",
    [
        ("bert_classifier", SPARSE),
        ("gpt_token_classifier", "sparse_categorical_crossentropy"),
        ("vit_base_patch16", keras.losses.sparse_categorical_crossentropy),
        ("bert_pretrainer", {"next_sentence": SPARSE, "masked_lm": SPARSE}),
    ],
)
def test_an_error_names_the_label_that_is_no_class(case, loss):
    model = create(case)
    model.compile("sgd", loss)
    inputs = given(model, inputs_for(model))
    outputs = outputs_of(model, inputs_for(model))
    right = {name: value.argmax(-1) for name, value in outputs.items()}

    def as_taken(labels):
        return labels if isinstance(model.output, dict) else labels["logits"]

    for name, symbol in named(model.output).items():
        count = symbol.shape[-1]
        shown = rf"y\['{name}'\]" if isinstance(model.output, dict) else "y"
        for wrong in (-1, count):
            labels = as_taken({**right, name: np.full_like(right[name], wrong)})
            match = rf"`{shown}` must be in \[0, {count}\), .*Received: {wrong} at"
            for call in ("fit", "evaluate", "train_on_batch", "test_on_batch"):
                with pytest.raises(ValueError, match=match):
                    getattr(model, call)(inputs, labels)
    wrong = as_taken({name: np.full_like(x, -1) for name, x in right.items()})
    with pytest.raises(ValueError, match="Received: -1 at"):
        model.fit(inputs, as_taken(right), validation_data=(inputs, wrong))


def test_a_label_that_the_loss_ignores_is_no_error():
    model = create("bert_classifier")
    loss = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=-1)
    model.compile("sgd", loss, run_eagerly=True)
    inputs = inputs_for(model)
    assert np.isfinite(model.train_on_batch(inputs, np.array([-1, V], "int32")))
    with pytest.raises(ValueError, match="Received: -2 at"):
        model.train_on_batch(inputs, np.array([-2, 1], "int32"))


@pytest.mark.compiled
def test_a_batch_may_be_filled_up_to_train():
    model = create("bert_classifier")
    model.compile("sgd", SPARSE, jit_compile=False)
    inputs = inputs_for(model)
    inputs["padding_mask"][1] = False
    weights = np.array([1.0, 0.0])
    history = model.fit(inputs, np.zeros(B, "int32"), sample_weight=weights, verbose=0)
    assert np.isfinite(history.history["loss"][0])
