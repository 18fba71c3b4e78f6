"""The demo in its quick version: every step, on a model that does not learn."""

import pytest

from keras_attn import translator
from keras_attn.cli import demo
from keras_attn.cli.terminal import CheckFailedError
from keras_attn.translator import Translator


@pytest.mark.runs
@pytest.mark.variation
def test_the_quick_demo_runs_every_step(command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    folder = tmp_path / "demo"
    assert command("demo", "--quick", "--run-dir", folder) == 0
    assert command.err == ""
    for format in ("SavedModel", "LiteRT", "ONNX"):
        (row,) = [line for line in command.out.splitlines() if f"│ {format}" in line]
        assert row.count("16 / 16") == 2
    assert (folder / "alignment.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "alignment.gif").read_bytes().startswith(b"GIF8")
    assert list((folder / "logs").rglob("events.out.tfevents.*"))
    assert len((folder / "history.csv").read_text().splitlines()) == 2
    assert isinstance(Translator.load(folder), Translator)


def test_a_missing_package_is_said_before_training(command, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_EXPORT_PACKAGES", ("onnx", "no_such_package"))
    line = command.refuses("demo", "--run-dir", tmp_path / "demo")
    assert "needs `no_such_package`" in line and "keras-attn[export]" in line
    assert not (tmp_path / "demo").exists()


def patch_steps(monkeypatch, accuracy, failures):
    """Replaces the slow steps of the demo by their results."""
    monkeypatch.setattr(translator, "fit_translator", lambda *given, **options: None)
    monkeypatch.setattr(demo, "_plot", lambda *given: None)
    monkeypatch.setattr(demo, "_evaluate", lambda *given: accuracy)
    monkeypatch.setattr(demo, "_ship", lambda *given: list(failures))


def test_a_model_that_did_not_learn_fails_the_demo(command, tmp_path, monkeypatch):
    patch_steps(monkeypatch, 0.97, [])
    assert command("demo", "--run-dir", tmp_path) == 1
    assert command.err == ("error: 97.0% of the dates are right; 98% are required\n")
    patch_steps(monkeypatch, 0.98, [])
    assert command("demo", "--run-dir", tmp_path) == 0


def test_an_artefact_that_differs_fails_the_demo(tmp_path, monkeypatch):
    patch_steps(monkeypatch, 1.0, ["ONNX, greedy: 3 of 200 dates differ from Keras"])
    with pytest.raises(CheckFailedError, match="3 of 200 dates differ"):
        demo.demo(tmp_path, quick=True)


def test_an_earlier_demo_in_the_folder(command, tmp_path, monkeypatch):
    patch_steps(monkeypatch, 1.0, [])
    demo.demo(tmp_path, quick=False)
    (tmp_path / "history.csv").write_text("the earlier run")
    backup = tmp_path / "backup" / "training.backup"
    backup.parent.mkdir()
    backup.touch()
    command("demo", "--run-dir", tmp_path)
    assert "Resuming the interrupted demo" in command.out
    assert (tmp_path / "history.csv").exists()

    backup.unlink()
    (tmp_path / "notes.txt").write_text("not from a demo")
    command("demo", "--run-dir", tmp_path)
    assert "Replacing the earlier demo" in command.out
    assert not (tmp_path / "history.csv").exists()
    assert (tmp_path / "notes.txt").exists()


def test_the_folder_of_another_run_is_left_alone(command, untrained_run):
    line = command.refuses("demo", "--run-dir", untrained_run)
    assert "a run with different settings (command was train, is demo" in line


def test_wrong_answers_are_counted_and_shown(monkeypatch, untrained_run, capsys):
    translator = Translator.load(untrained_run)
    monkeypatch.setattr(
        translator, "translate", lambda texts: ["2027-03-03"] * len(texts)
    )
    pairs = [("third of march 2027", "2027-03-03"), ("may", "2027-05-01")]
    assert demo._evaluate(translator, pairs) == 0.5
    out = capsys.readouterr().out
    assert "1 of 2 dates right" in out
    assert "may  →  2027-03-03, not 2027-05-01" in out
