"""`keras-attn train`, killed at any time and resumed, equals an uninterrupted run."""

import csv
import os
import signal
import subprocess
import sys
import time

import pytest

TINY = "--tokenizer character --hidden-dim 6 --embedding-dim 5 --batch-size 9".split()
EPOCHS = 3
PARTIAL = ".training.backup."
MODELS = ["rnnsearch_50", "seq2seq_context", "seq2seq_sutskever"]


def start(corpus, folder, model, *options):
    arguments = ["train", *corpus, *TINY, "--epochs", EPOCHS, "--model", model]
    arguments += ["--score", "exact_match", "--run-dir", folder, "--dropout", 0.3]
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from keras_attn.console import main; sys.exit(main())",
            *map(str, [*arguments, *options]),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def finish(process):
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    return out


def lines(folder):
    with open(folder / "history.csv", newline="") as file:
        return list(csv.DictReader(file))


def kill_when(process, reached):
    """Kills a process as soon as a condition holds; returns whether it did."""
    with process:
        while process.poll() is None:
            if reached():
                process.send_signal(signal.SIGKILL)
                return True
            time.sleep(0.0005)
    return False


def conditions(folder):
    """Conditions on the folder of a run, in the order in which they become true."""
    backup = folder / "backup"

    def names(where):
        try:
            return [path.name for path in where.iterdir()]
        except FileNotFoundError:
            return []

    def epochs():
        try:
            return len(lines(folder))
        except FileNotFoundError:
            return 0

    return [
        lambda: "settings.json" in names(folder),
        lambda: any(name.startswith(PARTIAL) for name in names(backup)),
        lambda: "training.backup" in names(backup),
        lambda: ".model.partial.keras" in names(folder),
        lambda: epochs() >= 2,
        lambda: epochs() >= EPOCHS,
    ]


@pytest.mark.runs
@pytest.mark.parametrize("model", MODELS)
def test_a_killed_run_equals_an_uninterrupted_run(corpus, tmp_path, model):
    uninterrupted = tmp_path / "uninterrupted"
    report = finish(start(corpus, uninterrupted, model))
    expected = lines(uninterrupted)
    assert len(expected) == EPOCHS
    folder = tmp_path / "killed"
    # One model is killed at every condition, the others once: a start is slow.
    at = conditions(folder) if model == "rnnsearch_50" else conditions(folder)[2:3]
    kills = sum(kill_when(start(corpus, folder, model), reached) for reached in at)
    assert kills >= min(3, len(at))
    again = finish(start(corpus, folder, model))
    assert lines(folder) == expected
    assert not (folder / "backup").exists()
    # Score and translations too.
    marker = "held-out pairs, translated greedily"
    assert marker in report
    uninterrupted_end, killed_end = (
        text.partition(marker)[2].partition("\nIn ")[0] for text in (report, again)
    )
    assert killed_end == uninterrupted_end
    assert {path.name for path in folder.iterdir()} == {
        path.name for path in uninterrupted.iterdir()
    }


@pytest.mark.runs
def test_an_interrupted_run_equals_an_uninterrupted_run(corpus, tmp_path):
    uninterrupted, folder = tmp_path / "uninterrupted", tmp_path / "interrupted"
    finish(start(corpus, uninterrupted, "rnnsearch_50"))
    process = start(corpus, folder, "rnnsearch_50")
    for line in process.stdout or ():
        if line.startswith("Epoch 2/"):
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "run the same command to go on" in out and "Traceback" not in out
    finish(start(corpus, folder, "rnnsearch_50"))
    assert lines(folder) == lines(uninterrupted)


@pytest.mark.runs
def test_a_damaged_backup_is_reported_in_one_line(corpus, tmp_path):
    process = start(corpus, tmp_path, "seq2seq_context")
    backup = tmp_path / "backup" / "training.backup"
    assert kill_when(process, backup.exists)
    backup.write_bytes(backup.read_bytes()[:-1])
    process = start(corpus, tmp_path, "seq2seq_context")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    error = out[out.index("error: ") :]
    assert error.count("\n") == 1 and str(backup) in error and "Delete it" in error
    backup.unlink()
    assert "is trained already" not in finish(start(corpus, tmp_path, MODELS[1]))
