"""A generative model: `prefill` and `step`, in every format, weights stored once."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from keras_attn import models
from keras_attn.decoding import Beam, Greedy, IncrementalPair, generate
from keras_attn.export import ExportError, export, load_runner

SUFFIXES = ["", ".tflite", ".onnx"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["pair", "attention_pair"])
def test_runner_decodes_as_keras_does(build, tmp_path, name, suffix):
    path = tmp_path / f"pair{suffix}"
    report = export(build(name), path)
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
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_litert_fixes_the_batch_of_prefill_alone(build, tmp_path):
    """Beam search needs more rows in `step` than the prompt has."""
    path = tmp_path / "pair.tflite"
    report = export(build("pair"), path)
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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_state_takes_the_sizes_of_prefill(build, tmp_path, suffix):
    report = export(
        build("attention_pair"),
        tmp_path / f"pair{suffix}",
        batch_size=1,
        sequence_length=7,
    )
    assert report.inputs["prefill"]["token_ids"] == "int32 (1, 7)"
    assert report.inputs["step"]["padding_mask"] == "bool (?, 7)"
    assert report.outputs["prefill"]["memory"] == "float32 (1, 7, 5)"
    assert report.inputs["step"]["memory"] == "float32 (?, 7, 5)"
    assert report.inputs["step"]["last"] == "float32 (?, 5)"


@pytest.mark.parametrize("suffix", SUFFIXES)
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
    # The biases are zero, and a converter may leave such a one out.
    assert 0.95 * once < report.bytes < 1.1 * once


def test_generative_model_ships_its_pair(build, tmp_path):
    class Generative(keras.Model):
        def incremental(self):
            return build("attention_pair")

    features = layers.Input((7,), name="features")
    model = Generative(features, layers.Dense(3)(features))
    assert set(export(model, tmp_path / "pair").inputs) == {"prefill", "step"}
    teacher = keras.Model(model.inputs, model.outputs)
    assert set(export(teacher, tmp_path / "teacher").inputs) == {"serve"}


def test_onnx_output_that_is_also_an_input_is_renamed(build, tmp_path):
    onnx = pytest.importorskip("onnx")
    report = export(build("pair"), tmp_path / "pair.onnx")
    assert (
        "output `state` of `step` is renamed `state_out` in the graph, which has an "
        "input of that name" in report.notes
    )
    graph = onnx.load(tmp_path / "pair.onnx" / "step.onnx").graph
    assert {value.name for value in graph.output} == {"logits", "state_out"}
    assert {value.name for value in graph.input} == {"token_ids", "state"}
    step = load_runner(tmp_path / "pair.onnx").signatures["step"]
    assert set(step.outputs) == {"logits", "state"}


def test_prefill_must_return_what_step_takes(build, tmp_path):
    whole = build("pair")
    prompt = whole.prefill.inputs[0]
    outputs = {"logits": whole.prefill.outputs[0]}
    lacking = IncrementalPair(keras.Model({"token_ids": prompt}, outputs), whole.step)
    match = (
        r"must take or return every state that `step` takes. .* no state named \['sta"
    )
    with pytest.raises(ValueError, match=match):
        export(lacking, tmp_path / "pair")


def test_runner_without_the_signatures_says_so(build, tmp_path):
    export(build("mlp"), tmp_path / "m")
    runner = load_runner(tmp_path / "m")
    match = r"`signature` must be one of \['serve'\]. Received: signature='prefill'"
    with pytest.raises(ValueError, match=match):
        runner.prefill({})
    with pytest.raises(ValueError, match="signature='step'"):
        runner.step({})


def test_sample_inputs_are_those_of_prefill(build, tmp_path):
    with pytest.raises(ExportError, match="output `logits` of `prefill` differs"):
        export(
            build("pair"),
            tmp_path / "m.onnx",
            sample_inputs={"token_ids": [[3, 5, 7]]},
            tolerance=0.0,
        )


def test_a_length_is_that_of_the_source(tmp_path):
    model = models.create(
        "seq2seq_context",
        source_vocabulary_size=11,
        target_vocabulary_size=13,
        embedding_dim=3,
        hidden_dim=5,
        maxout_dim=2,
    )
    report = export(model, tmp_path / "pair", sequence_length=7)
    assert report.inputs["prefill"]["token_ids"] == "int32 (?, 7)"
    # What is decoded begins with one token, the start.
    assert report.inputs["prefill"]["decoder_token_ids"] == "int32 (?, 1)"


def test_lengths_and_beams_are_those_of_generative_models(build, tmp_path):
    path = tmp_path / "m"
    options: dict[str, Any]
    for options, message in [
        ({"max_length": 7}, "`max_length` is for generative models.*: max_length=7"),
        (
            {"num_beams": 2, "batch_size": 1},
            "`num_beams` is for generative models.*Received: num_beams=2",
        ),
        ({"num_beams": 2}, "pass `batch_size` too. Received: num_beams=2, batch_size="),
        ({"num_beams": 0}, "`num_beams` must be a whole number.*num_beams=0"),
    ]:
        with pytest.raises(ValueError, match=message):
            export(build("mlp"), path, **options)
    with pytest.raises(ValueError, match="made: .* max_length=7, pair.max_length"):
        export(build("pair"), path, max_length=7)

    class Generative(keras.Model):
        def incremental(self):
            return build("pair")

    features = layers.Input((7,))
    model = Generative(features, layers.Dense(3)(features))
    with pytest.raises(ValueError, match="models whose `incremental.*max_length=7"):
        export(model, path, max_length=7)
    with pytest.raises(ValueError, match="`max_length` must be at most 5, the posit"):
        export(tiny_gpt(), path, max_length=7)
    with pytest.raises(ValueError, match="`max_length` must be a whole.*max_length=0"):
        export(tiny_gpt(), path, max_length=0)
    assert not list(tmp_path.iterdir())


def tiny_gpt():
    return models.create(
        "gpt2_small",
        vocabulary_size=11,
        num_layers=1,
        hidden_dim=6,
        num_heads=2,
        mlp_dim=7,
        max_sequence_length=5,
    )
