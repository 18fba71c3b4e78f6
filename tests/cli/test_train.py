"""`keras-attn train`: from two text files to a translator, and its folder in use."""

import json
from types import SimpleNamespace

import pytest

from keras_attn.cli.train import _summary
from keras_attn.data import CharacterTokenizer
from keras_attn.models.catalog import registry
from keras_attn.translator import Translator

pytestmark = pytest.mark.compiled

TINY = "--tokenizer character --hidden-dim 6 --embedding-dim 5 --batch-size 29".split()
SMALL = [*TINY, "--score", "exact_match"]


def test_a_trained_run_is_not_changed(command, corpus, run_dir):
    before = (run_dir / "model.keras").stat().st_mtime_ns
    assert command("train", *corpus, *SMALL, "--epochs", 1, "--run-dir", run_dir) == 0
    assert "is already trained" in command.out
    assert "on 3 held-out pairs, translated greedily" in command.out
    assert (run_dir / "model.keras").stat().st_mtime_ns == before


def test_a_pair_without_its_end_counts_as_truncated():
    """A target of `max_length` tokens has no room for the end token; a source fits."""
    tokenizer = CharacterTokenizer.train(["abcde"])
    model = SimpleNamespace(count_params=lambda: 7)
    translator = Translator(model, tokenizer, tokenizer, max_length=3)
    pairs = ["abc", "ab", "abcd"], ["ab", "abc", "a"]
    summary = _summary("rnnsearch_30", translator, pairs, ([], []))
    assert "Truncated at 3 tokens: 2 pairs" in summary


# Keras leaves the history open when it is interrupted.
@pytest.mark.runs
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_run_is_resumed(command, corpus, tmp_path, monkeypatch):
    folder = tmp_path / "my run"
    options = [*corpus, *SMALL, "--epochs", 2, "--run-dir", folder]
    scored = []

    def interrupt_the_second(translations, references):
        scored.append(len(references))
        if scored == [1, 3, 3]:  # The first is a check before training.
            raise KeyboardInterrupt
        return 0.0

    with monkeypatch.context() as patch:
        patch.setattr("keras_attn.metrics.exact_match", interrupt_the_second)
        assert command("train", *options) == 130
    assert "run the same command to go on" in command.err
    assert "Pairs left out because a side is empty: 1\n" in command.out
    assert "27 pairs to train on, 3 held out" in command.out

    assert command("train", *options) == 0
    assert "Resuming the interrupted run" in command.out
    assert "Epoch 2/2" in command.out and "Epoch 1/2" not in command.out
    assert "exact match" in command.out and "on 3 held-out pairs" in command.out
    assert f"keras-attn export '{folder}' 'my run.tflite'" in command.out
    assert f"keras-attn attention '{folder}' " in command.out
    assert command.err == ""
    assert len((folder / "history.csv").read_text().splitlines()) == 3
    assert not (folder / "backup").exists()


def test_a_folder_belongs_to_one_run(command, corpus, run_dir, tmp_path):
    line = command.refuses("train", *corpus, "--seed", 7, "--run-dir", run_dir)
    assert "seed was 0, is 7" in line and "hidden_dim was 6, is 256" in line
    Translator.load(run_dir).save(tmp_path)
    line = command.refuses("train", *corpus, "--run-dir", tmp_path)
    assert "must be a new folder or the folder of this run" in line


def test_texts_that_are_refused(command, corpus, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a\n")
    two.write_text("a\nb\n")
    command.refuses_each(
        ["train", "--source", one, "--target"],
        ("1 lines", two),
        ("2 lines", two),
        ("does not exist", tmp_path / "none"),
        ("at least two pairs", one),
    )
    command.refuses_each(
        ["train", *corpus],
        ("did you mean", "--model", "rnnsearch"),
        ("must be one of", "--model", "transformer_base"),
        ("rnnsearch_50, seq2seq_context", "--model", "transformer_base"),
        ("must be given together", "--validation-source", one),
        (f"error: Not a directory: {one / 'run'}", "--run-dir", one / "run"),
        ("is a file", "--run-dir", one),
    )


# `registered_elsewhere` is RNNsearch: what a model is does not follow from its name.
@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("seq2seq_sutskever", {}),
        ("seq2seq_context", {"readout/bias": (6,)}),
        (
            "registered_elsewhere",
            {"readout/bias": (6,), "decoder/attention/score_vector": (6, 1)},
        ),
    ],
)
def test_the_other_models_take_the_same_options(
    command, corpus, tmp_path, model, weights, monkeypatch
):
    entry = registry._REGISTRY["rnnsearch_50"]
    monkeypatch.setitem(registry._REGISTRY, "registered_elsewhere", entry)
    fitted, options = [], []
    monkeypatch.setattr(
        "keras_attn.translator.fit_translator",
        lambda *given, **passed: (fitted.extend(given[:1]), options.append(passed)),
    )
    validation = [
        f"--validation-{str(word).removeprefix('--')}" for word in corpus[::2]
    ]
    files = [corpus[1], corpus[3]]
    held_out = [part for pair in zip(validation, files, strict=True) for part in pair]
    files = [*corpus, *held_out, *SMALL, "--model", model, "--run-dir", tmp_path]
    assert command("train", *files) == 0
    assert "30 pairs to train on, 30 held out" in command.out
    assert "30 of 30 pairs to validate on are also training pairs" in command.out
    is_drawn = "keras-attn attention" in command.out
    assert is_drawn == ("decoder/attention/score_vector" in weights)
    (translator,), (passed,) = fitted, options
    sizes = {weight.path: weight.shape for weight in translator.model.weights}
    assert weights.items() <= sizes.items()
    assert passed["score_name"] == "exact_match" and passed["epochs"] == 10


def test_the_alignment_is_drawn(command, run_dir, tmp_path):
    picture = tmp_path / "new" / "alignment.png"
    assert command("attention", run_dir, "3 mar 2027", "--output", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert command.out.endswith(f"Alignment: {picture}\n") and command.err == ""


def test_drawings_that_are_refused(command, run_dir, tmp_path):
    (tmp_path / "file").touch()
    command.refuses_each(
        ["attention", run_dir],
        ("at least one token", ""),
        ("file", "3 mar", "--output", tmp_path / "file" / "a.png"),
    )


@pytest.mark.shipped
def test_a_translator_is_exported_and_verified(command, run_dir, tmp_path):
    artefact, report = tmp_path / "dates.tflite", tmp_path / "dates.json"
    fixed = ["--batch-size", 2, "--sequence-length", 48, "--report", report]
    assert command("export", run_dir, artefact, *fixed) == 0
    assert command.err == ""
    inputs = json.loads(report.read_text())["inputs"]["prefill"]
    assert inputs["token_ids"] == "int32 (2, 48)"
    assert inputs["decoder_token_ids"] == "int32 (2, 1)"
    samples = tmp_path / "samples.txt"
    samples.write_text("3 mar 2027\n\nthe third of march\n")
    assert command("verify", run_dir, artefact, "--samples", samples) == 0
    assert "agrees with" in command.out and command.err == ""
