"""`--processes`: a command in several processes of JAX, one of which is killed."""

import csv
import functools
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from extras import NEEDS_JAX

from keras_attn.cli import processes, terminal
from keras_attn.data import shuffled_dataset, split_batches, whole_batches

TINY = "--tokenizer character --hidden-dim 6 --embedding-dim 5 --max-length 16".split()
TINY += "--model seq2seq_context --dropout 0.3 --score exact_match".split()
# 27 pairs: the last batch is not full.
TINY += ["--batch-size", "8"]


def start(corpus, folder, epochs, *options):
    arguments = ["train", *corpus, *TINY, "--epochs", epochs, "--run-dir", folder]
    # Devices of one process would share the rows too.
    flags = "--xla_backend_optimization_level=0"
    return subprocess.Popen(
        [sys.executable, "-m", "keras_attn.cli", *map(str, [*arguments, *options])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )


def finish(process):
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0, out
    return out


def history(folder):
    with (folder / "history.csv").open(newline="") as file:
        return [
            {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def children(process):
    """Ids of the processes that one has started, in order."""
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return sorted(map(int, tasks.read_text().split()))


def kill_one_when(process, number, is_time):
    """Kills a process of those that the command has started."""
    while not is_time():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    os.kill(children(process)[number], signal.SIGKILL)


ROWS, COLUMNS, BATCH, EPOCHS = 11, 3, 4, 3
RATE, MOMENTUM = 0.05, 0.9


def regression():
    """Inputs and labels of a linear regression."""
    random = np.random.default_rng(1)
    inputs = random.normal(size=(ROWS, COLUMNS)).astype("float32")
    return inputs, inputs @ [[1.0], [-2.0], [0.5]] + random.normal(size=(ROWS, 1))


def batches(epoch):
    """Three batches, of which the last one has three rows."""
    return shuffled_dataset(regression(), seed=5, epoch=epoch).batch(BATCH)


def fit(folder, killed_epoch):
    """What one process does; `killed_epoch` is the epoch in which it dies."""
    from keras_attn.training import BackupAndResume
    from keras_attn.training.history_file import HistoryFile

    def die(epoch, logs):
        if epoch == killed_epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((COLUMNS,)), dense])
    model.compile(keras.optimizers.SGD(RATE, MOMENTUM), "mse")
    backup = BackupAndResume(folder / "backup", delete_checkpoint=False)
    model.fit(
        split_batches(batches(backup.epoch)),
        validation_data=whole_batches(batches(0)),
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[
            HistoryFile(folder / "history.csv"),
            backup,
            keras.callbacks.LambdaCallback(on_epoch_begin=die),
        ],
    )


def expected_history():
    """The same training in NumPy, in one process."""
    inputs, labels = regression()
    weights = velocity = np.zeros((COLUMNS, 1))
    rows = []
    for epoch in range(EPOCHS):
        total = count = 0
        for x, y in batches(epoch).as_numpy_iterator():
            error = x @ weights - y
            # A batch that two processes cannot share counts for each of them.
            times = len(x) if len(x) % 2 == 0 else 2 * len(x)
            total, count = total + times * np.mean(error**2), count + times
            velocity = MOMENTUM * velocity - RATE * 2 * x.T @ error / len(x)
            weights = weights + velocity
        loss = np.mean((inputs @ weights - labels) ** 2)
        rows.append({"epoch": epoch, "loss": total / count, "val_loss": loss})
    return rows


def run_both(folder, killed_epoch):
    """Exit codes and output of two processes, of which the second one may be killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # Where this file finds what it imports, as pytest does.
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    changes = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    changes |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, folder, port, str(number), str(killed_epoch)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **changes},
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    return [process.returncode for process in started], outputs


@pytest.mark.runs
@pytest.mark.variation
@NEEDS_JAX
@pytest.mark.skipif(sys.platform != "linux", reason="children are read from /proc")
def test_a_command_of_which_processes_were_killed_resumes(corpus, tmp_path):
    folder, whole = tmp_path / "run", tmp_path / "whole"

    def has_saved(epochs):
        file = folder / "history.csv"
        return (folder / "backup/training.backup").exists() and (
            file.read_text().count("\n") > epochs
        )

    for number in (0, 1):
        process = start(corpus, folder, 3, "--processes", 2)
        kill_one_when(process, number, functools.partial(has_saved, number + 1))
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 2, out
        assert f"Epoch {number + 1}/3" in out and "held-out pairs" not in out
    before = history(folder)
    assert len(before) == 2
    out = finish(start(corpus, folder, 3, "--processes", 2))
    assert "Resuming the interrupted run" in out and "Epoch 1/3" not in out
    # Printed by one process.
    assert out.count("exact match") == 1
    assert len(list((folder / "logs/train").iterdir())) == 3
    rows = history(folder)
    assert rows[:2] == before and [row["epoch"] for row in rows] == [0, 1, 2]
    assert not (folder / "backup").exists() and (folder / "translator.json").exists()
    finish(start(corpus, whole, 3, "--processes", 2))
    assert history(whole) == rows


@pytest.mark.runs
@pytest.mark.variation
@NEEDS_JAX
def test_losses_are_those_of_one_process(corpus, tmp_path):
    """With a last batch that four processes cannot share.

    Without dropout, whose masks in that batch are those of more rows.
    """

    def rows_of(count):
        folder = tmp_path / str(count)
        options = ["--processes", count, "--dropout", 0]
        assert "27 pairs" in finish(start(corpus, folder, 2, *options))
        return history(folder)

    for row, expected in zip(rows_of(4), rows_of(1), strict=True):
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-6)


@NEEDS_JAX
@pytest.mark.runs
def test_a_killed_process_ends_the_other_and_training_resumes(tmp_path):
    codes, outputs = run_both(tmp_path, killed_epoch=1)
    assert codes == [2, -signal.SIGKILL], outputs
    assert "another one was lost" in outputs[0]
    assert "Start all processes again, and they resume" in outputs[0]
    expected = expected_history()
    assert len(history(tmp_path)) == 1
    # Killed in an epoch that is done: this one starts from the backup.
    codes, outputs = run_both(tmp_path, killed_epoch=0)
    assert codes == [0, 0], outputs
    for row, numbers in zip(history(tmp_path), expected, strict=True):
        assert row == pytest.approx(numbers, rel=1e-5)


@pytest.mark.runs
def test_others_that_do_not_come_are_named(corpus, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--processes", 2, "--coordinator", address, "--timeout", 2]
    for number, other in ((0, 1), (1, 0)):
        process = start(corpus, tmp_path / "run", 1, *options, "--process-id", number)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 2
        (line,) = [line for line in out.splitlines() if line.startswith("error: ")]
        assert "have not started within 2 s. Start the same command with" in line
        assert f"--process-id {other} too" in line
        assert address in line and "--timeout" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.runs
def test_a_port_that_is_in_use_is_named(corpus, tmp_path):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        options = ["--processes", 2, "--coordinator", address, "--process-id", 0]
        process = start(corpus, tmp_path / "run", 1, *options)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 2, out
    message = "--coordinator must be a port of this machine that is free: address"
    assert f"error: {message} already in use" in out
    assert address in out and "Traceback" not in out


@pytest.mark.runs
def test_an_error_of_all_processes_is_printed_once(corpus, tmp_path):
    process = start(
        corpus, tmp_path / "run", 1, "--processes", 2, "--model", "bert_base"
    )
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 2
    assert out.count("error: ") == 1 and "error: --model must be one of" in out


def test_texts_that_another_process_has_said(tmp_path, monkeypatch, capfd):
    terminal.complain("first")
    monkeypatch.setenv(terminal.SAID, str(tmp_path))
    for text in ("first", "first", "second"):
        terminal.complain(text)
    monkeypatch.setenv(terminal.SAID, str(tmp_path / "missing"))
    terminal.complain("second")
    assert capfd.readouterr().err.split("error: ")[1:] == [
        *["first\n"] * 2,
        *["second\n"] * 2,
    ]


@pytest.mark.parametrize(
    "options, message",
    [
        ("--processes 2 --process-id 0", "are given together"),
        ("--coordinator a:1 --process-id 0", "with --processes"),
        ("--processes 2 --coordinator a --process-id 0", "an address and a port"),
        ("--processes 2 --coordinator a:65536 --process-id 0", "an address and a port"),
        ("--processes 2 --coordinator a:1 --process-id 2", "less than --processes 2"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    command, corpus, tmp_path, options, message
):
    run_dir = tmp_path / "run"
    line = command.refuses("train", *corpus, "--run-dir", run_dir, *options.split())
    assert message in line and not run_dir.exists()


@NEEDS_JAX
@pytest.mark.extra
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="needs another backend")
def test_another_backend_is_refused(command, corpus, tmp_path):
    line = command.refuses(
        "train", *corpus, "--run-dir", tmp_path / "run", "--processes", 1
    )
    assert "--processes needs Keras on JAX" in line


def test_a_batch_size_that_devices_cannot_share_is_refused(monkeypatch):
    monkeypatch.setattr(keras.distribution, "get_device_count", lambda: 3)
    processes._check_batch_size(6)
    with pytest.raises(ValueError, match="a multiple of the 3 devices"):
        processes._check_batch_size(8)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """In place of Python: process 1 fails at once, if told to, and the others wait."""
    path = tmp_path / "program"
    path.write_text(
        "#!/bin/sh\n"
        f'echo "$CUDA_VISIBLE_DEVICES $*" >> {tmp_path}/started\n'
        'case "$*" in *fail*"--process-id 1") exit 3;; *fail*) exec sleep 60;; esac\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(processes.sys, "executable", str(path))
    return tmp_path / "started"


def test_one_command_starts_all_processes(program, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert processes._start_all(3, ["train", "--processes", "3"]) == 0
    lines = sorted(line.split(" ", 1) for line in program.read_text().splitlines())
    assert [gpu for gpu, _ in lines] == ["", "4", "7"]
    ports = {line.split("--coordinator ")[1].split()[0] for _, line in lines}
    assert len(ports) == 1 and ports.pop().startswith("127.0.0.1:")
    assert {line[-1] for _, line in lines} == {"0", "1", "2"}
    assert all("-m keras_attn.cli train --processes 3" in line for _, line in lines)


def test_when_one_process_fails_all_end(program):
    begin = time.monotonic()
    assert processes._start_all(2, ["fail"]) == 3
    assert time.monotonic() - begin < 30


def main():
    """One of the processes of `run_both`."""
    folder, port, number, killed_epoch = sys.argv[1:]
    killed = int(killed_epoch) if number == "1" else None
    options = processes.ProcessOptions(2, f"127.0.0.1:{port}", int(number), 60)
    processes.train_in_processes(
        lambda: fit(Path(folder), killed), options, line=[], batch_size=BATCH
    )


if __name__ == "__main__":
    main()
