"""An artefact appears whole or not at all, and never in place of anything else."""

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from keras_attn.export import ExportError, export, files
from keras_attn.export.formats import litert, saved_model


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
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
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


@pytest.mark.parametrize("swallowed", [False, True])
def test_ctrl_c_in_a_converter_is_ctrl_c(build, tmp_path, monkeypatch, swallowed):
    """C++ hands it on as an error of the converter, or not at all."""
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


def killed(target, rename=None):
    """Replaces `target` in a process that is killed: at `rename`, or before it."""
    child = os.fork()
    if child == 0:
        try:
            with files.replacing(target) as place:
                place.mkdir()
                (place / "half").touch()
                if rename is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                os.rename = rename
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


needs_locks = pytest.mark.skipif(
    files.fcntl is None, reason="no file locks: leftovers are not removed"
)


@needs_locks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path):
    target = tmp_path / "m"
    others = [tmp_path / name for name in (".m-notes", ".m-12345678", ".m-x.partial")]
    for other in others:
        other.mkdir()
    killed(target)
    assert len(list(tmp_path.iterdir())) == len(others) + 1
    with files.replacing(target) as living:
        living.mkdir()
        # One that is still at work keeps what it has.
        with files.replacing(target) as place:
            place.mkdir()
        assert living.is_dir()
        target.rmdir()
    assert set(tmp_path.iterdir()) == {target, *others}


@needs_locks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_was_put_aside_when_killed_is_restored(tmp_path, monkeypatch):
    """Where two names cannot be exchanged a folder is replaced by two renames."""
    target = tmp_path / "m"
    target.mkdir()
    (target / "old").touch()
    rename, renamed = os.rename, []

    def die_at_second(source, destination):
        if renamed:
            os.kill(os.getpid(), signal.SIGKILL)
        renamed.append(destination)
        rename(source, destination)

    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    killed(target, die_at_second)
    assert not target.exists()
    with pytest.raises(KeyboardInterrupt), files.replacing(target):
        raise KeyboardInterrupt
    assert [entry.name for entry in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges two names")
def test_a_folder_is_replaced_without_a_gap(tmp_path, monkeypatch):
    target = tmp_path / "m"
    target.mkdir()
    (target / "old").touch()
    if not files._exchange(target, target):
        pytest.skip("this file system does not exchange names")

    def gap(source, destination):
        raise AssertionError("the old folder was moved before the new one was there")

    monkeypatch.setattr(os, "rename", gap)
    with files.replacing(target) as place:
        place.mkdir()
        (place / "new").touch()
    assert [entry.name for entry in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_replaces_a_file_and_a_file_a_folder(tmp_path):
    target = tmp_path / "m.onnx"
    target.write_bytes(b"old")
    with files.replacing(target) as place:
        place.mkdir()
    assert target.is_dir()
    with files.replacing(target) as place:
        place.write_bytes(b"new")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_size_counts_all_files(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"345")
    assert files.size_of(tmp_path) == 5
    assert files.size_of(tmp_path / "a") == 2
