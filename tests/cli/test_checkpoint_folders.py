"""`export`, `verify` and `attention` of a folder in the Hugging Face layout."""

import shutil
from pathlib import Path

import pytest
from model_cases import build

from keras_attn import models
from keras_attn.export import load_runner

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

from keras_attn.data import WordPieceTokenizer  # noqa: E402

TEXTS = ["a man sleeps", "a plan: a canal"]
VIT = Path(__file__).parents[1] / "parity/checkpoints/vit_classifier"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT with its tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "bert"
    encoder = build("bert_base", vocabulary_size=61, hidden_dim=6, num_heads=2)
    models.save_checkpoint(encoder, folder)
    WordPieceTokenizer.train(TEXTS * 3, vocabulary_size=61).save(folder)
    return folder


@pytest.mark.shipped
def test_export_and_verify(command, folder, tmp_path):
    lines, artefact = tmp_path / "texts.txt", tmp_path / "bert.tflite"
    lines.write_text("\n".join(TEXTS) + "\n")
    options = ["--task", "sentence_encoder", "--samples", lines]
    length = ["--sequence-length", 11]
    assert command("export", folder, artefact, *options, *length) == 0
    assert "Export to litert" in command.out and command.err == ""
    (output,) = load_runner(artefact).signatures["serve"].outputs.values()
    assert output.shape[-1] == 6
    # The sequence length is that of the artefact.
    assert command("verify", folder, artefact, *options) == 0
    assert "agrees with" in command.out
    line = command.refuses("verify", folder, artefact, "--task", "translate")
    assert "`task` must be one of encoder, masked_lm" in line


def test_a_head_without_weights_is_reported(command, folder, tmp_path):
    artefact = tmp_path / "head.tflite"
    assert command("export", folder, artefact, "--task", "token_classifier") == 0
    assert "has no weights for classifier: they are newly initialized" in command.out


def test_a_model_of_images(command, tmp_path):
    artefact = tmp_path / "vit.tflite"
    assert command("export", VIT, artefact, "--task", "encoder") == 0
    assert command("verify", VIT, artefact, "--task", "encoder") == 0


def test_attention(command, folder, tmp_path):
    picture = tmp_path / "heads.svg"
    options = ["attention", folder, TEXTS[0], "--output", picture]
    assert command(*options) == 0
    assert "Attention of 2 layers, block_0/attention to block_1/att" in command.out
    drawn = picture.read_text()
    assert "head 1" in drawn and "head 2" not in drawn
    assert command(*options, "--layer", 0) == 0
    assert "Attention of block_0" in command.out
    line = command.refuses(*options, "--layer", 2)
    assert "--layer must be from 0 to 1 for this model" in line
    line = command.refuses(*options, "--head", 2)
    assert "--head must be from 0 to 1 for this model" in line
    line = command.refuses(*options, "--translation", "ein Mann")
    assert "--translation requires the folder of a `keras-attn train` run" in line


def test_folders_that_are_refused(command, folder, tmp_path):
    out = tmp_path / "a.onnx"
    line = command.refuses("export", tmp_path, out)
    assert "has neither config.json nor translator.json nor model.keras" in line
    (tmp_path / "a.keras").write_bytes(b"")
    line = command.refuses("export", tmp_path / "a.keras", out, "--task", "encoder")
    assert "--task is for a checkpoint folder" in line
    # A checkpoint without a tokenizer.
    line = command.refuses("attention", VIT, "a text")
    assert "`folder` must hold a tokenizer" in line
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "config.json").write_text("[" * 200_000)
    line = command.refuses("export", broken, out)
    assert "config.json must be JSON nested at most 64 deep" in line
    (broken / "config.json").write_text('{"model_type": "bert"}')
    line = command.refuses("verify", broken, folder / "config.json")
    assert "must be one of: a SavedModel folder" in line
    line = command.refuses("export", broken, out)
    assert "otherwise pass a `task`, one of encoder" in line
    assert not out.exists()
