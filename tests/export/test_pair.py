"""Generative models: `prefill` and `step` in every format, with shared weights."""

import keras
import model_cases
import numpy as np
import pytest
from export_formats import SUFFIXES
from keras import layers

from keras_attn.decoding import Beam, Greedy, IncrementalPair, generate
from keras_attn.export import ExportError, export, load_runner

pytestmark = pytest.mark.shipped


@pytest.mark.each_value
@pytest.mark.parametrize("suffix", SUFFIXES.values())
@pytest.mark.parametrize("name", ["pair", "attention_pair"])
def test_generated_tokens_equal_keras(build, artefact, name, suffix):
    path, report = artefact(name, suffix)
    assert set(report.inputs) == {"prefill", "step"}
    assert set(report.latency_ms) == {"prefill", "step"}
    runner = load_runner(path)
    assert set(runner.signatures) == {"prefill", "step"}
    ids = np.array([[5, 7, 11, 2]], np.int32)
    for strategy in (Greedy(), Beam(3)):
        want = generate(build(name), {"token_ids": ids}, 5, strategy=strategy)
        found = generate(runner, {"token_ids": ids}, 5, strategy=strategy)
        np.testing.assert_array_equal(found.token_ids, want.token_ids)
        np.testing.assert_allclose(found.scores, want.scores, atol=1e-5)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_litert_fixes_only_the_batch_of_prefill(build, artefact):
    """In beam search `step` has more rows than the prompt."""
    path, report = artefact("pair", ".tflite")
    assert report.inputs["prefill"] == {"token_ids": "int32 (1, ?)"}
    assert report.inputs["step"] == {
        "token_ids": "int32 (?)",
        "state": "float32 (?, 3)",
    }
    assert "`prefill` takes a batch of 1" in report.notes[0]
    runner = load_runner(path)
    state = runner.prefill({"token_ids": [[5, 7]]})["state"]
    beams = {"token_ids": [1, 2, 3, 4], "state": np.repeat(state, 4, axis=0)}
    want = build("pair").step({k: np.asarray(v) for k, v in beams.items()})
    np.testing.assert_allclose(runner.step(beams)["logits"], want["logits"], atol=1e-6)


@pytest.mark.parametrize("length", [7, None])
def test_litert_fixes_nothing_of_a_prefill_that_it_accepts(build, tmp_path, length):
    """`step` is rejected: once for its batch, and once for a length that is unknown."""
    pair, path = build("rolling_pair", length=length), tmp_path / "m.tflite"
    ids = np.array([[3, 5, 7, 11, 13, 17, 19], [2, 0, 4, 1, 6, 9, 8]])
    report = export(pair, path, sample_inputs={"token_ids": ids})
    assert report.inputs == {
        "prefill": {"token_ids": "int32 (?, 7)"},
        "step": {"token_ids": "int32 (1)", "memory": "float32 (1, 7, 5)"},
    }
    notes = [note.split(":")[0] for note in report.notes]
    assert notes == ["`step` takes a batch of 1"] + (
        [] if length else ["`prefill` takes the lengths of `sample_inputs`"]
    )
    runner = load_runner(path)
    memory = runner.prefill({"token_ids": ids})["memory"][1:]
    state = {"token_ids": np.array([5]), "memory": memory}
    want = pair.step(state)["logits"]
    np.testing.assert_allclose(runner.step(state)["logits"], want, atol=1e-6)


def test_litert_takes_no_layer_for_a_signature(build, tmp_path):
    """The location of the operator ends in `after_prefill_roll/Roll@__…_step_…`."""
    pair = build("rolling_pair", length=7, layer="after_prefill_roll")
    report = export(pair, tmp_path / "m.tflite")
    assert report.inputs["prefill"] == {"token_ids": "int32 (?, 7)"}
    assert [note.split(":")[0] for note in report.notes] == [
        "`step` takes a batch of 1"
    ]


