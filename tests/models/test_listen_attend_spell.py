"""Listen, attend and spell: parity, sampling, waveforms, decoding in every format."""

import functools
from typing import Any

import keras
import numpy as np
import pytest
from lstm_reference import numpy_step, torch_step
from model_cases import build, create, full_passes, inputs_for, numpy, outputs_of, tiny
from model_family import B, C, E, T, U, V

from keras_attn.decoding import Beam, Greedy, Sample, generate
from keras_attn.layers import LogMelSpectrogram
from keras_attn.viz import capture_attention

pytestmark = pytest.mark.compiled

CASE = "listen_attend_spell"
FRAMES = 11  # Two halvings: 11, 6, 3; the padded row 9, 5, 3.
RATE = 8000
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


def blstm(step, forward, backward, frames):
    """Forward and backward states of every frame, (n, 2 U)."""
    directions = []
    for weights, ordered in ((forward, frames), (backward, frames[::-1])):
        h = c = np.zeros(U)
        states = []
        for x in ordered:
            h, c = step(weights, x, h, c)
            states.append(h)
        directions.append(states)
    return np.concatenate([directions[0], directions[1][::-1]], -1)


def spell(step, weights, h, tokens):
    """Logits and alignments of one row, character by character."""
    (embedding, W0, R0, b0, W1, R1, b1, Wq, bq, Wk, bk, Wr, br, Wo, bo) = weights
    psi = np.tanh(h @ Wk + bk)
    s0 = m0 = s1 = m1 = np.zeros(C)
    c, logits, alignments = np.zeros(2 * U), [], []
    for token in tokens:
        s0, m0 = step((W0, R0, b0), np.concatenate([embedding[token], c]), s0, m0)
        s1, m1 = step((W1, R1, b1), s0, s1, m1)
        energies = psi @ np.tanh(s1 @ Wq + bq)
        alpha = np.exp(energies - energies.max())
        alpha /= alpha.sum()
        c = alpha @ h
        readout = np.tanh(np.concatenate([s1, c]) @ Wr + br)
        logits.append(readout @ Wo + bo)
        alignments.append(alpha)
    return np.array(logits), np.array(alignments)


