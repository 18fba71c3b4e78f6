"""Output of libraries to stderr is captured, and quoted if they fail."""

import os

import pytest

from keras_attn.export.silence import silence


def test_captured_output_is_quoted_on_failure(capfd):
    with silence():
        os.write(2, b"unimportant\n")
    with pytest.raises(ValueError, match="it failed") as caught:
        with silence():
            os.write(2, b"the cause\n")
            raise ValueError("it failed")
    assert caught.value.__notes__ == ["Captured output: the cause"]
    assert capfd.readouterr().err == ""


def test_silence_without_stderr(monkeypatch):
    def closed(descriptor):
        raise OSError

    monkeypatch.setattr(os, "dup", closed)
    with silence():
        pass
