"""Atomic writes: the old content or the new, and nothing else is left."""

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from keras_attn.files import writing as file_writing
from keras_attn.files.reading import get_file_size
from keras_attn.files.writing import replacing, write_atomically


def test_a_file_is_written_then_replaced(tmp_path):
    path = tmp_path / "a" / "b.bin"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["b.bin"]


def test_a_file_is_on_the_disk_before_it_replaces_the_old_one(tmp_path, monkeypatch):
    path, seen = tmp_path / "b.bin", []
    write_atomically(path, b"one")

    def synchronize(descriptor):
        seen.append((os.fstat(descriptor).st_size, path.read_bytes()))

    monkeypatch.setattr(os, "fsync", synchronize)
    write_atomically(path, b"three")
    assert seen[0] == (5, b"one")
    assert path.read_bytes() == b"three"


def test_a_file_does_not_replace_a_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.keras").write_bytes(b"one")
    with pytest.raises(IsADirectoryError, match="run"):
        write_atomically(tmp_path / "run", b"two")
    assert (tmp_path / "run" / "model.keras").read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_failure_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "b.bin"
    write_atomically(path, b"one")

    def fail(*args):
        raise OSError("the disk is full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="full"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.bin"]


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    """A write does not know the name of its file."""

    def fail(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError) as found:
        write_atomically(tmp_path / "b.bin", b"two")
    assert found.value.errno == errno.ENOSPC
    assert found.value.filename == str(tmp_path / "b.bin")
    assert not list(tmp_path.iterdir())


def test_folder_is_restored_if_the_last_rename_fails(tmp_path, monkeypatch):
    target = tmp_path / "m"
    target.mkdir()
    (target / "old").touch()
    rename = os.rename

    def fail_once(source, destination):
        if Path(source).parent.name.startswith(".m-") and Path(source).name == "m":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        rename(source, destination)

    monkeypatch.setattr(os, "rename", fail_once)
    monkeypatch.setattr(file_writing, "_exchange", lambda one, other: False)
    with pytest.raises(OSError, match="Permission denied"):
        with replacing(target) as partial:
            partial.mkdir()
    assert [entry.name for entry in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


def test_interrupted_write_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        with replacing(tmp_path / "m") as partial:
            partial.mkdir()
            raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def killed(target, rename=None):
    """Replaces `target` in a process that is killed in `rename`, or before it."""
    child = os.fork()
    if child == 0:
        try:
            with replacing(target) as partial:
                partial.mkdir()
                (partial / "half").touch()
                if rename is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                os.rename = rename
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


needs_locks = pytest.mark.skipif(
    file_writing.fcntl is None, reason="no file locks: leftovers are not removed"
)


@needs_locks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    target = tmp_path / "m"
    others = [tmp_path / name for name in (".m-notes", ".m-12345678", ".m-x.partial")]
    for other in others:
        other.mkdir()
    killed(target)
    assert len(list(tmp_path.iterdir())) == len(others) + 1
    with replacing(target) as running:
        running.mkdir()
        # The work folder of a running process stays.
        with replacing(target) as partial:
            partial.mkdir()
        assert running.is_dir()
        target.rmdir()
    assert set(tmp_path.iterdir()) == {target, *others}


@needs_locks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_folder_is_restored_after_a_kill_between_two_renames(tmp_path, monkeypatch):
    """Without an exchange of names a folder is replaced by two renames."""
    target = tmp_path / "m"
    target.mkdir()
    (target / "old").touch()
    rename, renamed = os.rename, []

    def die_at_second(source, destination):
        if renamed:
            os.kill(os.getpid(), signal.SIGKILL)
        renamed.append(destination)
        rename(source, destination)

    monkeypatch.setattr(file_writing, "_exchange", lambda one, other: False)
    killed(target, die_at_second)
    assert not target.exists()
    with pytest.raises(KeyboardInterrupt), replacing(target):
        raise KeyboardInterrupt
    assert [entry.name for entry in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges two names")
def test_folder_is_replaced_atomically(tmp_path, monkeypatch):
    target = tmp_path / "m"
    target.mkdir()
    (target / "old").touch()
    if not file_writing._exchange(target, target):
        pytest.skip("this file system does not exchange names")

    def rename(source, destination):
        raise AssertionError(
            "the old folder was moved away before the new one was in place"
        )

    monkeypatch.setattr(os, "rename", rename)
    with replacing(target) as partial:
        partial.mkdir()
        (partial / "new").touch()
    assert [entry.name for entry in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]


def test_folder_replaces_file_and_file_replaces_folder(tmp_path):
    target = tmp_path / "m.onnx"
    target.write_bytes(b"old")
    with replacing(target) as partial:
        partial.mkdir()
    assert target.is_dir()
    with replacing(target) as partial:
        partial.write_bytes(b"new")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_size_counts_all_files(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"345")
    assert get_file_size(tmp_path) == 5
    assert get_file_size(tmp_path / "a") == 2
