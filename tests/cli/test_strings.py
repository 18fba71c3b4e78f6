"""`keras-attn export --tokenizer`: an artefact that takes strings."""

import keras
import pytest

from keras_attn import models
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.opened_model import OpenedModel
from keras_attn.cli.served_text import tokenizer_to_include
from keras_attn.export import load_runner

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

from keras_attn.data import WordPieceTokenizer  # noqa: E402

TEXTS = ["a man sleeps", "a plan: a canal"]


SIZES = {"num_layers": 1, "hidden_dim": 6, "num_heads": 2, "mlp_dim": 7}


@pytest.fixture
def run(tmp_path):
    """The folder of a run, with its model and its tokenizer, and a file of texts."""
    run, lines = tmp_path / "run", tmp_path / "texts.txt"
    model = models.build_bert_classifier(
        models.build_bert(vocabulary_size=61, **SIZES), num_classes=3
    )
    models.save_checkpoint(model, run)
    tokenizer = WordPieceTokenizer.train(TEXTS * 3, vocabulary_size=61)
    tokenizer.save(run)
    lines.write_text("\n".join(TEXTS) + "\n")
    return run, lines, model, tokenizer


@pytest.mark.shipped
def test_export_and_verify(command, run, tmp_path):
    words, lines, built, _ = run
    model, artefact = tmp_path / "model.keras", tmp_path / "served"
    built.save(model)
    options = ["--tokenizer", words, "--sequence-length", 11, "--samples", lines]
    assert command("export", model, artefact, *options) == 0
    assert "text: string" in command.out
    (scores,) = load_runner(artefact)({"text": TEXTS}).values()
    assert scores.shape == (2, 3)
    assert command("verify", model, artefact, *options) == 0
    assert "agrees with" in command.out
    line = command.refuses("verify", model, artefact)
    assert "must have the signature `serve` with the inputs" in line
    line = command.refuses("export", model, tmp_path / "m.onnx", "--tokenizer", words)
    assert "`tokenizer` is only for SavedModels" in line


@pytest.mark.shipped
def test_the_tokenizer_of_a_run_is_taken_along(command, run, tmp_path):
    run, lines, model, tokenizer = run
    Result("text_classification", class_names=["a", "b", "c"], max_length=5).save(run)
    artefact = run / "served"
    assert command("export", run, artefact, "--samples", lines) == 0
    assert "`serve` takes `text`" in command.out
    assert "import tensorflow_text" in " ".join(command.out.split())
    (scores,) = load_runner(artefact)({"text": TEXTS}).values()
    # Rows have the length of the run's, as in `predict`.
    inputs = tokenizer.encode_batch(TEXTS, max_length=5)
    expected = model.predict(inputs, verbose=0)
    assert abs(scores - expected).max() < 1e-5
    assert command("verify", run, artefact) == 0
    assert command("predict", artefact, lines) == 0
    served = command.out
    assert command("predict", run, lines) == 0
    assert command.out == served
    # Ids, if they are asked for.
    assert command("export", run, tmp_path / "ids", "--token-ids") == 0
    assert "token_ids" in load_runner(tmp_path / "ids").signatures["serve"].inputs
    assert "`serve` takes `text`" not in command.out


def test_a_tokenizer_that_stays_is_said(tmp_path, capsys):
    run = tmp_path / "gpt"
    model = models.build_gpt(vocabulary_size=261, **SIZES)
    opened = OpenedModel(run, model)
    run.mkdir()
    for given, reason in (
        (opened, "a decoder takes and returns tokens one by one"),
        (OpenedModel(run, keras.Model(model.input, model.output)), "cannot be read"),
    ):
        assert tokenizer_to_include(given) is None
        said = " ".join(capsys.readouterr().out.split())
        assert "The tokenizer is not included" in said and reason in said
    images = keras.Input((3, 3, 3), name="images")
    assert tokenizer_to_include(OpenedModel(run, keras.Model(images, images))) is None
    assert capsys.readouterr().out == ""