@pytest.mark.parametrize(
    "step", [numpy_step, pytest.param(torch_step, marks=pytest.mark.parity)]
)
def test_the_model_follows_chan_et_al(step):
    model = create(CASE, return_attention_scores=True)
    inputs = inputs_for(model, length=FRAMES)
    outputs = outputs_of(model, inputs)
    for row, length in enumerate(inputs["padding_mask"].sum(1)):
        frames = inputs["features"][row, :length].astype("float64")
        for index in range(3):
            weights = model.get_layer(f"listener_{index}").get_weights()
            weights = [np.asarray(w, "float64") for w in weights]
            if index:
                if len(frames) % 2:
                    frames = np.concatenate([frames, np.zeros((1, frames.shape[1]))])
                frames = frames.reshape(len(frames) // 2, -1)
            frames = blstm(step, weights[:3], weights[3:], frames)
        speller = model.get_layer("speller")
        weights = [np.asarray(w, "float64") for w in speller.get_weights()]
        tokens = inputs["decoder_token_ids"][row]
        logits, alignments = spell(step, weights, frames, tokens)
        np.testing.assert_allclose(outputs["logits"][row], logits, atol=1e-5)
        places = len(frames)
        scores = outputs["attention_scores"][row, 0]
        np.testing.assert_allclose(scores[:, :places], alignments, atol=1e-5)
        assert not scores[:, places:].any()


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_one_row_of_few_frames(frames):
    model = tiny(CASE)
    inputs = inputs_for(model, batch=1, target=1)
    for name in ("features", "padding_mask"):
        inputs[name] = inputs[name][:, :frames]
    assert outputs_of(model, inputs)["logits"].shape == (1, 1, V)


@pytest.mark.parametrize("jit_compile", [True, False] if IS_TENSORFLOW else [True])
def test_fits_with_samples_repeat_with_a_seed(jit_compile):
    keras.utils.set_random_seed(3)
    model = build(
        f"{CASE}-sampling",
        num_pyramid_layers=0,
        num_layers=1,
        return_attention_scores=False,
    )
    inputs = inputs_for(model, target=T + 4)
    labels = np.random.default_rng(0).integers(0, V, (B, T + 4))
    model.compile(
        keras.optimizers.SGD(0.5),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    weights = model.get_weights()

    def loss_of_a_fit():
        model.set_weights(weights)
        # In another order the rows would get each other's samples.
        history = model.fit(inputs, labels, batch_size=B, shuffle=False, verbose=0)
        return history.history["loss"]

    seed_state = model.get_layer("speller").seed_generator.state
    # A copy: a fit on JAX reuses the memory of what it is given.
    first_state = numpy(seed_state).copy()
    first = loss_of_a_fit()
    other = loss_of_a_fit()
    seed_state.assign(first_state)
    assert loss_of_a_fit() == first
    assert abs(other[0] - first[0]) > 1e-4


@functools.cache
def speaker():
    """A model of features that says different things, its front end, and speech."""
    front_end = LogMelSpectrogram(RATE, E, normalization="utterance")
    model: Any = create(CASE)
    rng = np.random.default_rng(0)
    mask = np.arange(1409) < np.array([[1409], [1000]])
    time = np.arange(1409) / RATE
    waveform = np.sin(2 * np.pi * np.array([[400], [900]]) * time * (1 + time))
    waveform = (waveform + 0.1 * rng.normal(size=(2, 1409))) * mask
    inputs = {
        "waveform": waveform.astype("float32"),
        "padding_mask": mask,
        "decoder_token_ids": np.array([[1, 5, 3], [1, 2, 2]], "int32"),
    }
    return model, front_end, inputs


def as_features(front_end, inputs):
    frames = numpy(front_end(inputs["waveform"], inputs["padding_mask"]))
    kept = {name: frames[name] for name in ("features", "padding_mask")}
    return {"decoder_token_ids": inputs["decoder_token_ids"], **kept}


def test_waveforms_and_features_give_the_same(tmp_path):
    model, front_end, inputs = speaker()
    heard = model.with_front_end(front_end, name="heard")
    assert heard.name == "heard"
    assert {id(w) for w in heard.weights} == {id(w) for w in model.weights}
    expected = outputs_of(model, as_features(front_end, inputs))["logits"]
    np.testing.assert_allclose(
        outputs_of(heard, inputs)["logits"], expected, rtol=0, atol=1e-5
    )
    compiled = heard.predict_on_batch(inputs)
    np.testing.assert_allclose(compiled, expected, rtol=0, atol=2e-5)
    wider = {
        **inputs,
        "waveform": np.pad(inputs["waveform"], [(0, 0), (0, 613)]),
        "padding_mask": np.pad(inputs["padding_mask"], [(0, 0), (0, 613)]),
    }
    np.testing.assert_allclose(
        outputs_of(heard, wider)["logits"], expected, rtol=0, atol=1e-5
    )
    heard.save(tmp_path / "heard.keras")
    loaded = keras.saving.load_model(tmp_path / "heard.keras", safe_mode=True)
    np.testing.assert_array_equal(
        outputs_of(loaded, inputs)["logits"], outputs_of(heard, inputs)["logits"]
    )
    greedy = generate(heard, inputs, 4).token_ids
    np.testing.assert_array_equal(generate(loaded, inputs, 4).token_ids, greedy)
    with_scores = create(f"{CASE}-sampling").with_front_end(front_end)
    assert set(with_scores.output) == {"logits", "attention_scores"}


def test_speech_without_a_window_is_named_whatever_was_heard_before():
    model, front_end, inputs = speaker()
    heard = model.with_front_end(front_end)
    window = front_end.window_length
    start = {"decoder_token_ids": np.ones((2, 1), "int32")}
    speech = {name: inputs[name] for name in ("waveform", "padding_mask")}

    def heard_for(samples):
        """The speech, cut off or followed by padding."""
        resized = {
            name: np.pad(value, [(0, 0), (0, 100)])[:, :samples]
            for name, value in speech.items()
        }
        return {**resized, **start}

    # For a second length TensorFlow compiles a graph of any length.
    for samples in (1409, 1509):
        generate(heard, heard_for(samples), 2)
    spoken = heard_for(1409)
    broken = {**spoken, "waveform": spoken["waveform"].copy()}
    broken["waveform"][1, 5] = np.nan
    few = {**spoken, "padding_mask": np.arange(1409) < [[1409], [window - 1]]}
    for given, match in (
        (heard_for(window - 1), rf"a length of at least {window}.*\(2, {window - 1}"),
        (broken, r"`waveform` must be finite numbers. Received: nan at index \(1, 5\)"),
        (few, rf"`padding_mask` must have at least {window} real .*in rows \[1\]"),
    ):
        for call in (
            *(heard, heard.predict, heard.predict_on_batch),
            lambda given: generate(heard, given, 2),
            lambda given: generate(heard.incremental(), given, 2),
        ):
            with pytest.raises(ValueError, match=match):
                call(given)
    # One window is enough.
    assert generate(heard, heard_for(window), 2).token_ids.shape == (2, 2)


def test_bad_front_ends_are_refused():
    model, front_end, _ = speaker()
    with pytest.raises(TypeError, match="`front_end` must be a LogMelSpectrogram"):
        model.with_front_end("mel")
    with pytest.raises(ValueError, match="must have the model's 11 filters.*=40"):
        model.with_front_end(LogMelSpectrogram(RATE, 40))
    with pytest.raises(ValueError, match="needs a model of features. Received"):
        model.with_front_end(front_end).with_front_end(front_end)


def test_a_model_without_a_pyramid_keeps_every_frame():
    model = create(f"{CASE}-sampling", num_pyramid_layers=0)
    inputs = inputs_for(model, length=FRAMES)
    assert outputs_of(model, inputs)["attention_scores"].shape[-1] == FRAMES


def test_speech_is_decoded_step_by_step():
    model, front_end, inputs = speaker()
    inputs = as_features(front_end, inputs)
    greedy = generate(model, inputs, 5)
    np.testing.assert_array_equal(greedy.token_ids, full_passes(model, inputs, 5))
    assert len(set(greedy.token_ids.ravel())) > 2
    # Without a mask every frame is real.
    whole = {name: value[:1] for name, value in inputs.items()}
    mask = whole.pop("padding_mask")
    assert mask.all()
    np.testing.assert_array_equal(
        generate(model, whole, 5).token_ids, greedy.token_ids[:1]
    )


def test_an_alignment_is_captured_of_waveforms_too():
    model, front_end, inputs = speaker()
    (scores,) = capture_attention(model.with_front_end(front_end), inputs).values()
    # 16 frames and 11: 8 and 6, 4 and 3 places.
    assert scores.shape == (2, 1, 3, 4)
    assert not scores[1, ..., 3:].any()
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)


@pytest.mark.shipped
@pytest.mark.skipif(not IS_TENSORFLOW, reason="the exporters need TensorFlow")
@pytest.mark.parametrize(
    "source", ["waveform", pytest.param("features", marks=pytest.mark.variation)]
)
def test_exported_models_decode_speech(source, tmp_path):
    from export_formats import SUFFIXES

    from keras_attn.export import export, load_runner

    model, front_end, inputs = speaker()
    if source == "waveform":
        model = model.with_front_end(front_end)
    else:
        inputs = as_features(front_end, inputs)
    inputs["decoder_token_ids"] = np.ones((2, 1), "int32")
    for name, suffix in SUFFIXES.items():
        sizes: dict[str, Any] = {}
        strategies: list[Any] = [Greedy(), Sample(seed=3), Beam(3)]
        if name == "litert":
            # A little longer than the speech, which is padded.
            length = inputs[source].shape[1] + 3
            sizes = {"batch_size": 2, "sequence_length": length}
            strategies = strategies[:2]
        else:
            sizes = {"sample_inputs": inputs}
        path = tmp_path / f"{source}{suffix}"
        report = export(model, path, **sizes)
        assert report.max_abs_diff is not None and report.max_abs_diff <= 1e-4
        runner = load_runner(path)
        if name == "litert":
            names = [operator.upper() for operator in report.operators]
            assert not [x for x in names if "FLEX" in x or "CUSTOM" in x]
        if source == "waveform":
            few = np.arange(1409) < np.array([[1409], [front_end.window_length - 1]])
            with pytest.raises(ValueError, match="`padding_mask` must have at least"):
                generate(runner, {**inputs, "padding_mask": few}, 4)
        for strategy in strategies:
            expected = generate(model, inputs, 4, strategy=strategy)
            got = generate(runner, inputs, 4, strategy=strategy)
            np.testing.assert_array_equal(got.token_ids, expected.token_ids)
            np.testing.assert_allclose(got.scores, expected.scores, atol=1e-4)
