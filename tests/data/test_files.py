import pytest

from keras_attn.data.files import write_atomically


def test_writes_and_replaces_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "a" / "b.bin"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [each.name for each in path.parent.iterdir()] == ["b.bin"]


def test_a_failure_keeps_the_old_file_and_leaves_nothing_beside(tmp_path, monkeypatch):
    path = tmp_path / "b.bin"
    write_atomically(path, b"one")

    def fail(*args):
        raise OSError("the disk is full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="full"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["b.bin"]
