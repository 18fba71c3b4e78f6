"""Reads audio files of unknown origin, with errors that name the file.

WAV files are read here, by `wav_format.py`; all others by `soundfile`.

Legend: B batch, N samples.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_attn.checks.arguments import check_positive
from keras_attn.data.audio.wav_format import decode_samples, is_wav, parse_wav
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.extras import requires_extra
from keras_attn.files.reading import MIB, check_file, read_bytes

_MAX_BYTES = 1024 * MIB
_MAX_SAMPLES = _MAX_BYTES // 4


@dataclass(frozen=True)
class Waveforms:
    """Recordings of one sampling rate.

    Attributes:
        paths: The files.
        waveforms: The samples of each, float32 (N,) in [-1, 1].
        sampling_rate: Samples per second.
        skipped: What was left out, with reasons.
    """

    paths: list[Path]
    waveforms: list[np.ndarray]
    sampling_rate: int
    skipped: Skipped

    def __len__(self) -> int:
        return len(self.paths)


def read_wav(
    path: str | os.PathLike, sampling_rate: int | None = None
) -> tuple[np.ndarray, int]:
    """Reads a WAV file: integers of 8 to 32 bits, floats of 32 or 64, μ-law or A-law.

    Also files of more than 4 GB (RF64, BW64), and of a pipe, whose header does not know
    their size. Channels are averaged. `read_audio` reads other files.

    Args:
        path: The file.
        sampling_rate: The rate to convert the samples to, by SciPy's polyphase filter
            (the extra `audio`). None keeps the rate of the file.

    Returns:
        The samples, float32 (N,), in [-1, 1] if the file has integers; and their rate,
        in samples per second.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a complete WAV file of such samples, is empty, has
            samples that are not finite, or has a rate above 768 kHz.
        ImportError: If the samples must be converted and SciPy is not installed.

    Example:
        Needs a recording:

        ```python
        from keras_attn import data

        waveform, rate = data.read_wav("7_george_12.wav", sampling_rate=8000)
        ```
    """
    path = Path(path)
    _check_rate(sampling_rate)
    wav = parse_wav(path, read_bytes(path, _MAX_BYTES))
    if not wav.is_supported:
        raise ValueError(
            f"{path.name} must have samples of integers, floats, μ-law or A-law; "
            f"`read_audio` reads it. Received: {str(path)!r}, {wav.kind_of_samples}"
        )
    return _finished(path, decode_samples(path, wav), wav.rate, sampling_rate)


def read_audio(
    path: str | os.PathLike, sampling_rate: int | None = None
) -> tuple[np.ndarray, int]:
    """Reads an audio file: WAV as `read_wav`, and FLAC, Ogg, MP3, AIFF and the like.

    The others are read by `soundfile` (the extra `audio`), and so are WAV files of
    further kinds, such as ADPCM. It finds out that the end of a FLAC file is missing,
    but reads a shorter sound from other truncated files. Channels are averaged.

    Args:
        path: The file.
        sampling_rate: See `read_wav`.

    Returns:
        The samples, float32 (N,), and their rate, in samples per second.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not an audio file, or as in `read_wav`.
        ImportError: If soundfile is needed, or SciPy, and not installed.

    Example:
        Needs a recording and the extra `audio`:

        ```python
        from keras_attn import data

        waveform, rate = data.read_audio("speech.flac")
        ```
    """
    path = Path(path)
    _check_rate(sampling_rate)
    content = read_bytes(path, _MAX_BYTES)
    if is_wav(content):
        wav = parse_wav(path, content)
        if wav.is_supported:
            return _finished(path, decode_samples(path, wav), wav.rate, sampling_rate)
    del content
    return _finished(path, *_read_by_soundfile(path), sampling_rate)


def read_waveforms(
    paths: Sequence[str | os.PathLike],
    sampling_rate: int,
    *,
    min_seconds: float = 0.025,
    on_error: str = "raise",
) -> Waveforms:
    """Reads many audio files at one sampling rate.

    Args:
        paths: The files, of any kind that `read_audio` reads.
        sampling_rate: The rate that all samples are converted to; see `read_wav`.
        min_seconds: The minimum duration of a recording, such as one window of a
            spectrogram.
        on_error: "raise" refuses a bad file. "skip" leaves it out: a warning counts
            them, `skipped` of the result lists them.

    Returns:
        The recordings that could be read, in the order of `paths`.

    Raises:
        ValueError: If a file is bad or too short and `on_error="raise"`, or if no
            recording is left.
        FileNotFoundError: If a file is missing and `on_error="raise"`.
    """
    skipped = Skipped(on_error)
    kept, waveforms = [], []
    for path in map(Path, paths):
        with skipped.collecting(str(path)):
            waveform, rate = read_audio(path, sampling_rate)
            if len(waveform) < min_seconds * rate:
                raise ValueError(
                    f"{path.name} must last at least {min_seconds} s (`min_seconds`). "
                    f"Received: {str(path)!r} of {len(waveform) / rate:.4f} s"
                )
            kept.append(path)
            waveforms.append(waveform)
    if not kept:
        raise ValueError(
            "`paths` must have an audio file that can be read. "
            f"Received: {len(paths)} paths{skipped.first}"
        )
    skipped.report("Audio files")
    return Waveforms(kept, waveforms, sampling_rate, skipped)


def pad_waveforms(
    waveforms: Sequence[np.ndarray], *, multiple_of: int = 1
) -> dict[str, np.ndarray]:
    """Recordings as the inputs of a model, with zeros at the end of shorter ones.

    Args:
        waveforms: B arrays of samples (N,).
        multiple_of: N of the batch is rounded up to a multiple of this, so that few
            lengths are compiled.

    Returns:
        `waveform`, float32 (B, N), and `padding_mask`, int32 (B, N), 1 = a real sample.

    Raises:
        ValueError: If `waveforms` is empty, or if one of them is empty or is not
            one-dimensional.
    """
    check_positive("multiple_of", multiple_of)
    shapes = [np.shape(waveform) for waveform in waveforms]
    if not shapes or any(len(shape) != 1 or not shape[0] for shape in shapes):
        raise ValueError(
            "`waveforms` must be non-empty arrays of samples (N,). Received: "
            f"waveforms of shapes {shapes[:5]}"
        )
    lengths = np.array([shape[0] for shape in shapes])
    length = -(-int(lengths.max()) // multiple_of) * multiple_of
    mask = np.arange(length) < lengths[:, None]
    padded = np.zeros(mask.shape, np.float32)
    padded[mask] = np.concatenate(list(waveforms))
    return {"waveform": padded, "padding_mask": mask.astype(np.int32)}


def _check_rate(sampling_rate: int | None) -> None:
    if sampling_rate is not None:
        check_positive("sampling_rate", sampling_rate)


def _finished(
    path: Path, samples: np.ndarray, rate: int, wanted: int | None
) -> tuple[np.ndarray, int]:
    """Samples (N, channels) as one channel at the wanted rate, and the rate."""
    if not np.isfinite(samples).all():
        raise ValueError(
            f"{path.name} must have finite samples. Received: {str(path)!r} with "
            f"{np.count_nonzero(~np.isfinite(samples))} that are NaN or infinite"
        )
    waveform = samples.mean(axis=1)
    if wanted is not None and wanted != rate:
        waveform, rate = _resample(waveform, rate, wanted), wanted
    return waveform.astype(np.float32), rate


def _read_by_soundfile(path: Path) -> tuple[np.ndarray, int]:
    """The samples of a file, float64 (N, channels), and their rate."""
    check_file(path, _MAX_BYTES)
    with requires_extra("audio", f"Reading {path.name}, not a plain WAV file,"):
        import soundfile
    try:
        with soundfile.SoundFile(path) as file:
            count, rate = file.frames, file.samplerate
            if count * file.channels > _MAX_SAMPLES:
                raise ValueError(f"more than {_MAX_SAMPLES} samples")
            samples = file.read(dtype="float64", always_2d=True)
    # What libsndfile says is a RuntimeError; a kind that it does not know, a TypeError.
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path.name} must be a complete audio file. Received: {str(path)!r}, "
            f"{error}"
        ) from error
    if not count or len(samples) != count:
        raise ValueError(
            f"{path.name} must be a complete audio file. Received: {str(path)!r} with "
            f"{len(samples)} of {count} samples"
        )
    return samples, rate


def _resample(waveform: np.ndarray, old: int, new: int) -> np.ndarray:
    with requires_extra("audio", "Resampling"):
        from scipy.signal import resample_poly
    divisor = math.gcd(old, new)
    return resample_poly(waveform, new // divisor, old // divisor)
