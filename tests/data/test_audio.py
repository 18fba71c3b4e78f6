"""WAV files of every kind of sample, other audio files, other rates, damaged files."""

import io
import re
import struct
import sys
import wave

import numpy as np
import pytest
from refusals import refuses

from keras_attn.data import pad_waveforms, read_audio, read_wav, read_waveforms

RATE = 8000
RNG = np.random.default_rng(0)


def wav(
    samples, bits=16, *, kind=1, rate=RATE, channels=1, extensible=False, extra=b""
):
    """A WAV file of little-endian samples, as bytes."""
    block = channels * bits // 8
    name = 0xFFFE if extensible else kind
    layout = struct.pack("<HHIIHH", name, channels, rate, rate * block, block, bits)
    if extensible:
        guid = struct.pack("<H", kind) + bytes.fromhex("000000001000800000aa00389b71")
        layout += struct.pack("<HHI", 22, bits, 0) + guid
    chunks = b"fmt " + struct.pack("<I", len(layout)) + layout + extra
    chunks += b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def written(tmp_path, content, name="speech.wav"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def as_24_bits(integers):
    return b"".join(int(x).to_bytes(3, "little", signed=True) for x in integers)


def encoded(values, kind, bits):
    """Samples in [-1, 1) as bytes."""
    if kind == 3:
        return values.astype(f"<f{bits // 8}").tobytes()
    integers = np.round(values * 2 ** (bits - 1)).astype("int64")
    if bits == 24:
        return as_24_bits(integers)
    if bits == 8:
        return (integers + 128).astype("u1").tobytes()
    return integers.astype(f"<i{bits // 8}").tobytes()


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(
    "kind, bits", [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)]
)
def test_every_kind_of_sample_is_read(tmp_path, kind, bits, channels, extensible):
    values = RNG.uniform(-0.99, 0.99, (37, channels))
    values[0] = -0.99
    options = {"kind": kind, "channels": channels, "extensible": extensible}
    content = wav(encoded(values.ravel(), kind, bits), bits, **options)
    samples, rate = read_wav(written(tmp_path, content))
    assert rate == RATE
    assert samples.dtype == np.float32
    step = 2.0 ** -(min(bits, 24) - 1)
    np.testing.assert_allclose(samples, values.mean(1), atol=step)


def test_files_of_the_standard_library_are_read(tmp_path):
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(11_025)
        file.writeframes(struct.pack("<3h", -32768, 0, 32767))
    samples, rate = read_wav(written(tmp_path, content.getvalue()))
    assert rate == 11_025
    np.testing.assert_allclose(samples, [-1, 0, 32767 / 32768], atol=1e-7)


def test_other_chunks_are_passed_over(tmp_path):
    # Of odd length, after which a byte is left out.
    extra = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    samples, _ = read_wav(written(tmp_path, wav(b"\0\x40" * 5, extra=extra)))
    np.testing.assert_array_equal(samples, [0.5] * 5)


