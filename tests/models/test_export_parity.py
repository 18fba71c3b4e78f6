"""Every kind of model exports, whole and as a pair for decoding, to every format."""

from typing import Any

import keras
import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from model_cases import (
    DECODERS,
    GRAPHS,
    ONE_OF_EACH,
    inputs_for,
    numpy,
    outputs_of,
    tiny,
)
from model_contract import FEW, close
from model_family import B, S, T

pytestmark = pytest.mark.shipped

skip_module_without_tensorflow("the exporters need the TensorFlow backend")

from export_formats import SUFFIXES  # noqa: E402

from keras_attn.checks.indices import length_ranges  # noqa: E402
from keras_attn.export import export, load_runner  # noqa: E402
from keras_attn.models.parts.functional import without_training_outputs  # noqa: E402

# LiteRT's built-in operators only: these would need another runtime.
NOT_BUILT_IN = ("FLEX", "CUSTOM")


def pairs_of(graph):
    """The cases of a graph whose pairs for decoding are exported."""
    decodes = graph.name in DECODERS
    return ((graph.name,) if decodes else ()) if graph.pairs is None else graph.pairs


# Every graph; options and heads with operators of their own; a pair of each kind of
# state.
PAIRS = [case for graph in GRAPHS.values() for case in pairs_of(graph)]
SHIPPED = [
    *((name, "forward") for name in GRAPHS),
    *((case, "forward") for graph in GRAPHS.values() for case in graph.exported),
    *((case, "pair") for case in PAIRS),
]


def is_variation(case, what, format):
    """Whether other files have the same operators.

    The first model of a family goes to LiteRT, whose operators are the fewest; a few
    models to the other formats, too; and what is exported as a pair is not exported
    whole.
    """
    if format != "litert":
        return case not in FEW
    if what == "pair":
        return case not in ONE_OF_EACH
    return case in PAIRS or case not in ONE_OF_EACH


every_file = pytest.mark.parametrize(
    "case, what, format",
    [
        pytest.param(
            *(case, what, format),
            marks=pytest.mark.variation if is_variation(case, what, format) else (),
        )
        for case, what in SHIPPED
        for format in SUFFIXES
    ],
)


@pytest.fixture(scope="session")
def shipped(tmp_path_factory):
    """Exports a model once per session: its report and its runner."""
    folder, done = tmp_path_factory.mktemp("shipped"), {}

    def ship(case, what, format):
        key = (case, what, format)
        if key not in done:
            model = tiny(case)
            if what == "forward" and case in DECODERS:
                model = keras.Model(model.input, model.output)
            # Fixed sizes, as on a phone.
            sizes: dict[str, Any] = {}
            if format == "litert":
                inputs = inputs_for(model)
                sizes = {"batch_size": B}
                lengths = {
                    tensor.name: inputs[tensor.name].shape[1]
                    for tensor in model.inputs
                    if tensor.shape[1:2] == (None,)
                }
                if lengths:  # For a pair one number is the source length.
                    sizes["sequence_length"] = S if what == "pair" else lengths
            path = folder / f"{case}-{what}{SUFFIXES[format]}"
            report = export(model, path, **sizes)
            done[key] = report, load_runner(path)
        return done[key]

    return ship


@every_file
def test_exported_models_compute_the_same(shipped, case, what, format):
    report, runner = shipped(case, what, format)
    assert report.max_abs_diff is not None
    assert report.max_abs_diff <= report.tolerance == 1e-4
    assert report.operators
    assert len(report.example.splitlines()) == 6
    exec(report.example, {})
    if format == "litert":
        names = [operator.upper() for operator in report.operators]
        assert not [n for n in names if any(bad in n for bad in NOT_BUILT_IN)]
    # Again, independently of the exporter's own comparison.
    model = tiny(case)
    if what == "forward":
        inputs = inputs_for(model)
        # Without what only training needs, such as the scores of an auxiliary head.
        served = without_training_outputs(model)
        got, expected = runner(inputs), outputs_of(served, inputs)
        if len(expected) == 1:  # Formats name a single output after its layer.
            got = dict(zip(expected, got.values(), strict=True))
        close(got, expected, 2e-5)
        return
    assert set(runner.signatures) == {"prefill", "step"}
    pair = model.incremental()
    inputs = inputs_for(pair.prefill, target=1)
    expected = numpy(pair.prefill(inputs))
    close(runner.prefill(inputs), expected, 1e-5)
    state = {
        name: value
        for name, value in {**inputs, **expected}.items()
        if name in runner.signatures["step"].inputs
    }
    if "world_state" not in state:  # Which is read instead of a token.
        state["token_ids"] = np.array([5, 3], "int32")
    close(runner.step(state), numpy(pair.step(state)), 1e-5)


@every_file
def test_an_artefact_names_what_it_has_no_answer_to(shipped, case, what, format):
    _, runner = shipped(case, what, format)
    name = "prefill" if what == "pair" else "serve"
    signature = runner.signatures[name]
    model = tiny(case)
    model = model.incremental().prefill if what == "pair" else model
    inputs = inputs_for(model, target=1 if what == "pair" else T)
    # As the model, where the lengths are free.
    ranges = {
        key: allowed
        for key, allowed in length_ranges(model).items()
        if signature.inputs[key].shape[1] is None
    }
    assert ranges.items() <= runner.length_ranges.get(name, {}).items()
    limits = {key: high for key, (_, high) in ranges.items() if high is not None}
    for key, high in limits.items():
        longer = np.resize(inputs[key], (B, high))
        with pytest.raises(ValueError, match=f"{key}.* length of at most {high - 1}"):
            runner({**inputs, key: longer}, name)
    if "padding_mask" in inputs:
        padded = np.zeros_like(inputs["padding_mask"])
        with pytest.raises(ValueError, match="padding_mask.* padding in rows"):
            runner({**inputs, "padding_mask": padded}, name)
    for key, value in inputs.items():
        if value.dtype == np.float32:
            wrong = np.where(value == value.max(), np.nan, value)
            with pytest.raises(ValueError, match=f"{key}.* must be finite"):
                runner({**inputs, key: wrong}, name)
