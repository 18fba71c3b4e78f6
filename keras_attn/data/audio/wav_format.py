"""The bytes of WAV files: their chunks, and samples of every common kind.

Parsed here because `soundfile` reads a truncated file as a shorter one, without an
error.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

_MAX_RATE = 768_000
_MAX_CHANNELS = 64
_PCM, _FLOAT, _A_LAW, _MU_LAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
# Sample types by kind and bits; 24-bit samples have no dtype and are read as bytes.
_TYPES = {
    (_PCM, 8): "u1",
    (_PCM, 16): "<i2",
    (_PCM, 24): "u1",
    (_PCM, 32): "<i4",
    (_FLOAT, 32): "<f4",
    (_FLOAT, 64): "<f8",
    (_A_LAW, 8): "u1",
    (_MU_LAW, 8): "u1",
}
# Beside "RIFF": files with sizes of 64 bits, in their chunk "ds64".
_LARGE = (b"RF64", b"BW64")
_UNKNOWN_SIZE = 0xFFFFFFFF
# Programs that write into a pipe declare about as much as a size can be.
_OF_A_PIPE = 0x7FFF0000


class Wav(NamedTuple):
    """A parsed file.

    Attributes:
        kind: Number of the kind of samples.
        bits: Of a sample.
        channels: Number of channels.
        rate: Samples per second.
        samples: The bytes of the samples.
    """

    kind: int
    bits: int
    channels: int
    rate: int
    samples: bytes

    @property
    def is_supported(self) -> bool:
        """Whether `decode_samples` reads them."""
        return (self.kind, self.bits) in _TYPES

    @property
    def kind_of_samples(self) -> str:
        """Describes the samples, for a message."""
        return f"samples of kind {self.kind} with {self.bits} bits"


def is_wav(content: bytes) -> bool:
    """Whether a file begins as a WAV file does.

    Args:
        content: Of the file.
    """
    return content[:4] in (b"RIFF", *_LARGE) and content[8:12] == b"WAVE"


def parse_wav(path: Path, content: bytes) -> Wav:
    """Kind and bytes of the samples.

    Args:
        path: The file, for messages.
        content: Of the file.

    Raises:
        ValueError: If it is not a complete WAV file.
    """

    def bad(reason: str) -> ValueError:
        return ValueError(
            f"{path.name} must be a WAV file; is it complete? Received: {str(path)!r}, "
            f"{reason}"
        )

    if not is_wav(content):
        raise bad(f"which begins with {content[:12]!r}")
    is_large = content[:4] in _LARGE
    layout, large_size, place = None, None, 12
    while place + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, place)
        if name == b"data" and size == _UNKNOWN_SIZE and large_size is not None:
            size = large_size
        elif name == b"data" and size >= _OF_A_PIPE and not is_large:
            size = len(content) - place - 8
        chunk = content[place + 8 : place + 8 + size]
        if len(chunk) < size:
            raise bad(f"{len(chunk)} of {size} bytes of its chunk {name!r}")
        if name == b"ds64" and is_large and size >= 16:
            (large_size,) = struct.unpack_from("<Q", chunk, 8)
        elif name == b"fmt ":
            layout = _parse_format(chunk, bad)
        elif name == b"data":
            if layout is None:
                raise bad("samples before their format")
            return Wav(*layout, chunk)
        place += 8 + size + size % 2  # Chunks begin at even offsets.
    raise bad("without samples")


def _parse_format(
    chunk: bytes, bad: Callable[[str], ValueError]
) -> tuple[int, int, int, int]:
    if len(chunk) < 16:
        raise bad(f"a format of {len(chunk)} bytes")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if kind == _EXTENSIBLE and len(chunk) >= 26:
        (kind,) = struct.unpack_from("<H", chunk, 24)
    if not 1 <= channels <= _MAX_CHANNELS or not 1 <= rate <= _MAX_RATE:
        raise bad(f"{channels} channels of {rate} samples per second")
    return kind, bits, channels, rate


def decode_samples(path: Path, wav: Wav) -> np.ndarray:
    """The samples, float64 (N, channels), integers in [-1, 1).

    Args:
        path: The file, for messages.
        wav: What is in it, of a supported kind.

    Raises:
        ValueError: If the file has no samples, or the last one is not complete.
    """
    frame = wav.channels * wav.bits // 8
    if not wav.samples or len(wav.samples) % frame:
        raise ValueError(
            f"{path.name} must have at least one sample, and the same number in every "
            f"channel. Received: {str(path)!r} with {len(wav.samples)} bytes of "
            f"samples of {frame} bytes"
        )
    samples = np.frombuffer(wav.samples, _TYPES[wav.kind, wav.bits])
    return _decode(wav.kind, wav.bits, samples).reshape(-1, wav.channels)


def _decode(kind: int, bits: int, samples: np.ndarray) -> np.ndarray:
    if kind == _FLOAT:
        return samples.astype(np.float64)
    if kind == _MU_LAW:
        return _mu_law()[samples]
    if kind == _A_LAW:
        return _a_law()[samples]
    if bits == 8:  # Unsigned, unlike the others.
        return samples / 128 - 1
    if bits == 24:
        wide = np.zeros((len(samples) // 3, 4), np.uint8)
        wide[:, 1:] = samples.reshape(-1, 3)
        samples, bits = wide.view("<i4")[:, 0], 32
    return samples / 2 ** (bits - 1)


def _mu_law() -> np.ndarray:
    """The sample of each byte, float64 (256,): ITU-T G.711, of 14 bits.

    A byte is inverted, and has a sign, an exponent of 3 bits and a mantissa of 4.
    """
    codes = 255 - np.arange(256)
    exponent, mantissa = codes >> 4 & 7, codes & 15
    size = ((mantissa << 3) + 132 << exponent) - 132
    return np.where(codes & 128, -size, size) / 2**15


def _a_law() -> np.ndarray:
    """The sample of each byte, float64 (256,): ITU-T G.711, of 13 bits.

    Every second bit is inverted; a sign, an exponent of 3 bits and a mantissa of 4.
    """
    codes = np.arange(256) ^ 0x55
    exponent, mantissa = codes >> 4 & 7, codes & 15
    size = (mantissa << 4) + np.where(exponent, 264, 8) << np.maximum(exponent - 1, 0)
    return np.where(codes & 128, size, -size) / 2**15
