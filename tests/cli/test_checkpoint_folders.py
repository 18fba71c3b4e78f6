"""`export`, `verify` and `attention` of a folder in the Hugging Face layout."""

import shutil

import pytest
from parity.folders import CHECKPOINTS

from keras_attn.export import load_runner

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

VIT = CHECKPOINTS / "vit_classifier"
TEXTS = ["a man sleeps", "a plan: a canal"]


@pytest.mark.shipped
def test_export_and_verify(command, bert, tmp_path):
    lines, artefact = tmp_path / "texts.txt", tmp_path / "bert.tflite"
    lines.write_text("\n".join(TEXTS) + "\n")
    options = ["--task", "sentence_encoder", "--samples", lines]
    length = ["--sequence-length", 11]
    assert command("export", bert, artefact, *options, *length) == 0
    assert "Export to litert" in command.out and command.err == ""
    (output,) = load_runner(artefact).signatures["serve"].outputs.values()
    assert output.shape[-1] == 6
    # The sequence length is that of the artefact.
    assert command("verify", bert, artefact, *options) == 0
    assert "agrees with" in command.out


def test_a_head_without_weights_is_reported(command, bert, tmp_path):
    artefact = tmp_path / "head.tflite"
    assert command("export", bert, artefact, "--task", "token_classifier") == 0
    assert "has no weights for classifier: they are newly initialized" in command.out


def test_a_model_of_images(command, tmp_path):
    artefact = tmp_path / "vit.tflite"
    assert command("export", VIT, artefact, "--task", "encoder") == 0
    assert command("verify", VIT, artefact, "--task", "encoder") == 0


def test_folders_that_are_refused(command, bert, tmp_path):
    out, file = tmp_path / "a.onnx", tmp_path / "a.keras"
    file.write_bytes(b"")
    broken = shutil.copytree(bert, tmp_path / "broken")
    (broken / "config.json").write_text("[" * 200_000)
    command.refuses_each(
        ["export"],
        ("--task is for a checkpoint folder", file, out, "--task", "encoder"),
        ("config.json must be JSON nested at most 64 deep", broken, out),
    )
    # A checkpoint without a tokenizer.
    line = command.refuses("attention", VIT, "a text")
    assert "`folder` must hold a tokenizer" in line
    (broken / "config.json").write_text('{"model_type": "bert"}')
    line = command.refuses("export", broken, out)
    assert "otherwise pass a `task`, one of encoder" in line
    assert not out.exists()
