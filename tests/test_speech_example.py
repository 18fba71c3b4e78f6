"""The example of speech runs from the command line, with small sizes."""

import io
import itertools
import re
import tarfile
import wave

import numpy as np
import pytest
from conftest import assert_drawn

pytestmark = pytest.mark.runs


def recording(digit, seed):
    """A tone for each digit, as a WAV file of 8 kHz."""
    time = np.arange(1600 + 100 * seed) / 8000
    samples = 8000 * np.sin(2 * np.pi * (300 + 200 * digit) * time)
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()


# The guide to speech uses the same model and functions.
@pytest.mark.variation
def test_spell_digits(example, tmp_path):
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    with tarfile.open(data / "recordings.tar.gz", "w:gz") as tar:
        for digit in (0, 7):
            for index, speaker in itertools.product((5, 12), ("ann", "bob")):
                content = recording(digit, index % 5)
                info = tarfile.TarInfo(f"recordings/{digit}_{speaker}_{index}.wav")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    options = ("--smoke", "--data-dir", data, "--run-dir", run)
    printed = example("spell_digits", *options)
    counts = "2 recordings for training, 2 of known speakers, 4 of new speaker"
    assert f"without ann: {counts}" in printed
    for label in (
        "known speakers, greedy",
        "new speaker, beam",
        "new speaker, rescored",
    ):
        line = rf"^{label} +character error rate [\d.]+ % \([\d.]+ to [\d.]+\), seq"
        assert len(re.findall(line, printed, re.M)) == 2
    folder = run / "without_ann"
    assert_drawn(folder, "attention")
    assert (folder / "model.keras").is_file()
    assert list((folder / "logs").glob("**/events*"))
    with pytest.raises(SystemExit, match="must have WAV files like 7_george_12.wav"):
        example("spell_digits", "--smoke", "--data-dir", folder / "logs", *options[-2:])
    for path in (run / "recordings").rglob("?_ann_*.wav"):
        path.unlink()
    with pytest.raises(SystemExit, match="must be of at least two speakers, e"):
        example(
            "spell_digits", "--smoke", "--data-dir", run / "recordings", *options[-2:]
        )


def test_edit_distances(example_module):
    edit_distance = example_module("spell_digits").edit_distance
    for one, other, distance in (
        ("", "", 0),
        ("", "abc", 3),
        ("seven", "seven", 0),
        ("seven", "eleven", 2),
        ("two", "zero", 3),
        ("kitten", "sitting", 3),
    ):
        assert edit_distance(one, other) == distance
        assert edit_distance(other, one) == distance
