"""`keras-attn export --tokenizer`: an artefact that takes strings."""

import pytest

from keras_attn import models
from keras_attn.export import load_runner

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

from keras_attn.data import WordPieceTokenizer  # noqa: E402

# Keras turns TensorFlow's variables into arrays in a way that NumPy 2 deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)
TEXTS = ["a man sleeps", "a plan: a canal"]


@pytest.mark.shipped
def test_export_and_verify(command, tmp_path):
    tokenizer = WordPieceTokenizer.train(TEXTS * 3, vocabulary_size=61)
    words, lines = tmp_path / "words", tmp_path / "texts.txt"
    tokenizer.save(words)
    lines.write_text("\n".join(TEXTS) + "\n")
    encoder = models.build_bert(
        vocabulary_size=61, num_layers=1, hidden_dim=6, num_heads=2, mlp_dim=7
    )
    model = tmp_path / "model.keras"
    models.build_bert_classifier(encoder, num_classes=3).save(model)
    artefact = tmp_path / "served"
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
