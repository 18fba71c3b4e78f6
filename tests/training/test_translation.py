"""The training run: what it leaves, and that it goes on after a kill."""

import csv
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_attn.training import (
    BackupAndResume,
    CosineWarmup,
    TranslationScore,
    exact_match,
    fit_translator,
)
from keras_attn.training.backup import BACKUP_FILE
from keras_attn.training.translation import _alignment_maps, _log_epoch
from keras_attn.translator import Translator

STEPS = 2  # Of an epoch: 32 pairs in batches of 16.
LENGTH = 9  # Of every batch, so that there is one shape to compile.


@pytest.fixture(scope="session")
def fast(build):
    """Makes translators that are soon compiled; without alignment."""
    return lambda seed=1: build("seq2seq_context", max_length=LENGTH, seed=seed)


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


def events(folder):
    found = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    return {
        tag: [event.step for event in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


@pytest.fixture(scope="module")
def run(build, corpus, tmp_path_factory):
    """A run that nobody disturbed: three epochs, its folder and its translator."""
    folder = tmp_path_factory.mktemp("undisturbed")
    translator = build(max_length=LENGTH)
    returned = fit(translator, corpus, folder / "new" / "run", epochs=3)
    return folder / "new" / "run", translator, returned


def test_a_run_leaves_what_it_says(run, corpus):
    folder, translator, returned = run
    assert {path.name for path in folder.iterdir()} == {
        "model.keras",
        "source_tokenizer.json",
        "target_tokenizer.json",
        "translator.json",
        "history.csv",
        "logs",
    }
    rows = history(folder)
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert list(rows[0]) == [
        "epoch",
        "accuracy",
        "exact_match",
        "loss",
        "val_accuracy",
        "val_loss",
    ]
    for name in ("loss", "val_loss", "accuracy", "exact_match"):
        values = [float(row[name]) for row in rows]
        assert np.isfinite(values).all()
        np.testing.assert_allclose(values, returned.history[name], rtol=1e-6)
    losses = returned.history["loss"]
    assert losses[2] < losses[0]
    loaded = Translator.load(folder)
    assert loaded.translate(corpus[0][:3]) == translator.translate(corpus[0][:3])


def test_a_run_can_be_watched_in_tensorboard(run):
    folder, _, _ = run
    train, validation = (events(folder / "logs" / n) for n in ("train", "validation"))
    assert train["epoch_loss"] == [0, 1, 2]
    assert train["epoch_accuracy"] == [0, 1, 2]
    assert validation["epoch_loss"] == [0, 1, 2]
    assert validation["exact_match"] == [0, 1, 2]
    assert validation["translations"] == [0, 1, 2]
    for index in range(2):
        assert validation[f"attention/decoder/{index}"] == [0, 1, 2]
    assert "attention/decoder/2" not in validation


def test_a_run_is_fitted_as_published(run):
    _, translator, _ = run
    optimizer = translator.model.optimizer
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert optimizer.global_clipnorm == 1.0
    steps = int(optimizer.iterations)
    assert steps == 3 * STEPS
    # A cosine that has come down to zero at the last step.
    schedule = optimizer._learning_rate
    assert isinstance(schedule, CosineWarmup)
    assert float(schedule(0)) == pytest.approx(1e-3)
    assert float(schedule(steps)) == pytest.approx(0, abs=1e-9)
    assert float(schedule(steps - 1)) > 1e-6


def test_warmup_and_smoothing_reach_the_optimizer_and_the_loss(
    fast, corpus, tmp_path, monkeypatch
):
    translator = fast()
    monkeypatch.setattr(translator.model, "fit", lambda *_, **__: "fitted")
    options = {"warmup_steps": 2, "label_smoothing": 0.25, "learning_rate": 3e-3}
    assert fit(translator, corpus, tmp_path / "run", **options) == "fitted"
    model = translator.model
    schedule = model.optimizer._learning_rate
    rates = [float(schedule(step)) for step in range(3)]
    assert rates[0] < rates[1] < 3e-3 + 1e-9
    assert schedule.warmup_steps == 2
    assert model.loss.label_smoothing == 0.25


def disturbed(where, fast, corpus, folder, monkeypatch):
    """A run in which something is raised in its second epoch, at a certain place."""
    translator, count = fast(), []

    def boom(*arguments, **options):
        raise SystemExit(where)

    def score(translations, references):
        count.append(len(translations))
        return exact_match(translations, references)

    with monkeypatch.context() as patch:
        target = {
            "save": (Translator, "save"),
            "backup": (BackupAndResume, "_save"),
        }[where]
        original = getattr(*target)

        def second(self, *arguments):
            if len(count) == 2:
                boom()
            return original(self, *arguments)

        patch.setattr(*target, second)
        with pytest.raises(SystemExit, match=where):
            fit(translator, corpus, folder, epochs=3, score=score)


@pytest.mark.runs
@pytest.mark.parametrize("where", ["backup", "save"])
def test_a_run_that_was_killed_goes_on(
    fast, corpus, tmp_path, tmp_path_factory, monkeypatch, where
):
    unbroken = tmp_path_factory.mktemp("unbroken")
    expected = fit(fast(), corpus, unbroken, epochs=3)
    disturbed(where, fast, corpus, tmp_path, monkeypatch)
    assert (tmp_path / "backup").is_dir()
    assert (tmp_path / "translator.json").is_file()
    before = history(tmp_path)
    assert [row["epoch"] for row in before] == ["0", "1"]
    translator = fast(seed=9)  # Its weights are not those it goes on with.
    returned = fit(translator, corpus, tmp_path, epochs=3)
    assert returned.epoch == [0, 1, 2]
    assert returned.history == expected.history
    assert int(translator.model.optimizer.iterations) == 3 * STEPS
    assert not (tmp_path / "backup").exists()
    # To the last digit; of the epoch that was trained twice too.
    assert history(tmp_path) == history(unbroken)
    assert history(tmp_path)[:2] == before
    loaded = Translator.load(tmp_path).model.get_weights()
    for ours, theirs in zip(loaded, translator.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.runs
def test_a_run_killed_behind_its_last_epoch_is_saved(fast, corpus, tmp_path):
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


@pytest.mark.runs
def test_a_backup_cut_short_is_told(fast, corpus, tmp_path):
    def score(translations, references, count=[]):  # noqa: B006  counts its calls
        count.append(None)
        return 1 / 0 if len(count) == 3 else 0.5

    with pytest.raises(ZeroDivisionError):
        fit(fast(), corpus, tmp_path, epochs=3, score=score)
    backup = tmp_path / "backup" / BACKUP_FILE
    backup.write_bytes(backup.read_bytes()[:1000])
    with pytest.raises(ValueError, match="backup is damaged .* Delete it"):
        fit(fast(), corpus, tmp_path, epochs=3)
    backup.unlink()
    returned = fit(fast(), corpus, tmp_path, epochs=3)
    assert returned.epoch == [0, 1, 2]


def test_a_new_run_in_the_folder_begins_a_new_history(run, fast, corpus, tmp_path):
    shutil.copy(run[0] / "history.csv", tmp_path)
    fit(fast(), corpus, tmp_path, epochs=1, score_name="share")
    rows = history(tmp_path)
    assert [row["epoch"] for row in rows] == ["0"]
    assert "share" in rows[0] and "exact_match" not in rows[0]


def test_a_line_is_replaced_and_columns_may_change(tmp_path):
    path = tmp_path / "history.csv"
    _log_epoch(path, 0, {"loss": 2.5, "accuracy": 0.25})
    _log_epoch(path, 1, {"loss": 9.0, "accuracy": 0.5})
    _log_epoch(path, 1, {"loss": 1.5, "accuracy": 0.75})
    expected = "epoch,accuracy,loss\r\n0,0.25,2.5\r\n1,0.75,1.5\r\n"
    assert path.read_bytes().decode() == expected
    _log_epoch(path, 2, {"bleu": 3.0, "loss": 1.0})
    expected = "epoch,bleu,loss\r\n0,,2.5\r\n1,,1.5\r\n2,3.0,1.0\r\n"
    assert path.read_bytes().decode() == expected


def test_a_model_without_attention_is_fitted_and_nothing_drawn(build, corpus, tmp_path):
    translator = build("seq2seq_sutskever", max_length=LENGTH)
    fit(translator, corpus, tmp_path, epochs=1)
    assert [row["epoch"] for row in history(tmp_path)] == ["0"]
    written = events(tmp_path / "logs" / "validation")
    assert "exact_match" in written
    assert not [tag for tag in written if tag.startswith("attention")]


def test_pictures_are_drawn_where_there_is_something_to_see(
    translator, fast, corpus, tmp_path
):
    sources, targets = corpus
    assert len(_alignment_maps(translator, sources, targets, 3, tmp_path)) == 1
    assert _alignment_maps(translator, sources, targets, 0, tmp_path) == []
    assert _alignment_maps(fast(), sources, targets, 3, tmp_path) == []


def test_a_score_joins_the_logs_and_its_texts_tensorboard(translator, corpus, tmp_path):
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
    found = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    found.Reload()
    assert [event.step for event in found.Tensors("length")] == [7, 8]
    texts = found.Tensors("translations")[0].tensor_proto
    assert [dim.size for dim in texts.tensor_shape.dim] == [3, 3]
    assert list(texts.string_val[:3]) == [b"source", b"reference", b"translation"]
    assert texts.string_val[3].decode() == corpus[0][0]
    assert texts.string_val[4].decode() == corpus[1][0]
    assert texts.string_val[5].decode() == translator.translate(corpus[0][:1])[0]


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_the_loss_is_that_of_target_tokens(fast, tmp_path, smoothing, monkeypatch):
    """Nats per real token, each token once, whatever batch and padding it is in."""
    sources = ["a", "bb", "a b", "abab", "ba", "b"]
    targets = ["b", "ab", "abba ab", "a", "bab", "ba"]
    translator = fast()
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
            smooth = -row.mean()
            losses.append((1 - smoothing) * -row[label] + smoothing * smooth)
    assert len({len(target) for target in targets}) > 3
    for name in ("loss", "val_loss"):
        assert returned.history[name] == pytest.approx([np.mean(losses)], rel=1e-5)
