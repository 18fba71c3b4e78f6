"""Log-mel spectrograms, and padded sequences of frames.

Legend: B batch, N samples, T frames, K = fft_length // 2 + 1 frequencies, F filters, D
width.
"""

import numpy as np
from keras import ops


def mel_filters(num_mels, fft_length, sampling_rate, min_frequency, max_frequency):
    """Triangular filters whose corners are equally spaced on the mel scale.

    `mel(f) = 2595 log10(1 + f / 700)`. Filter i rises from corner i to 1 at corner
    i + 1, and falls to 0 at corner i + 2, both linearly in mel.

    Args:
        num_mels: F.
        fft_length: Samples of the discrete Fourier transform.
        sampling_rate: Samples per second.
        min_frequency: First corner, in Hz.
        max_frequency: Last corner, in Hz.

    Returns:
        A NumPy array, float64 (K, F).

    Reference:
        Davis and Mermelstein 1980, "Comparison of Parametric Representations for
        Monosyllabic Word Recognition"; the scale is HTK's.
    """
    frequencies = np.arange(fft_length // 2 + 1) * sampling_rate / fft_length
    corners = np.linspace(_mel(min_frequency), _mel(max_frequency), num_mels + 2)
    left, center, right = corners[:-2], corners[1:-1], corners[2:]
    mel = _mel(frequencies)[:, None]
    rising = (mel - left) / (center - left)
    falling = (right - mel) / (right - center)
    return np.maximum(0.0, np.minimum(rising, falling))


def dft_kernel(window_length, fft_length):
    """A Hann window and the discrete Fourier transform of one frame, as one matrix.

    The transform has `fft_length` samples: the frame, and zeros after it.

    Args:
        window_length: Samples of a frame.
        fft_length: Samples of the transform, at least `window_length`.

    Returns:
        A NumPy array, float64 (window_length, 2 K): real parts, then imaginary ones.
    """
    samples = np.arange(window_length)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * samples / window_length)
    turns = np.outer(samples, np.arange(fft_length // 2 + 1)) % fft_length
    angles = 2 * np.pi * turns / fft_length
    parts = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
    return window[:, None] * parts


def log_mel_spectrogram(waveform, kernel, filters, hop_length, floor):
    """`log(max(floor, |DFT(window · frame)|² filters))` for every frame.

    The transform is a matrix product, which LiteRT and ONNX have, unlike an FFT: a
    convolution applies it to every frame without copying the frames.

    Args:
        waveform: float32 (B, N).
        kernel: From `dft_kernel`, (window_length, 2 K).
        filters: From `mel_filters`, (K, F).
        hop_length: Samples from one frame to the next.
        floor: Minimum energy, so that the logarithm of silence is finite.

    Returns:
        float32 (B, T, F), with `T = 1 + (N - window_length) // hop_length`. Samples
        after the last whole frame are left out.
    """
    spectrum = ops.conv(
        ops.expand_dims(waveform, -1),
        ops.expand_dims(ops.convert_to_tensor(kernel, "float32"), 1),
        strides=hop_length,
        padding="valid",
        data_format="channels_last",
    )
    real, imaginary = ops.split(spectrum, 2, axis=-1)
    power = ops.add(ops.square(real), ops.square(imaginary))
    energies = ops.matmul(power, ops.convert_to_tensor(filters, "float32"))
    return ops.log(ops.maximum(energies, floor))


def num_frames(num_samples, window_length, hop_length):
    """Number of whole frames in `num_samples` samples; 0 if less than a window.

    Args:
        num_samples: Integers, a tensor of any shape.
        window_length: Samples of a frame.
        hop_length: Samples from one frame to the next.

    Returns:
        int32, of the same shape.
    """
    beyond = ops.subtract(ops.cast(num_samples, "int32"), window_length)
    # Avoids integer division of negative numbers, which runtimes round differently.
    whole = ops.floor_divide(ops.maximum(beyond, 0), hop_length)
    return ops.where(ops.less(beyond, 0), 0, ops.add(whole, 1))


def normalize_utterances(features, padding_mask, epsilon=1e-5):
    """Subtracts the mean of each utterance and filter, and divides by its deviation.

    Args:
        features: float32 (B, T, F).
        padding_mask: Boolean (B, T), True = a real frame.
        epsilon: Added to the variance, so that a constant filter becomes 0.

    Returns:
        float32 (B, T, F); the values at padding are meaningless.
    """
    real = ops.expand_dims(ops.cast(padding_mask, features.dtype), -1)
    count = ops.maximum(ops.sum(real, axis=1, keepdims=True), 1.0)
    mean = ops.divide(ops.sum(features * real, axis=1, keepdims=True), count)
    centered = ops.subtract(features, mean)
    variance = ops.sum(ops.square(centered) * real, axis=1, keepdims=True) / count
    return ops.divide(centered, ops.sqrt(variance + epsilon))


def stack_frames(inputs, padding_mask, factor):
    """Concatenates every `factor` successive frames into one; zeros fill up the last.

    Args:
        inputs: (B, T, D).
        padding_mask: (B, T), True = a real frame.
        factor: Number of frames that become one.

    Returns:
        The stacked frames, (B, ⌈T / factor⌉, factor · D), where padding is 0, and their
        mask, boolean (B, ⌈T / factor⌉), True = at least one frame is real.
    """
    mask = ops.cast(padding_mask, "bool")
    inputs = ops.where(ops.expand_dims(mask, -1), inputs, ops.zeros_like(inputs))
    frames, masks = [], []
    for start in range(factor):
        # Padded to T + start frames, so that every slice has ⌈T / factor⌉ frames.
        padded = ops.pad(inputs, [(0, 0), (0, start), (0, 0)])
        padded_mask = ops.pad(mask, [(0, 0), (0, start)], constant_values=False)
        frames.append(padded[:, start::factor])
        masks.append(padded_mask[:, start::factor])
    merged = masks[0]
    for other in masks[1:]:
        merged = ops.logical_or(merged, other)
    return ops.concatenate(frames, axis=-1), merged


def move_to_front(inputs, padding_mask):
    """Moves each sequence to the front of its row, so that padding is at the end only.

    Args:
        inputs: (B, T, D).
        padding_mask: (B, T), True = a real frame.

    Returns:
        The moved inputs, (B, T, D), whose values at padding are meaningless, and their
        mask, boolean (B, T).
    """
    mask = ops.cast(padding_mask, "int32")
    first = ops.cast(ops.argmax(mask, axis=1, keepdims=True), "int32")
    # `arange` would need the length, which a symbolic tensor may not know.
    place = ops.cumsum(ops.ones_like(mask), axis=1) - 1
    last = ops.max(place, axis=1, keepdims=True)
    source = ops.add(place, first)
    is_inside = ops.less_equal(source, last)
    source = ops.minimum(source, last)
    moved_mask = ops.take_along_axis(mask, source, axis=1)
    moved = ops.take_along_axis(inputs, ops.expand_dims(source, -1), axis=1)
    return moved, ops.logical_and(ops.cast(moved_mask, "bool"), is_inside)


def _mel(frequency):
    return 2595.0 * np.log10(1.0 + np.asarray(frequency, np.float64) / 700.0)