@pytest.mark.parametrize("suffix", SUFFIXES.values())
def test_state_has_the_lengths_of_prefill(build, tmp_path, suffix):
    path = tmp_path / f"pair{suffix}"
    report = export(build("attention_pair"), path, batch_size=1, sequence_length=7)
    assert report.inputs["prefill"]["token_ids"] == "int32 (1, 7)"
    assert report.inputs["step"]["padding_mask"] == "bool (?, 7)"
    assert report.outputs["prefill"]["memory"] == "float32 (1, 7, 5)"
    assert report.inputs["step"]["memory"] == "float32 (?, 7, 5)"
    assert report.inputs["step"]["last"] == "float32 (?, 5)"


@pytest.mark.parametrize("suffix", SUFFIXES.values())
def test_weights_are_stored_once(tmp_path, suffix):
    keras.utils.set_random_seed(1)
    embedding = layers.Embedding(4099, 61, name="embedding")
    readout = layers.Dense(4099, name="readout")
    prompt = layers.Input((None,), dtype="int32", name="token_ids")
    token = layers.Input((), dtype="int32", name="token_ids")
    last = embedding(prompt)[:, -1]
    before = layers.Input((61,), name="last")
    both = layers.add([embedding(token), before])
    pair = IncrementalPair(
        keras.Model({"token_ids": prompt}, {"logits": readout(last), "last": last}),
        keras.Model(
            {"token_ids": token, "last": before},
            {"logits": readout(both), "last": both},
        ),
    )
    once = 4 * pair.prefill.count_params()
    report = export(pair, tmp_path / f"pair{suffix}")
    # A converter may leave out the biases, which are zero.
    assert 0.95 * once < report.bytes < 1.1 * once


def test_generative_model_is_exported_as_a_pair(build, tmp_path):
    class Generative(keras.Model):
        def incremental(self):
            return build("attention_pair")

    features = layers.Input((7,), name="features")
    model = Generative(features, layers.Dense(3)(features))
    assert set(export(model, tmp_path / "pair").inputs) == {"prefill", "step"}
    forward = keras.Model(model.inputs, model.outputs)
    assert set(export(forward, tmp_path / "forward").inputs) == {"serve"}


def test_onnx_output_that_is_also_an_input_is_renamed(artefact):
    onnx = pytest.importorskip("onnx")
    path, report = artefact("pair", ".onnx")
    assert (
        "output `state` of `step` is renamed `state_out` in the graph, which has an "
        "input of that name" in report.notes
    )
    graph = onnx.load(path / "step.onnx").graph
    assert {value.name for value in graph.output} == {"logits", "state_out"}
    assert {value.name for value in graph.input} == {"token_ids", "state"}
    step = load_runner(path).signatures["step"]
    assert set(step.outputs) == {"logits", "state"}


def test_prefill_must_return_what_step_takes(build, tmp_path):
    pair = build("pair")
    prompt = pair.prefill.inputs[0]
    outputs = {"logits": pair.prefill.outputs[0]}
    incomplete = IncrementalPair(keras.Model({"token_ids": prompt}, outputs), pair.step)
    match = (
        r"must take or return every state that `step` takes. .* no state named \['sta"
    )
    with pytest.raises(ValueError, match=match):
        export(incomplete, tmp_path / "pair")


def test_artefact_without_prefill_and_step(artefact):
    runner = load_runner(artefact("mlp", "")[0])
    match = r"`signature` must be one of \['serve'\]. Received: signature='prefill'"
    with pytest.raises(ValueError, match=match):
        runner.prefill({})
    with pytest.raises(ValueError, match="signature='step'"):
        runner.step({})


def test_sample_inputs_are_inputs_of_prefill(build, tmp_path):
    with pytest.raises(ExportError, match="output `logits` of `prefill` differs"):
        export(
            build("pair"),
            tmp_path / "m.onnx",
            sample_inputs={"token_ids": [[3, 5, 7]]},
            tolerance=0.0,
        )


def test_sequence_length_applies_to_the_source(tmp_path):
    model = model_cases.build("seq2seq_context")
    report = export(model, tmp_path / "pair", sequence_length=7)
    assert report.inputs["prefill"]["token_ids"] == "int32 (?, 7)"
    # The target is one token, the start token.
    assert report.inputs["prefill"]["decoder_token_ids"] == "int32 (?, 1)"
