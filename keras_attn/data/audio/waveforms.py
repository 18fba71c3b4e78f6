"""Reads WAV files of unknown origin, with errors that name the file.

Parsed here because `soundfile` reads a truncated file as a shorter one, without an
error.

Legend: B batch, N samples.
"""

import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_attn.checks import check_positive
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.extras import requires_extra
from keras_attn.file_reading import MIB, read_bytes

_MAX_BYTES = 1024 * MIB
_MAX_RATE = 768_000
_MAX_CHANNELS = 64
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# Sample types by kind and bits; 24-bit samples have no dtype and are read as bytes.
_TYPES = {
    (_PCM, 8): "u1",
    (_PCM, 16): "<i2",
    (_PCM, 24): "u1",
    (_PCM, 32): "<i4",
    (_FLOAT, 32): "<f4",
    (_FLOAT, 64): "<f8",
}


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
    """Reads a WAV file: integers of 8, 16, 24 or 32 bits, or floats of 32 or 64.

    Channels are averaged.

    Args:
        path: The file.
        sampling_rate: The rate to convert the samples to, by SciPy's polyphase filter
            (the extra `audio`). None keeps the rate of the file.

    Returns:
        The samples, float32 (N,), in [-1, 1] if the file has integers; and their rate,
        in samples per second.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a complete WAV file of such samples, is empty, has
            samples that are not finite, or has a rate above 768 kHz.
        ImportError: If the samples must be converted and SciPy is not installed.

    Example:
        ```python
        waveform, _ = read_wav("7_george_12.wav", sampling_rate=8000)
        ```
    """
    path = Path(path)
    if sampling_rate is not None:
        check_positive("sampling_rate", sampling_rate)
    kind, bits, channels, rate, content = _parse(path, read_bytes(path, _MAX_BYTES))
    frame = channels * bits // 8
    if not content or len(content) % frame:
        raise ValueError(
            f"{path.name} must have at least one sample, and the same number in every "
            f"channel. Received: {str(path)!r} with {len(content)} bytes of samples of "
            f"{frame} bytes"
        )
    samples = _decode(kind, bits, content).reshape(-1, channels)
    if not np.isfinite(samples).all():
        raise ValueError(
            f"{path.name} must have finite samples. Received: {str(path)!r} with "
            f"{np.count_nonzero(~np.isfinite(samples))} that are NaN or infinite"
        )
    waveform = samples.mean(axis=1)
    if sampling_rate is not None and sampling_rate != rate:
        waveform, rate = _resample(waveform, rate, sampling_rate), sampling_rate
    return waveform.astype(np.float32), rate


def read_waveforms(
    paths: Sequence[str | os.PathLike],
    sampling_rate: int,
    *,
    min_seconds: float = 0.025,
    on_error: str = "raise",
) -> Waveforms:
    """Reads many WAV files at one sampling rate.

    Args:
        paths: The files.
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
        try:
            waveform, rate = read_wav(path, sampling_rate)
            if len(waveform) < min_seconds * rate:
                raise ValueError(
                    f"{path.name} must last at least {min_seconds} s (`min_seconds`). "
                    f"Received: {str(path)!r} of {len(waveform) / rate:.4f} s"
                )
        except (ValueError, OSError) as error:
            skipped.add(str(path), error)
            continue
        kept.append(path)
        waveforms.append(waveform)
    if not kept:
        first = (
            f", the first because: {next(iter(skipped.values()))}" if skipped else ""
        )
        raise ValueError(
            "`paths` must have a WAV file that can be read. "
            f"Received: {len(paths)} paths{first}"
        )
    skipped.report("WAV files")
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


def _parse(path: Path, content: bytes) -> tuple[int, int, int, int, bytes]:
    """Kind, bits, channels and rate of the samples, and their bytes."""

    def bad(reason: str) -> ValueError:
        return ValueError(
            f"{path.name} must be a WAV file; is it complete? Received: {str(path)!r}, "
            f"{reason}"
        )

    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise bad(f"which begins with {content[:12]!r}")
    layout, place = None, 12
    while place + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, place)
        chunk = content[place + 8 : place + 8 + size]
        if len(chunk) < size:
            raise bad(f"{len(chunk)} of {size} bytes of its chunk {name!r}")
        if name == b"fmt ":
            layout = _parse_format(chunk, bad)
        elif name == b"data":
            if layout is None:
                raise bad("samples before their format")
            return *layout, chunk
        place += 8 + size + size % 2  # Chunks begin at even offsets.
    raise bad("without samples")


def _parse_format(chunk: bytes, bad) -> tuple[int, int, int, int]:
    if len(chunk) < 16:
        raise bad(f"a format of {len(chunk)} bytes")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if kind == _EXTENSIBLE and len(chunk) >= 26:
        (kind,) = struct.unpack_from("<H", chunk, 24)
    if (kind, bits) not in _TYPES:
        raise bad(
            f"samples of kind {kind} with {bits} bits, neither integers (1) of 8, 16, "
            "24 or 32 bits nor floats (3) of 32 or 64"
        )
    if not 1 <= channels <= _MAX_CHANNELS or not 1 <= rate <= _MAX_RATE:
        raise bad(f"{channels} channels of {rate} samples per second")
    return kind, bits, channels, rate


def _decode(kind: int, bits: int, content: bytes) -> np.ndarray:
    """The samples of all channels in turn, float64, integers in [-1, 1)."""
    samples = np.frombuffer(content, _TYPES[kind, bits])
    if kind == _FLOAT:
        return samples.astype(np.float64)
    if bits == 8:  # Unsigned, unlike the others.
        return samples / 128 - 1
    if bits == 24:
        wide = np.zeros((len(samples) // 3, 4), np.uint8)
        wide[:, 1:] = samples.reshape(-1, 3)
        samples, bits = wide.view("<i4")[:, 0], 32
    return samples / 2 ** (bits - 1)


def _resample(waveform: np.ndarray, old: int, new: int) -> np.ndarray:
    with requires_extra("audio", "Resampling"):
        from scipy.signal import resample_poly
    divisor = math.gcd(old, new)
    return resample_poly(waveform, new // divisor, old // divisor)
