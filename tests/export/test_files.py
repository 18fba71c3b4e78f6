"""An artefact appears whole or not at all, and never in place of anything else."""

import errno
import os
from pathlib import Path

import pytest

from keras_attn.export import ExportError, export, files, saved_model


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("m.h5", r"`path` must end in `.tflite` .* Received: path='.*m.h5'"),
        ("m.keras", "for any other name pass `format`"),
        ("absent/m.onnx", "`path` must lie in a folder that exists; make it first"),
    ],
)
def test_path_is_checked(build, tmp_path, name, match):
    with pytest.raises(ValueError, match=match):
        export(build("mlp"), tmp_path / name)


def test_format_wins_over_the_suffix(build, tmp_path):
    report = export(build("mlp"), tmp_path / "m.bin", format="litert")
    assert report.format == "litert"
    with pytest.raises(ValueError, match="`format` must be one of .* format='tfjs'"):
        export(build("mlp"), tmp_path / "m.bin", format="tfjs")


@pytest.mark.parametrize("name", ["m", "m.tflite", "m.onnx"])
def test_a_folder_of_other_things_is_not_replaced(build, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="exists and is no .* artefact, so it is not"):
        export(build("mlp"), folder)
    assert (folder / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("name", ["m.tflite", "m.onnx"])
def test_a_file_of_another_kind_is_not_replaced(build, tmp_path, name):
    (tmp_path / name).write_text("notes")
    with pytest.raises(
        ValueError, match="exists and is no .* remove it or choose anoth"
    ):
        export(build("mlp"), tmp_path / name)
    assert (tmp_path / name).read_text() == "notes"


def test_a_saved_model_with_other_files_is_not_replaced(build, tmp_path):
    export(build("mlp"), tmp_path / "m")
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is no saved_model artefact"):
        export(build("mlp"), tmp_path / "m")


def test_folder_that_cannot_be_written(build):
    """`/proc` takes no files, even from the superuser."""
    with pytest.raises(
        ExportError, match="`path` could not be written .* nothing was le"
    ):
        export(build("mlp"), "/proc/model.tflite")


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


def test_folder_is_put_back_when_the_last_rename_fails(tmp_path, monkeypatch):
    target = tmp_path / "m"
    target.mkdir()
    (target / "old").touch()
    rename = os.rename

    def fail_once(source, destination):
        if Path(source).parent.name.startswith(".m-") and Path(source).name == "m":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        rename(source, destination)

    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(ExportError, match="Permission denied"):
        with files.replacing(target) as place:
            place.mkdir()
    assert [entry.name for entry in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


def test_interruption_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        with files.replacing(tmp_path / "m") as place:
            place.mkdir()
            raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_size_counts_all_files(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"345")
    assert files.size_of(tmp_path) == 5
    assert files.size_of(tmp_path / "a") == 2