@pytest.mark.parametrize("rate", [11_025, 16_000, 44_100, 4000])
def test_another_rate_is_converted(tmp_path, rate):
    def tone(rate):
        return 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate)

    path = written(tmp_path, wav(encoded(tone(rate), 3, 32), 32, kind=3, rate=rate))
    samples, new_rate = read_wav(path, sampling_rate=RATE)
    assert new_rate == RATE
    assert len(samples) == -(-(rate // 2) * RATE // rate)
    # The filter fades at both ends.
    inner = slice(100, len(tone(RATE)) - 100)
    np.testing.assert_allclose(samples[inner], tone(RATE)[inner], atol=5e-3)


def test_another_rate_needs_scipy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.signal", None)
    path = written(tmp_path, wav(bytes(100)))
    with pytest.raises(ImportError, match=r"`scipy`, .*keras-attn\[audio\]"):
        read_wav(path, sampling_rate=16_000)
    assert read_wav(path, sampling_rate=RATE)[1] == RATE


WHOLE = wav(bytes(range(100)))
DAMAGED = {
    "empty": (b"", "which begins with b''"),
    "text": (b"hello, this is no sound", "which begins with b'hello"),
    "cut": (WHOLE[:-1], "99 of 100 bytes of its chunk b'data'"),
    "header": (WHOLE[:30], r"10 of 16 bytes of its chunk b'fmt '"),
    "no_samples": (WHOLE[:36], "without samples"),
    "no_format": (WHOLE[:12] + WHOLE[36:], "samples before their format"),
    "no_frames": (wav(b""), "with 0 bytes of samples of 2 bytes"),
    "half_frame": (wav(bytes(5)), "5 bytes of samples of 2 bytes"),
    "rate_0": (wav(bytes(4), rate=0), "1 channels of 0 samples per second"),
    "rate": (wav(bytes(4), rate=10**6), "1 channels of 1000000 samples"),
    "channels": (wav(bytes(4), channels=0), "0 channels of 8000"),
    "mp3": (wav(bytes(4), kind=85), "samples of kind 85 with 16 bits"),
    "bits": (wav(bytes(4), 12), "samples of kind 1 with 12 bits"),
    "short_format": (
        WHOLE[:16] + struct.pack("<I", 4) + WHOLE[20:24] + WHOLE[36:],
        "a format of 4 bytes",
    ),
    "nan": (
        wav(np.array([0, np.nan, np.inf], "<f4").tobytes(), 32, kind=3),
        "with 2 that are NaN",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named(tmp_path, name):
    content, message = DAMAGED[name]
    path = written(tmp_path, content, f"{name}.wav")
    refuses(f"{name}.wav must .*Received: .*{message}", read_wav, path)


def test_a_cut_file_never_fails_otherwise(tmp_path):
    for length in range(len(WHOLE)):
        path = written(tmp_path, WHOLE[:length])
        refuses(re.escape(f"{path.name} must "), read_wav, path)


def test_bad_rates_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`sampling_rate` must be a positive integer"):
        read_wav(tmp_path / "gone.wav", sampling_rate=0)


# From the tables of ITU-T G.711: bytes and samples of 16 bits.
G711 = {
    7: {0x80: 32124, 0x00: -32124, 0xFF: 0, 0x7F: 0, 0xAA: 5372, 0xFE: 8, 0x70: -120},
    6: {0xD5: 8, 0x55: -8, 0xAA: 32256, 0x2A: -32256, 0xC5: 264, 0x80: 5504},
}


@pytest.mark.parametrize("kind", G711)
@pytest.mark.parametrize("extensible", [False, True])
def test_telephones(tmp_path, kind, extensible):
    codes, samples = zip(*G711[kind].items(), strict=True)
    content = wav(bytes(codes), 8, kind=kind, extensible=extensible)
    found, _ = read_wav(written(tmp_path, content))
    np.testing.assert_array_equal(found * 2**15, samples)


def test_files_of_a_pipe_and_of_more_than_4_gb(tmp_path):
    samples = encoded(RNG.uniform(-1, 1, 37), 1, 16)
    plain = wav(samples)
    expected = read_wav(written(tmp_path, plain))[0]
    place = plain.index(b"data") + 4
    for size in (0xFFFFFFFF, 0x7FFFF000):
        unknown = struct.pack("<I", size)
        content = plain[:4] + unknown + plain[8:place] + unknown + plain[place + 4 :]
        np.testing.assert_array_equal(read_wav(written(tmp_path, content))[0], expected)
    refuses("73 bytes of samples of 2 bytes", read_wav, written(tmp_path, content[:-1]))
    unknown = struct.pack("<I", 0xFFFFFFFF)
    sizes = b"ds64" + struct.pack("<IQQQI", 28, len(plain), len(samples), 37, 0)
    for name in (b"RF64", b"BW64"):
        content = name + unknown + b"WAVE" + sizes + plain[12:place] + unknown
        content += samples + b"LIST" + struct.pack("<I", 2) + b"ab"
        np.testing.assert_array_equal(read_wav(written(tmp_path, content))[0], expected)
    with pytest.raises(ValueError, match="74 of 75 bytes of its chunk b'data'"):
        content = name + unknown + b"WAVE" + sizes.replace(b"\x4a", b"\x4b", 1)
        read_wav(written(tmp_path, content + plain[12:place] + unknown + samples))
    content = name + unknown + b"WAVE" + plain[12:place] + unknown + samples
    refuses("74 of 4294967295 bytes", read_wav, written(tmp_path, content))


def test_other_kinds_need_soundfile(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    path = written(tmp_path, b"fLaC" + bytes(100), "a.flac")
    message = r"Reading a.flac, .* needs `soundfile`, .*keras-attn\[audio\]"
    for read in (read_audio, lambda x: read_waveforms([x], RATE, on_error="skip")):
        with pytest.raises(ImportError, match=message):
            read(path)
    with pytest.raises(ValueError, match="a.wav must .*`read_audio` reads it"):
        read_wav(written(tmp_path, DAMAGED["mp3"][0], "a.wav"))
    path = written(tmp_path, wav(bytes(100)), "b.wav")
    np.testing.assert_array_equal(read_audio(path)[0], read_wav(path)[0])
    assert read_audio(path, RATE)[1] == RATE


REASON = "the extra `audio` has no soundfile"


@pytest.mark.parametrize(
    "name, subtype",
    [
        ("a.flac", "PCM_16"),
        ("a.ogg", "VORBIS"),
        ("a.mp3", "MPEG_LAYER_III"),
        ("a.aiff", "PCM_24"),
        ("a.wav", "IMA_ADPCM"),
        ("a.wav", "ULAW"),
        ("a.wav", "ALAW"),
        ("a.rf64", "FLOAT"),
        ("a.rifx", "PCM_16"),
    ],
)
def test_other_files_are_those_of_soundfile(tmp_path, name, subtype):
    soundfile = pytest.importorskip("soundfile", reason=REASON)
    time = np.arange(4000) / RATE
    both = np.stack([np.sin(2 * np.pi * 440 * time), np.sin(2 * np.pi * 300 * time)], 1)
    path, options = tmp_path / name, {"subtype": subtype}
    if name == "a.rifx":
        options |= {"format": "WAV", "endian": "BIG"}
    soundfile.write(path, both / 2, RATE, **options)
    samples, rate = read_audio(path)
    expected = soundfile.read(path, always_2d=True)[0].mean(1)
    assert rate == RATE and samples.dtype == np.float32
    np.testing.assert_allclose(samples, expected, atol=1e-7)
    error = np.abs(samples[100:3900] - both.mean(1)[100:3900] / 2).max()
    assert len(samples) >= 4000 and error < 0.1
    assert read_waveforms([path], 2 * RATE).sampling_rate == 2 * RATE
    if name == "a.flac":
        path.write_bytes(path.read_bytes()[:-300])
        refuses(f"{name} must be a complete audio file", read_audio, path)


def test_files_without_sound_are_refused(tmp_path):
    pytest.importorskip("soundfile", reason=REASON)
    for content in (b"", b"hello, this is no sound", b"fLaC" + bytes(60)):
        with pytest.raises(ValueError, match="a.flac must be a complete audio file"):
            read_audio(written(tmp_path, content, "a.flac"))


def test_many_files_are_read_or_skipped(tmp_path):
    good = written(tmp_path, wav(bytes(1000)), "good.wav")
    short = written(tmp_path, wav(bytes(398)), "short.wav")
    cut = written(tmp_path, WHOLE[:-1], "cut.wav")
    paths = [cut, good, short, tmp_path / "gone.wav"]
    match = r"left out 3 files or objects.*cut.wav must be a WAV file"
    with pytest.warns(UserWarning, match=match):
        found = read_waveforms(paths, RATE, on_error="skip")
    assert found.paths == [good]
    assert len(found) == 1
    assert list(found.skipped) == [str(cut), str(short), str(paths[-1])]
    assert found.waveforms[0].shape == (500,)
    refuses("must last at least 0.025 s", read_waveforms, [good, short], RATE)
    refuses("is it complete", read_waveforms, [good, cut], RATE)
    with pytest.raises(FileNotFoundError, match="gone"):
        read_waveforms(paths[-1:], RATE)
    with pytest.raises(ValueError, match=r"1 paths, the first because: cut.wav"):
        read_waveforms([cut], RATE, on_error="skip")
    refuses(r"Received: 0 paths$", read_waveforms, [], RATE)


def test_waveforms_are_padded():
    batch = pad_waveforms([np.ones(3), np.full(5, 2.0)], multiple_of=4)
    np.testing.assert_array_equal(batch["waveform"][0], [1, 1, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(batch["padding_mask"].sum(1), [3, 5])
    assert batch["padding_mask"].dtype == np.int32
    assert pad_waveforms([np.ones(3)])["waveform"].shape == (1, 3)


@pytest.mark.parametrize(
    "wrong", [[], [np.ones(0)], [np.ones((2, 2))], [np.float32(1)]]
)
def test_waveforms_of_no_samples_are_refused(wrong):
    refuses("`waveforms` must be non-empty arrays", pad_waveforms, wrong)
    with pytest.raises(ValueError, match="`multiple_of` must be a positive integer"):
        pad_waveforms([np.ones(3)], multiple_of=0)
