"""The training run: its files and logs, and that it resumes after a kill."""

import contextlib
import csv
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from event_files import events_of, steps_of

from keras_attn.training import CosineWarmup
from keras_attn.training.history_file import HistoryFile
from keras_attn.translator import TranslationScore, Translator, fit_translator
from keras_attn.translator import training as translation

pytestmark = pytest.mark.compiled

STEPS = 2  # Per epoch: 32 pairs in batches of 16.
LENGTH = 9  # Of every batch, so that one shape is compiled.


@pytest.fixture(scope="session")
def fast(build):
    """Makes small translators without alignment, for runs that are `eager`."""
    return lambda seed=1: build("seq2seq_context", max_length=5, seed=seed)


@contextlib.contextmanager
def run_eagerly():
    """Trains without compiling, which takes longer than all epochs of a test.

    The module's `run` is compiled, and so are the resumed runs of `test_backup` and of
    the command line.
    """
    compile_model = translation._compile

    def compile_eagerly(model, *arguments):
        compile_model(model, *arguments)
        model.run_eagerly = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "_compile", compile_eagerly)
        yield


@pytest.fixture
def eager():
    with run_eagerly():
        yield


def fit(translator, corpus, run_dir, **options):
    sources, targets = corpus
    options = {
        "epochs": 2,
        "batch_size": 16,
        "num_scored": 3,
        "num_drawn": 2,
        "verbose": 0,
        **options,
    }
    return fit_translator(
        translator,
        (sources[:32], targets[:32]),
        (sources[32:], targets[32:]),
        run_dir,
        **options,
    )


