"""`keras-attn train`, killed and started again, gives the uninterrupted run."""

import csv
import os
import signal
import subprocess
import sys
import time

import pytest

TINY = "--tokenizer character --hidden-dim 6 --embedding-dim 5 --batch-size 9".split()
EPOCHS = 3
PARTIAL = ".training.backup-"
VARIATION = pytest.mark.variation
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


def kill_when(process, condition):
    """Kills a process as soon as a condition holds; returns whether it did."""
    with process:
        while process.poll() is None:
            if condition():
                process.send_signal(signal.SIGKILL)
                return True
            time.sleep(0.0005)
    return False


def kill_conditions(folder):
    """What a run's folder contains at the moments to kill the run, in order."""
    backup = folder / "backup"

    def names(where):
        try:
            return [path.name for path in where.iterdir()]
        except FileNotFoundError:
            return []

    return [
        lambda: "training.backup" in names(backup),
        lambda: any(name.startswith(PARTIAL) for name in names(backup)),
        lambda: any(name.startswith(".model.keras-") for name in names(folder)),
    ]


def interrupt(process):
    """Sends Ctrl-C in a later epoch; returns the exit code and the output."""
    for line in process.stdout or ():
        if line.startswith(("Epoch 2/", "Epoch 3/")):
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    return process.returncode, out


def check_damaged_backup_is_refused(backup, process):
    """A damaged backup is an error of one line that names the file and the fix."""
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    error = out[out.index("error: ") :]
    assert error.count("\n") == 1 and str(backup) in error and "Delete it" in error
    assert backup.exists()


# Each start takes many seconds.
@pytest.mark.runs
@pytest.mark.parametrize(
    "model, moments",
    [
        (MODELS[0], 1),
        pytest.param(MODELS[0], 3, marks=VARIATION),
        *(pytest.param(model, 1, marks=VARIATION) for model in MODELS[1:]),
    ],
)
def test_a_resumed_run_equals_the_uninterrupted_run(corpus, tmp_path, model, moments):
    uninterrupted = tmp_path / "uninterrupted"
    report = finish(start(corpus, uninterrupted, model))
    expected = lines(uninterrupted)
    assert len(expected) == EPOCHS
    folder = tmp_path / "killed"
    conditions = kill_conditions(folder)[:moments]
    kills = sum(kill_when(start(corpus, folder, model), when) for when in conditions)
    assert kills >= len(conditions) / 2
    if model == "seq2seq_context":
        backup = folder / "backup" / "training.backup"
        backup.write_bytes(backup.read_bytes()[:-1])
        check_damaged_backup_is_refused(backup, start(corpus, folder, model))
        # As the error says: without it the run starts anew.
        backup.unlink()
        assert kill_when(start(corpus, folder, model), backup.exists)
    if model == "seq2seq_sutskever":
        code, out = interrupt(start(corpus, folder, model))
        assert code == 130
        assert "run the same command to go on" in out and "Traceback" not in out
    resumed = finish(start(corpus, folder, model))
    assert lines(folder) == expected
    assert not (folder / "backup").exists()
    # The score and the translations are the same, too.
    marker = "held-out pairs, translated greedily"
    assert marker in report
    expected_end, resumed_end = (
        text.partition(marker)[2].partition("\nIn ")[0] for text in (report, resumed)
    )
    assert resumed_end == expected_end
    assert {path.name for path in folder.iterdir()} == {
        path.name for path in uninterrupted.iterdir()
    }
