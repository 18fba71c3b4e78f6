"""The front end, the pyramid and the speller, beyond the contract of layers."""

import keras
import numpy as np
import pytest
from keras import ops
from keras.src.saving import serialization_lib
from layer_contract import flat, normal, randomize

from keras_attn.layers import AttentionSpeller, LogMelSpectrogram, PyramidalBLSTM
from keras_attn.layers.recurrent.attention_speller import _sample
from keras_attn.layers.recurrent.recurrent import Recurrent

RATE = 8000


def array_of(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def samples(*lengths, scale=0.3, seed=0):
    """Noise of several lengths as waveforms, and their mask."""
    rng = np.random.default_rng(seed)
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    waveform = rng.normal(0, scale, mask.shape) * mask
    return waveform.astype("float32"), mask


@pytest.mark.parametrize("num_mels", [40, 80])
@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 44_100])
def test_usual_sizes_have_no_empty_filter(rate, num_mels):
    layer = LogMelSpectrogram(rate, num_mels)
    assert layer.window_length == round(0.025 * rate)
    assert layer.hop_length == round(0.010 * rate)
    outputs = layer(samples(rate // 10)[0])
    assert outputs["features"].shape == (1, 8, num_mels)
    assert array_of(outputs["frame_lengths"]) == [8]


@pytest.mark.parametrize("normalization", [None, "utterance"])
def test_padding_changes_no_frame(normalization):
    layer = LogMelSpectrogram(RATE, normalization=normalization)
    waveform, mask = samples(1409, 500, 200, 199)
    outputs = layer(np.where(mask, waveform, 9).astype("float32"), mask)
    lengths = array_of(outputs["frame_lengths"])
    np.testing.assert_array_equal(lengths, [16, 4, 1, 0])
    frames = array_of(outputs["padding_mask"])
    np.testing.assert_array_equal(frames, np.arange(16) < lengths[:, None])
    features = array_of(outputs["features"])
    assert not features[~frames].any()
    for row, length in enumerate((1409, 500, 200)):
        alone = layer(waveform[row : row + 1, :length])["features"]
        np.testing.assert_allclose(
            features[row, : lengths[row]], array_of(alone)[0], atol=1e-5
        )


def test_silence_has_defined_features():
    silence = np.zeros((1, 1000), "float32")
    plain = array_of(LogMelSpectrogram(RATE, floor=1e-4)(silence)["features"])
    np.testing.assert_allclose(plain, np.log(1e-4), atol=1e-5)
    layer = LogMelSpectrogram(RATE, normalization="utterance")
    # Rounding of the mean is all that is left.
    assert np.abs(array_of(layer(silence)["features"])).max() < 1e-3


def test_given_statistics_normalize():
    waveform, _ = samples(1409)
    plain = array_of(LogMelSpectrogram(RATE, 5)(waveform)["features"])
    mean, variance = [1.0, -2, 3, 0.5, 0], [4.0, 1, 0.25, 2, 9]
    layer = LogMelSpectrogram(RATE, 5, mean=mean, variance=variance)
    got = array_of(layer(waveform)["features"])
    np.testing.assert_allclose(got, (plain - mean) / np.sqrt(variance), atol=1e-5)


def test_half_precision_does_not_round_the_samples():
    waveform, _ = samples(1409)
    expected = array_of(LogMelSpectrogram(RATE)(waveform)["features"])
    layer = LogMelSpectrogram(RATE, dtype="mixed_bfloat16")
    features = layer(waveform)["features"]
    assert keras.backend.standardize_dtype(features.dtype) == "float32"
    np.testing.assert_allclose(array_of(features), expected, atol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_mels": 200}, r"`num_mels` is too large: .*Received: num_mels=200"),
        ({"hop_seconds": 1e-9}, "`hop_seconds` must be at least one sample, 6.25e-05"),
        (
            {"floor": float("nan")},
            "`floor` must be a number above 0. Received: floor=nan",
        ),
        ({"fft_length": 100}, "`fft_length` must be at least a window, 400"),
        ({"max_frequency": 9000}, r"from 0 to half the sampling rate, 8000 Hz"),
        ({"min_frequency": 500, "max_frequency": 400}, "`min_frequency` and"),
        ({"mean": [0.0] * 40}, "`mean` and `variance` must be given together"),
        (
            {"mean": [0.0] * 40, "variance": [1] * 40, "normalization": "utterance"},
            "`mean` and `variance` must be given together, and instead of",
        ),
        ({"mean": [0.0] * 3, "variance": [1] * 3}, "`mean` must be 40 finite numbers"),
        (
            {"mean": [0.0] * 40, "variance": [0] * 40},
            "`variance` must be 40 finite numbers, .*above zero",
        ),
    ],
)
def test_bad_settings_of_a_spectrogram_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LogMelSpectrogram(**options)


def test_bad_waveforms_are_refused():
    layer = LogMelSpectrogram(RATE)
    with pytest.raises(ValueError, match=r"at least 200, one window .*199"):
        layer(np.zeros((1, 199), "float32"))
    with pytest.raises(TypeError, match="divide 16-bit samples by 32768"):
        layer(np.zeros((1, 500), "int16"))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_padding_changes_nothing_at_odd_lengths(length):
    layer = PyramidalBLSTM(7)
    inputs = normal(2, 6, 3)
    layer(inputs)
    randomize(layer)
    mask = np.arange(6) < np.array([[6], [length]])
    inputs[1, length:] = 50
    outputs, shorter = layer(inputs, mask)
    alone, _ = layer(inputs[1:, :length])
    real = -(-length // 2)
    np.testing.assert_array_equal(array_of(shorter).sum(1), [3, real])
    np.testing.assert_allclose(
        array_of(outputs)[1, :real], array_of(alone)[0], atol=1e-6
    )


def test_the_cells_of_a_pyramid_compute_in_its_dtype():
    layer = PyramidalBLSTM(7, dtype="mixed_bfloat16")
    outputs, _ = layer(normal(2, 6, 3))
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
    for way in (layer.blstm.forward_layer, layer.blstm.backward_layer):
        assert way.compute_dtype == way.cell.compute_dtype == "bfloat16"
    assert {weight.dtype for weight in layer.weights} == {"float32"}


def speller(**options):
    """A speller of 7 tokens whose weights are large, and its inputs."""
    sizes = {"embedding_dim": 3, "hidden_dim": 5, "attention_dim": 11}
    layer = AttentionSpeller(7, **sizes, readout_dim=13, **options)
    tokens = np.random.default_rng(0).integers(0, 7, (2, 9)).astype("int32")
    memory = normal(2, 4, 3)
    layer(tokens, memory)
    randomize(layer)
    return layer, tokens, memory


def test_a_step_continues_where_a_call_ended():
    layer, tokens, memory = speller()
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)
    expected = layer(
        tokens, memory, memory_padding_mask=mask, return_attention_scores=True
    )
    state, projected, logits, scores = None, None, [], []
    for start, end in ((0, 4), (4, 5), (5, 9)):
        spelled = layer(
            tokens[:, start:end],
            memory,
            state,
            memory_padding_mask=mask,
            projected_memory=projected,
            return_attention_scores=True,
        )
        state, projected = spelled["final_state"], spelled["projected_memory"]
        logits.append(array_of(spelled["logits"]))
        scores.append(array_of(spelled["attention_scores"]))
    np.testing.assert_allclose(
        np.concatenate(logits, 1), array_of(expected["logits"]), atol=1e-6
    )
    np.testing.assert_allclose(
        np.concatenate(scores, 2), array_of(expected["attention_scores"]), atol=1e-6
    )
    for one, other in zip(flat(state), flat(expected["final_state"]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_without_sampling_training_changes_nothing():
    layer, tokens, memory = speller()
    one, other = (layer(tokens, memory, training=x)["logits"] for x in (True, False))
    np.testing.assert_array_equal(array_of(one), array_of(other))


def replayed(layer, tokens, memory, plan):
    """Logits (B, T, V), one step at a time, with the choices of a sampling plan."""
    state, logits = None, []
    for index in range(tokens.shape[1]):
        token, random = tokens[:, index], plan[:, index, 1]
        if index:
            shifted = logits[-1] - logits[-1].max(-1, keepdims=True)
            sums = np.cumsum(np.exp(shifted), -1)
            own = (sums > random[:, None] / 2**24 * sums[:, -1:]).argmax(-1)
            token = np.where(random == -1, token, own)
        spelled = layer(token[:, None].astype("int32"), memory, state)
        state = spelled["final_state"]
        logits.append(array_of(spelled["logits"])[:, 0])
    return np.stack(logits, 1)


@pytest.mark.parametrize("unroll", [False, True])
def test_a_speller_reads_its_own_samples(unroll, monkeypatch):
    layer, tokens, memory = speller(sampling_probability=0.5, seed=3, unroll=unroll)
    plans = []
    make = layer._sampling_plan
    monkeypatch.setattr(
        layer, "_sampling_plan", lambda x: plans.append(make(x)) or plans[-1]
    )
    got = array_of(layer(tokens, memory, training=True)["logits"])
    plan = array_of(plans[0])
    expected = replayed(layer, tokens, memory, plan)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    # The first token is always the true one; others are chosen by chance.
    assert (plan[:, 0, 1] == -1).all()
    assert 0 < (plan[:, 1:, 1] >= 0).mean() < 1
    plain = array_of(layer(tokens, memory)["logits"])
    np.testing.assert_allclose(got[:, 0], plain[:, 0], atol=1e-6)
    assert np.abs(got - plain).max() > 1e-2


def test_sampling_follows_the_seed():
    def first_and_second(seed):
        layer, tokens, memory = speller(sampling_probability=0.5, seed=seed)
        return [array_of(layer(tokens, memory, training=True)["logits"]) for _ in "12"]

    one, again, other = map(first_and_second, (3, 3, 4))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one[0] - one[1]).max() > 1e-3
    assert np.abs(one[0] - other[0]).max() > 1e-3


def test_the_share_and_the_distribution_of_samples_are_right():
    layer, _, _ = speller(sampling_probability=0.1, seed=5)
    plan = array_of(layer._sampling_plan(np.ones((100, 101), "int32")))
    assert abs((plan[:, 1:, 1] >= 0).mean() - 0.1) < 0.01
    probabilities = np.array([0.5, 0.0, 0.2, 0.3], "float32")
    random = np.random.default_rng(0).integers(0, 2**24, 20_000)
    random[:2] = 0, 2**24 - 1
    rows = np.broadcast_to(probabilities, (20_000, 4))
    tokens = array_of(_sample(ops.convert_to_tensor(rows), random))
    counts = np.bincount(tokens, minlength=4) / 20_000
    np.testing.assert_allclose(counts, probabilities, atol=0.01)
    assert tokens[0] == 0
    assert tokens[1] == 3


def test_bad_inputs_of_a_speller_are_refused():
    layer, tokens, memory = speller()
    with pytest.raises(ValueError, match=r"`initial_state` must .*2 of 5 states"):
        layer(tokens, memory, [np.zeros((2, 5))] * 2)


def test_a_loaded_layer_has_directions_of_its_own(tmp_path, monkeypatch):
    """Keras tells objects apart by `id`, which a deleted one leaves to the next."""
    inputs = keras.Input((None, 3))
    hidden, mask = PyramidalBLSTM(2, name="one")(inputs)
    model = keras.Model(inputs, PyramidalBLSTM(2, name="two")(hidden, mask)[0])
    model.save(tmp_path / "model.keras")
    monkeypatch.setattr(serialization_lib, "id", lambda x: hash(type(x)), raising=False)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    layers = [x for x in loaded._flatten_layers() if isinstance(x, Recurrent)]
    assert len(layers) == len({id(x.cell) for x in layers}) == 4
    frames = np.random.default_rng(0).normal(size=(2, 8, 3)).astype("float32")
    assert np.array_equal(array_of(loaded(frames)), array_of(model(frames)))
