"""Log-mel spectrograms against NumPy's FFT, and sequences of frames."""

import numpy as np
import pytest
from keras import ops as kops

from keras_attn import ops

RATE = 8000
# Window, hop and transform in samples: 25 ms and 10 ms, and odd ones.
SIZES = [(200, 80, 256), (276, 110, 512), (23, 11, 37)]


def array_of(tensor):
    return np.asarray(kops.convert_to_numpy(tensor))


def mel_of(frequency):
    return 1127.0 * np.log(1.0 + frequency / 700.0)


def reference_filters(count, fft_length, low, high):
    """Every triangle and every frequency by itself."""
    corners = np.linspace(mel_of(low), mel_of(high), count + 2)
    filters = np.zeros((fft_length // 2 + 1, count))
    for row, frequency in enumerate(np.fft.rfftfreq(fft_length, 1 / RATE)):
        mel = mel_of(frequency)
        for column in range(count):
            left, top, right = corners[column : column + 3]
            if left < mel <= top:
                filters[row, column] = (mel - left) / (top - left)
            elif top < mel < right:
                filters[row, column] = (right - mel) / (right - top)
    return filters


def reference(waveform, window, hop, fft_length, filters, floor):
    """Frame by frame, with NumPy's FFT."""
    hann = np.hanning(window + 1)[:-1]
    rows = []
    for start in range(0, len(waveform) - window + 1, hop):
        frame = waveform[start : start + window].astype("float64") * hann
        power = np.abs(np.fft.rfft(frame, fft_length)) ** 2
        rows.append(np.log(np.maximum(power @ filters, floor)))
    return np.array(rows)


@pytest.mark.parametrize("window, hop, fft_length", SIZES)
def test_log_mel_spectrograms_are_those_of_an_fft(window, hop, fft_length):
    rng = np.random.default_rng(5)
    time = np.arange(1409) / RATE
    chirp = 0.5 * np.sin(2 * np.pi * (300 + 4000 * time) * time)
    waveform = np.stack([chirp + 0.01 * rng.normal(size=1409), rng.normal(size=1409)])
    waveform = waveform.astype("float32")
    expected_filters = reference_filters(7, fft_length, 60.0, 3700.0)
    filters = ops.mel_filters(7, fft_length, RATE, 60.0, 3700.0)
    np.testing.assert_allclose(filters, expected_filters, atol=2e-5)
    got = ops.log_mel_spectrogram(
        waveform, ops.dft_kernel(window, fft_length), filters, hop, 1e-6
    )
    expected = [
        reference(row, window, hop, fft_length, filters, 1e-6) for row in waveform
    ]
    assert np.std(expected) > 0.5
    np.testing.assert_allclose(array_of(got), expected, rtol=0, atol=1e-4)


def test_frames_are_counted_as_they_are_computed():
    samples = np.arange(0, 40)
    frames = array_of(ops.num_frames(samples, 7, 3))
    expected = [len(range(0, n - 7 + 1, 3)) if n >= 7 else 0 for n in samples]
    np.testing.assert_array_equal(frames, expected)


def test_utterances_are_normalized_over_their_real_frames():
    rng = np.random.default_rng(1)
    features = rng.normal(3, 5, (2, 11, 3)).astype("float32")
    mask = np.arange(11) < np.array([[11], [4]])
    features[1, 4:] = 1e6
    got = array_of(ops.normalize_utterances(features, mask))
    for row, length in zip((0, 1), (11, 4), strict=True):
        real = features[row, :length]
        expected = (real - real.mean(0)) / np.sqrt(real.var(0) + 1e-5)
        np.testing.assert_allclose(got[row, :length], expected, atol=1e-5)


@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 5, 6, 7])
def test_frames_are_stacked(factor, length):
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(2, length, 3)).astype("float32")
    lengths = [length, max(1, length - 2)]
    mask = np.arange(length) < np.array(lengths)[:, None]
    got, got_mask = map(array_of, ops.stack_frames(inputs, mask, factor))
    assert got.shape == (2, -(-length // factor), 3 * factor)
    for row, real in enumerate(lengths):
        frames = [*inputs[row, :real], *np.zeros((factor * length, 3))]
        for index in range(got.shape[1]):
            expected = np.concatenate(frames[index * factor : (index + 1) * factor])
            np.testing.assert_array_equal(got[row, index], expected)
        assert got_mask[row].sum() == -(-real // factor)
        assert got_mask[row, : -(-real // factor)].all()


def test_sequences_move_to_the_front():
    inputs = np.arange(2 * 5 * 3, dtype="float32").reshape(2, 5, 3)
    mask = np.array([[0, 0, 1, 1, 0], [1, 1, 1, 1, 1]])
    moved, moved_mask = map(array_of, ops.move_to_front(inputs, mask))
    np.testing.assert_array_equal(moved_mask, [[1, 1, 0, 0, 0], [1] * 5])
    np.testing.assert_array_equal(moved[0, :2], inputs[0, 2:4])
    np.testing.assert_array_equal(moved[1], inputs[1])
    # Nothing but padding stays so.
    assert not array_of(ops.move_to_front(inputs, 0 * mask)[1]).any()
