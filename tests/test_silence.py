"""What libraries say to stderr is held back, and quoted when they fail."""

import os

import pytest

from keras_attn.silence import silence


def test_quiet_quotes_what_was_said_when_it_fails(capfd):
    with silence():
        os.write(2, b"idle talk\n")
    with pytest.raises(ValueError, match="it failed") as caught:
        with silence():
            os.write(2, b"the real reason\n")
            raise ValueError("it failed")
    assert caught.value.__notes__ == ["Captured output: the real reason"]
    assert capfd.readouterr().err == ""


def test_quiet_without_a_stderr(monkeypatch):
    def closed(descriptor):
        raise OSError

    monkeypatch.setattr(os, "dup", closed)
    with silence():
        pass
