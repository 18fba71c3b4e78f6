"""Targets: an artefact is written whole or not at all, and replaces only artefacts."""

import errno
import os
import signal
import zipfile
from pathlib import Path
from typing import get_args

import pytest

from keras_attn.cli import options
from keras_attn.export import ExportError, export
from keras_attn.export.formats import FORMATS, litert, saved_model


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("m.h5", r"`path` must name one of: .*`.tflite` .* Received: path='.*m.h5'"),
        ("m.keras", "for any other suffix pass `format`"),
        ("absent/m.onnx", "`path` must be in an existing folder; create it first"),
    ],
)
def test_path_is_checked(build, tmp_path, name, match):
    with pytest.raises(ValueError, match=match):
        export(build("mlp"), tmp_path / name)


def test_format_overrides_the_suffix(build, tmp_path):
    report = export(build("mlp"), tmp_path / "m.bin", format="litert")
    assert report.format == "litert"
    with pytest.raises(ValueError, match="`format` must be one of .* format='tfjs'"):
        export(build("mlp"), tmp_path / "m.bin", format="tfjs")


def test_the_command_line_has_every_format_and_quantization():
    names, _ = get_args(get_args(options.Format)[0])
    assert get_args(names) == tuple(FORMATS)
    quantizations = [name for f in FORMATS.values() for name in f.quantizations]
    names = get_args(options.Quantization)[0]
    assert get_args(names) == ("none", *dict.fromkeys(quantizations))


NAMES = [f"m{format.suffix}" for format in FORMATS.values()]
every_name = pytest.mark.parametrize("name", NAMES)


@every_name
def test_folder_with_other_files_is_not_replaced(build, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="exists and is not a .* artefact, so"):
        export(build("mlp"), folder)
    assert (folder / "thesis.tex").read_text() == "years of work"


def write_zip(path):
    """A file in a container that many kinds of files share."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.npy", "months of training")


@every_name
@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_text("notes"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text('{"weights": [1, 2]}'),
        write_zip,
    ],
    ids=["text", "empty", "json", "zip"],
)
def test_file_that_is_not_an_artefact_is_not_replaced(build, tmp_path, name, write):
    write(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    with pytest.raises(ValueError, match="exists and is not a .* remove it or choose"):
        export(build("mlp"), tmp_path / name)
    assert (tmp_path / name).read_bytes() == before


def test_saved_model_with_other_files_is_not_replaced(build, tmp_path):
    export(build("mlp"), tmp_path / "m")
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a saved_model artefact"):
        export(build("mlp"), tmp_path / "m")


def test_folder_that_cannot_be_written(build):
    """Not even the superuser can write to `/proc`."""
    with pytest.raises(ExportError, match="`path` could not be written .* nothing was"):
        export(build("mlp"), "/proc/model.tflite")


@pytest.mark.shipped
def test_full_disk_while_writing(build, tmp_path, monkeypatch):
    path = tmp_path / "m.tflite"
    export(build("mlp"), path)
    before = path.read_bytes()

    def full(self, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(ExportError, match="could not be written .No space left on"):
            export(build("exact_gelu"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_saved_model_that_cannot_be_written(build, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise saved_model.tf.errors.ResourceExhaustedError(None, None, "disk is full")

    monkeypatch.setattr(saved_model.tf.saved_model, "save", full)
    with pytest.raises(ExportError, match="TensorFlow could not write m: disk is full"):
        export(build("mlp"), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.shipped
@pytest.mark.parametrize("swallowed", [False, True])
def test_ctrl_c_in_a_converter_raises_keyboard_interrupt(
    build, tmp_path, monkeypatch, swallowed
):
    """C++ turns it into an error of the converter, or swallows it."""
    convert = litert.tf.lite.TFLiteConverter.from_saved_model

    def interrupted(*args, **kwargs):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if not swallowed:
                raise RuntimeError("a Python callback failed") from None
        return convert(*args, **kwargs)

    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(litert.tf.lite.TFLiteConverter, "from_saved_model", interrupted)
        with pytest.raises(KeyboardInterrupt):
            export(build("mlp"), tmp_path / "m.tflite")
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is handler
