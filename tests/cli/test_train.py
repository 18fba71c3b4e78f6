"""`keras-attn train`: from two text files to a translator, and its folder in use."""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from keras_attn.cli.train import _summary
from keras_attn.cli.train_settings import Settings
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


@contextmanager
def interrupted_in_the_second_epoch(monkeypatch):
    """As Ctrl-C, when the translations of that epoch are scored."""
    scored = []

    def interrupt_the_second(translations, references):
        scored.append(len(references))
        if scored == [1, 3, 3]:  # The first is a check before training.
            raise KeyboardInterrupt
        return 0.0

    with monkeypatch.context() as patch:
        patch.setattr("keras_attn.metrics.exact_match", interrupt_the_second)
        yield


# Keras leaves the history open when it is interrupted.
@pytest.mark.runs
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_run_is_resumed(command, corpus, tmp_path, monkeypatch):
    folder = tmp_path / "my run"
    options = [*corpus, *SMALL, "--epochs", 2, "--run-dir", folder]
    with interrupted_in_the_second_epoch(monkeypatch):
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
        ("must be one of", "--model", "gpt2_small"),
        ("rnnsearch_50, seq2seq_context", "--model", "gpt2_small"),
        ("seq2seq_sutskever, transformer_base", "--model", "gpt2_small"),
        ("must be given together", "--validation-source", one),
        ("--num-heads is no size of rnnsearch_50, which has --", "--num-heads", 2),
        ("less than the 10 updates", "--warmup-steps", 10),
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


# Sizes of a tiny one, with which an epoch takes a second besides compiling.
TRANSFORMER = "--model transformer_base --tokenizer character --batch-size 29".split()
TRANSFORMER += "--hidden-dim 6 --num-layers 1 --num-heads 3 --mlp-dim 5".split()
TRANSFORMER += ["--score", "exact_match"]


def test_a_transformer_takes_the_sizes_that_it_has(
    command, corpus, tmp_path, monkeypatch
):
    fitted, options = [], []
    monkeypatch.setattr(
        "keras_attn.translator.fit_translator",
        lambda *given, **passed: (fitted.extend(given[:1]), options.append(passed)),
    )
    more = ["--label-smoothing", 0.1, "--epochs", 31, "--max-length", 20]
    assert command("train", *corpus, *TRANSFORMER, *more, "--run-dir", tmp_path) == 0
    assert "keras-attn attention" in command.out
    (translator,), (passed,) = fitted, options
    # One vocabulary of both sides.
    assert translator.source_tokenizer.pieces == translator.target_tokenizer.pieces
    assert set("3 mar 2027") <= set(translator.source_tokenizer.pieces)
    assert passed["label_smoothing"] == 0.1 and passed["warmup_steps"] == 3
    sizes = {weight.path: weight.shape for weight in translator.model.weights}
    size = translator.source_tokenizer.vocabulary_size
    assert sizes["token_embedding/embeddings"] == (size, 6)
    assert not any("block_1" in path for path in sizes)
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["num_heads"] == 3 and "embedding_dim" not in settings
    command.refuses_each(
        ["train", *corpus, *TRANSFORMER, *more, "--run-dir"],
        ("--embedding-dim is no size of tr", tmp_path / "n", "--embedding-dim", 5),
        ("`num_heads`", tmp_path / "n", "--num-heads", 4),
        ("num_layers was 1, is 2", tmp_path, "--num-layers", 2),
    )
    assert not (tmp_path / "n").exists()


def test_usual_sizes_of_a_transformer():
    paths: dict = {"source": Path("a"), "target": Path("b")}
    for hidden_dim, heads in ((256, 4), (512, 8), (200, 2), (6, 1)):
        settings = Settings(**paths, model="transformer_big", hidden_dim=hidden_dim)
        sizes = {"num_layers": 3, "num_heads": heads, "mlp_dim": 4 * hidden_dim}
        assert settings.own_sizes == sizes
        assert settings.identity().items() >= sizes.items()
    assert settings.warmup(100_000) == 1000 and settings.warmup(6400) == 100
    # As runs of earlier versions have it.
    settings = Settings(**paths)
    assert settings.own_sizes == {"embedding_dim": 256} and settings.warmup(10**6) == 0
    assert set(settings.identity()) == {
        *("model", "tokenizer", "vocabulary_size", "max_length", "hidden_dim"),
        *("embedding_dim", "dropout", "epochs", "batch_size", "learning_rate", "seed"),
    }


@pytest.mark.runs
def test_the_folder_of_a_transformer_is_resumed_and_used(
    command, corpus, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    options = [*corpus, *TRANSFORMER, "--epochs", 2, "--run-dir", folder]
    with interrupted_in_the_second_epoch(monkeypatch):
        assert command("train", *options) == 130
    assert command("train", *options) == 0
    assert "Resuming the interrupted run" in command.out and command.err == ""
    text = "3 mar 2027"
    translator = Translator.load(folder)
    (expected,) = translator.translate([text])
    assert command("generate", "--model", folder, "--prompt", text) == 0
    assert command.out == expected + "\n"
    page, picture = tmp_path / "page.html", tmp_path / "alignment.png"
    target = ["--translation", "2027-03-03"]
    assert command("attention", folder, text, *target, "--output", picture) == 0
    assert command("attention", folder, text, *target, "--output", page) == 0
    assert "decoder_block_0/cross_attention" in page.read_text("utf-8")
    artefact = tmp_path / "dates.onnx"
    assert command("export", folder, artefact) == 0
    assert command("verify", folder, artefact) == 0
    assert "agrees with" in command.out
    shutil.move(artefact, folder)
    exported = ["--model", folder / "dates.onnx", "--prompt", text]
    assert command("generate", *exported) == 0
    assert command.out == expected + "\n"


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
