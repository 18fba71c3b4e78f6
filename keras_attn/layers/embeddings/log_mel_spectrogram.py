"""From audio samples to log-mel filter bank features.

Legend: B batch, N samples, T frames, F filters.
"""

import math
from typing import Literal

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_attn.checks.arguments import (
    check_above_zero,
    check_choice,
    check_positive,
    check_rank,
)
from keras_attn.checks.inputs import check_length
from keras_attn.layers.attention.attention_checks import check_padding_mask
from keras_attn.layers.base import BaseLayer
from keras_attn.ops import (
    dft_kernel,
    log_mel_spectrogram,
    mel_filters,
    normalize_utterances,
    num_frames,
)


@keras.saving.register_keras_serializable("keras_attn")
class LogMelSpectrogram(BaseLayer):
    """`log(max(floor, |DFT(Hann window · frame)|² · mel filters))` of every frame.

    It has no weights and runs wherever a model runs, also in an exported file, so that
    a model of features becomes a model of waveforms. It computes in float32 under every
    dtype policy, because energies differ by many powers of ten.

    Args:
        sampling_rate: Samples per second of the waveforms. `data.read_wav` converts a
            file to this rate; the rate of a tensor cannot be checked.
        num_mels: F, number of filters.
        window_seconds: Length of a frame, rounded to samples.
        hop_seconds: Time from the start of a frame to the start of the next, rounded to
            samples.
        fft_length: Samples of the discrete Fourier transform: a frame, and zeros.
            Default: the next power of two.
        min_frequency: Where the first filter begins, in Hz.
        max_frequency: Where the last filter ends, in Hz. Default: half the sampling
            rate.
        normalization: `"utterance"` subtracts the mean of each utterance and filter
            over its real frames, and divides by their standard deviation. None = no
            normalization.
        mean: F numbers to subtract instead, such as the means of a training set.
        variance: F numbers; the features are divided by their square roots.
        floor: Minimum energy. The features of silence are its logarithm.
        **kwargs: `name`, … of a Keras layer.

    Call arguments:
        inputs: Waveforms in [-1, 1], float (B, N), at least one window long.
        padding_mask: (B, N), True = a real sample; padding comes at the end. Default:
            every sample is real.

    Returns:
        A dictionary of

        - `features`: float32 (B, T, F), 0 in padding; T = 1 + (N - window) // hop,
        - `padding_mask`: boolean (B, T), True = a frame of only real samples,
        - `frame_lengths`: int32 (B,), the number of such frames, 0 for a waveform
          shorter than a window.

    Raises:
        TypeError: If the waveforms are integers.
        ValueError: If an argument is out of range, a filter is so narrow that it falls
            between two frequencies of the transform, or the waveforms are shorter than
            a window.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers

        waveforms = np.random.uniform(-1, 1, (2, 8000))  # Of a second.
        spectrogram = layers.LogMelSpectrogram(8000, normalization="utterance")
        spectrogram(waveforms, np.ones((2, 8000)))["features"]  # (2, 98, 40)
        ```

    Reference:
        Chan et al. 2016, section 4: 40 filters every 10 ms (arXiv:1508.01211). The
        paper does not say how they are computed: the scale here is HTK's, and windows
        of 25 ms are usual.
    """

    def __init__(
        self,
        sampling_rate: int = 16_000,
        num_mels: int = 40,
        *,
        window_seconds: float = 0.025,
        hop_seconds: float = 0.010,
        fft_length: int | None = None,
        min_frequency: float = 0.0,
        max_frequency: float | None = None,
        normalization: Literal["utterance"] | None = None,
        mean: ArrayLike | None = None,
        variance: ArrayLike | None = None,
        floor: float = 1e-6,
        **kwargs,
    ):
        # Samples in half precision would keep only eight bits.
        super().__init__(**kwargs, autocast=False)
        self.sampling_rate = check_positive("sampling_rate", sampling_rate)
        self.num_mels = check_positive("num_mels", num_mels)
        self.window_seconds = check_above_zero("window_seconds", window_seconds)
        self.hop_seconds = check_above_zero("hop_seconds", hop_seconds)
        self.floor = check_above_zero("floor", floor)
        self.window_length = self._samples("window_seconds", window_seconds)
        self.hop_length = self._samples("hop_seconds", hop_seconds)
        self.fft_length = fft_length
        self.min_frequency = min_frequency
        self.max_frequency = max_frequency
        check_choice("normalization", normalization, (None, "utterance"))
        self.normalization = normalization
        self.mean, self.variance = self._check_statistics(mean, variance)
        transform_length = self._check_fft_length()
        self._filters = self._make_filters(transform_length)
        self._kernel = dft_kernel(self.window_length, transform_length)

    @property
    def length_ranges(self):
        """Range of valid lengths, `(start, stop)`: at least one window of samples."""
        return {"inputs": (self.window_length, None)}

    def call(self, inputs, padding_mask=None):
        check_rank("inputs", inputs, 2, "(batch, samples)")
        if not keras.backend.is_float_dtype(
            keras.backend.standardize_dtype(inputs.dtype)
        ):
            raise TypeError(
                "`inputs` must be samples in [-1, 1]: divide 16-bit samples by 32768. "
                f"Received: inputs of dtype {inputs.dtype}"
            )
        check_padding_mask("padding_mask", padding_mask, *inputs.shape)
        check_length("inputs", inputs.shape, self.length_ranges["inputs"])
        inputs = ops.cast(inputs, "float32")
        if padding_mask is None:
            padding_mask = ops.ones_like(inputs)
        samples = ops.sum(ops.cast(padding_mask, "int32"), axis=1)
        lengths = num_frames(samples, self.window_length, self.hop_length)
        features = log_mel_spectrogram(
            inputs, self._kernel, self._filters, self.hop_length, self.floor
        )
        # Frames are numbered by a sum: their number may be unknown.
        number = ops.cumsum(ops.ones_like(features[..., 0], dtype="int32"), axis=1)
        is_real = ops.less_equal(number, ops.expand_dims(lengths, 1))
        if self.normalization == "utterance":
            features = normalize_utterances(features, is_real)
        elif self.mean is not None:
            deviation = np.sqrt(np.array(self.variance, "float32"))
            features = (features - np.array(self.mean, "float32")) / deviation
        zero = ops.zeros_like(features)
        return {
            "features": ops.where(ops.expand_dims(is_real, -1), features, zero),
            "padding_mask": is_real,
            "frame_lengths": lengths,
        }

    def _samples(self, name, seconds):
        count = round(seconds * self.sampling_rate)
        if count < 1:
            raise ValueError(
                f"`{name}` must be at least one sample, {1 / self.sampling_rate:g} s. "
                f"Received: {name}={seconds}, sampling_rate={self.sampling_rate}"
            )
        return count

    def _check_statistics(self, mean, variance):
        """Returns both as lists of F numbers, or None."""
        if mean is None and variance is None:
            return None, None
        if mean is None or variance is None or self.normalization is not None:
            raise ValueError(
                "`mean` and `variance` must be given together, and instead of "
                f"`normalization`. Received: mean={mean}, variance={variance}, "
                f"normalization={self.normalization!r}"
            )
        lists = []
        for name, values in (("mean", mean), ("variance", variance)):
            array = np.asarray(values, np.float64)
            is_bad = name == "variance" and bool((array <= 0).any())
            if (
                array.shape != (self.num_mels,)
                or not np.isfinite(array).all()
                or is_bad
            ):
                raise ValueError(
                    f"`{name}` must be {self.num_mels} finite numbers, one for each "
                    f"filter{', above zero' if name == 'variance' else ''}. "
                    f"Received: {name}={values}"
                )
            lists.append(array.tolist())
        return lists

    def _check_fft_length(self):
        """Returns the number of samples of the transform."""
        if self.fft_length is None:
            return 1 << math.ceil(math.log2(max(2, self.window_length)))
        check_positive("fft_length", self.fft_length)
        if self.fft_length < self.window_length:
            raise ValueError(
                f"`fft_length` must be at least a window, {self.window_length} "
                f"samples. Received: fft_length={self.fft_length}"
            )
        return self.fft_length

    def _make_filters(self, fft_length):
        nyquist = self.sampling_rate / 2
        high = nyquist if self.max_frequency is None else self.max_frequency
        if not 0 <= self.min_frequency < high <= nyquist:
            raise ValueError(
                "`min_frequency` and `max_frequency` must be ascending, from 0 to "
                f"half the sampling rate, {nyquist:g} Hz. Received: "
                f"min_frequency={self.min_frequency}, "
                f"max_frequency={self.max_frequency}"
            )
        filters = mel_filters(
            self.num_mels, fft_length, self.sampling_rate, self.min_frequency, high
        )
        empty = np.flatnonzero(filters.sum(0) == 0).tolist()
        if empty:
            raise ValueError(
                "`num_mels` is too large: the transform has no frequency within the "
                f"filters {empty}. Increase `fft_length`, {fft_length}, or use fewer "
                f"filters. Received: num_mels={self.num_mels}"
            )
        return filters