def history(run_dir):
    with open(Path(run_dir, "history.csv"), newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(build, corpus, tmp_path_factory):
    """An uninterrupted run of three epochs: its folder, translator and history."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "new" / "run"
    translator = build(max_length=LENGTH)
    return folder, translator, fit(translator, corpus, folder, epochs=3)


def test_a_run_writes_its_folder(run, corpus):
    folder, translator, returned = run
    tokenizers = {"source_tokenizer.json", "target_tokenizer.json"}
    others = {"model.keras", "translator.json", "history.csv", "logs"}
    assert {path.name for path in folder.iterdir()} == tokenizers | others
    rows = history(folder)
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    names = "epoch accuracy exact_match loss val_accuracy val_loss".split()
    assert list(rows[0]) == names
    for name in ("loss", "val_loss", "accuracy", "exact_match"):
        values = [float(row[name]) for row in rows]
        assert np.isfinite(values).all()
        np.testing.assert_allclose(values, returned.history[name], rtol=1e-6)
    losses = returned.history["loss"]
    assert losses[2] < losses[0]
    loaded = Translator.load(folder)
    assert loaded.translate(corpus[0][:3]) == translator.translate(corpus[0][:3])


def test_a_run_is_logged_to_tensorboard(run):
    folder, _, _ = run
    train, validation = (steps_of(folder / "logs" / n) for n in ("train", "validation"))
    assert train["epoch_loss"] == [0, 1, 2]
    assert train["epoch_accuracy"] == [0, 1, 2]
    assert validation["epoch_loss"] == [0, 1, 2]
    assert validation["exact_match"] == [0, 1, 2]
    assert validation["translations"] == [0, 1, 2]
    for index in range(2):
        assert validation[f"attention/decoder/{index}"] == [0, 1, 2]
    assert "attention/decoder/2" not in validation


def test_a_run_uses_the_documented_optimizer(run):
    _, translator, _ = run
    optimizer = translator.model.optimizer
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert optimizer.global_clipnorm == 1.0
    steps = int(optimizer.iterations)
    assert steps == 3 * STEPS
    # The cosine reaches zero at the last step.
    schedule = optimizer._learning_rate
    assert isinstance(schedule, CosineWarmup)
    assert float(schedule(0)) == pytest.approx(1e-3)
    assert float(schedule(steps)) == pytest.approx(0, abs=1e-9)
    assert float(schedule(steps - 1)) > 1e-6


def test_warmup_and_smoothing_reach_the_optimizer_and_the_loss(
    fast, corpus, tmp_path, monkeypatch
):
    translator = fast()
    monkeypatch.setattr(translator.model, "fit", lambda *_, **__: "history")
    options = {"warmup_steps": 2, "label_smoothing": 0.25, "learning_rate": 3e-3}
    assert fit(translator, corpus, tmp_path / "run", **options) == "history"
    model = translator.model
    schedule = model.optimizer._learning_rate
    rates = [float(schedule(step)) for step in range(3)]
    assert rates[0] < rates[1] < 3e-3 + 1e-9
    assert schedule.warmup_steps == 2
    assert model.loss.label_smoothing == 0.25


@pytest.mark.runs
def test_a_run_killed_after_its_last_epoch_is_saved(eager, fast, corpus, tmp_path):
    translator = fast()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "save", lambda *given: sys.exit(3))
        with pytest.raises(SystemExit):
            fit(translator, corpus, tmp_path, epochs=1)
    assert not (tmp_path / "translator.json").exists()
    again = fast(seed=9)
    fit(again, corpus, tmp_path, epochs=1)
    saved = Translator.load(tmp_path).model.get_weights()
    for ours, theirs in zip(saved, translator.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [row["epoch"] for row in history(tmp_path)] == ["0"]


def test_a_new_run_in_the_folder_starts_a_new_history(
    run, eager, fast, corpus, tmp_path
):
    shutil.copy(run[0] / "history.csv", tmp_path)
    fit(fast(), corpus, tmp_path, epochs=1, score_name="share")
    rows = history(tmp_path)
    assert [row["epoch"] for row in rows] == ["0"]
    assert "share" in rows[0] and "exact_match" not in rows[0]


def test_a_row_is_replaced_and_columns_may_change(tmp_path):
    path = tmp_path / "history.csv"
    file = HistoryFile(path)
    file.on_epoch_end(0, {"loss": 2.5, "accuracy": 0.25})
    file.on_epoch_end(1, {"loss": 9.0, "accuracy": 0.5})
    file.on_epoch_end(1, {"loss": 1.5, "accuracy": 0.75})
    expected = "epoch,accuracy,loss\r\n0,0.25,2.5\r\n1,0.75,1.5\r\n"
    assert path.read_bytes().decode() == expected
    file.on_epoch_end(2, {"bleu": 3.0, "loss": 1.0})
    expected = "epoch,bleu,loss\r\n0,,2.5\r\n1,,1.5\r\n2,3.0,1.0\r\n"
    assert path.read_bytes().decode() == expected


def test_a_model_without_attention_has_no_alignments(eager, build, corpus, tmp_path):
    translator = build("seq2seq_sutskever", max_length=5)
    fit(translator, corpus, tmp_path, epochs=1)
    assert [row["epoch"] for row in history(tmp_path)] == ["0"]
    written = steps_of(tmp_path / "logs" / "validation")
    assert "exact_match" in written
    assert not [tag for tag in written if tag.startswith("attention")]


def test_a_score_and_translations_are_logged(translator, corpus, tmp_path):
    callback = TranslationScore(
        translator,
        corpus[0][:3],
        corpus[1][:3],
        score=lambda ours, theirs: float(len(ours) + len(theirs)),
        name="length",
        log_dir=tmp_path,
        num_shown=2,
    )
    logs = {}
    callback.on_epoch_end(7, logs)
    callback.on_epoch_end(8)
    assert logs == {"length": 6.0}
    assert steps_of(tmp_path)["length"] == [7, 8]
    (_, texts), *_ = events_of(tmp_path)["translations"]
    assert texts.shape == (3, 3)
    assert list(texts[0]) == [b"source", b"reference", b"translation"]
    source, reference, translation = (text.decode() for text in texts[1])
    assert source == corpus[0][0]
    assert reference == corpus[1][0]
    assert translation == translator.translate(corpus[0][:1])[0]


@pytest.mark.parametrize(
    "smoothing, runs_eagerly", [(0.0, True), (0.25, False)], ids=["eager", "smoothed"]
)
def test_the_loss_is_averaged_over_target_tokens(
    request, build, tmp_path, smoothing, runs_eagerly, monkeypatch
):
    """Nats per real token, however the tokens are batched and padded."""
    if runs_eagerly:
        request.getfixturevalue("eager")
    sources = ["a", "bb", "a b", "abab", "ba", "b"]
    targets = ["b", "ab", "abba ab", "a", "bab", "ba"]
    translator = build("seq2seq_context", max_length=LENGTH)
    monkeypatch.setattr(keras.optimizers.Adam, "apply", lambda *given: None)
    returned = fit_translator(
        translator,
        (sources, targets),
        (sources, targets),
        tmp_path,
        epochs=1,
        batch_size=4,
        label_smoothing=smoothing,
        score=lambda *_: 0.0,
        num_drawn=0,
        verbose=0,
    )
    losses = []
    for source, target in zip(sources, targets, strict=True):
        inputs, _, _ = translator.example(source, target)
        ids = translator.target_tokenizer.encode(target)
        ids = [*ids, translator.target_tokenizer.end_token_id]
        logits = keras.ops.convert_to_numpy(translator.model(inputs))[0]
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for row, label in zip(log_p, ids, strict=True):
            losses.append((1 - smoothing) * -row[label] - smoothing * row.mean())
    assert len({len(target) for target in targets}) > 3
    for name in ("loss", "val_loss"):
        assert returned.history[name] == pytest.approx([np.mean(losses)], rel=1e-5)
