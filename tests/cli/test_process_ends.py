"""Processes end with the command that started them; a run folder has one owner."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_attn.cli import run_owner
from keras_attn.cli.run_owner import check_has_no_owner, own, release_all

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and flock of POSIX")

# In place of the command: notes its id, then does not end by itself.
CHILD = """
import os, signal, sys, time
from keras_attn.cli.child_processes import end_with_parent
how, folder = sys.argv[4], sys.argv[5]
if how == "thread":
    sys.platform = "a system without prctl"
end_with_parent()
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
open(os.path.join(folder, str(os.getpid())), "w").close()
if how == "computes":
    # No thread of Python runs in the meantime.
    sum(range(10 ** 12))
time.sleep(600)
"""
# `python child.py -m keras_attn.cli …`: so the program that is started can be replaced.
LAUNCHER = """
import signal
import sys
# A shell starts what `nohup` runs, such as this test, with it ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from keras_attn.cli import processes
processes.sys.executable = sys.argv[1]
sys.exit(processes._start_all(2, ["train", *sys.argv[2:]]))
"""


@pytest.fixture
def launch(tmp_path):
    """Starts a command of two processes; returns it and their ids."""
    program, folder = tmp_path / "program", tmp_path / "started"
    folder.mkdir()
    (tmp_path / "child.py").write_text(CHILD)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/child.py "$@"\n')
    program.chmod(0o755)
    started = []

    def start(how, *before):
        line = [sys.executable, "-c", LAUNCHER, program, how, folder]
        process = subprocess.Popen(
            [*before, *map(str, line)], stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        wait_until(lambda: len(list(folder.iterdir())) == 2)
        ids = sorted(int(path.name) for path in folder.iterdir())
        assert all(map(runs, ids))
        return process, ids

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until(is_time, seconds=60):
    end = time.monotonic() + seconds
    while not is_time():
        assert time.monotonic() < end
        time.sleep(0.02)


def runs(number):
    """Whether a process runs; one that nobody waits for has ended, too."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{number}/stat")
    try:
        return not stat.exists() or ") Z " not in stat.read_text()
    except ProcessLookupError:
        return False


@pytest.mark.runs
@pytest.mark.parametrize("how", ["sleeps", "thread", "stubborn", "computes"])
@pytest.mark.parametrize("name, code", [("TERM", 143), ("HUP", 129), ("KILL", -9)])
def test_children_end_with_a_command_that_is_killed(launch, how, name, code):
    if how in ("stubborn", "computes") and name == "HUP":
        pytest.skip("SIGHUP takes the path of SIGTERM, which these test")
    if how == "computes" and sys.platform != "linux":
        pytest.skip("only Linux has prctl")
    process, ids = launch(how)
    process.send_signal(getattr(signal, f"SIG{name}"))
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    if name != "KILL":
        # It has waited for them.
        assert not any(map(runs, ids))
        line = f"error: ended by SIG{name}; run the same command to go on"
        assert errors.splitlines() == [line]
    wait_until(lambda: not any(map(runs, ids)), 10)


@pytest.mark.runs
def test_children_end_with_an_interrupted_command(launch):
    # Not of a terminal, which would interrupt them too.
    process, ids = launch("sleeps")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0 and not any(map(runs, ids))


@pytest.mark.runs
@pytest.mark.skipif(not shutil.which("timeout"), reason="needs the program timeout")
@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_children_end_at_a_timeout(launch, name):
    process, ids = launch("sleeps", "timeout", "--signal", name, "12")
    process.communicate(timeout=60)
    wait_until(lambda: not any(map(runs, ids)), 10)


@pytest.mark.runs
def test_a_child_that_is_killed_is_named(launch):
    process, ids = launch("sleeps")
    os.kill(ids[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2 and not any(map(runs, ids))
    assert "was ended by SIGKILL; run the same command to go on" in errors


OWNER = """
import sys, time
from pathlib import Path
from keras_attn.cli.run_owner import own
own(Path(sys.argv[1]))
print("owns", flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path):
    """Starts a process that owns a folder."""
    started = []

    def start(folder):
        line = [sys.executable, "-c", OWNER, str(folder)]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "owns\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.runs
def test_a_folder_has_one_owner(owner, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    process = owner(folder)
    monkeypatch.setattr(run_owner, "_SECONDS", 0.0)
    for act in (own, check_has_no_owner):
        message = rf"--run-dir is in use: process {process.pid} on .* Received: '.*run'"
        with pytest.raises(ValueError, match=message):
            act(folder)
    check_has_no_owner(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    # However it ends.
    process.kill()
    process.wait()
    monkeypatch.setattr(run_owner, "_SECONDS", 5.0)
    own(folder)
    own(folder)
    release_all()
    assert not list(folder.iterdir())


def test_an_owner_gives_a_folder_up(tmp_path):
    own(tmp_path / "a")
    own(tmp_path / "b")
    assert (tmp_path / "a/.owner").read_text().startswith(f"process {os.getpid()} on ")
    release_all()
    release_all()
    assert not [*tmp_path.glob("*/*")]


def test_a_full_disk_leaves_no_owner(tmp_path):
    """The name of the owner cannot be written: here by a limit of the process."""
    resource = pytest.importorskip("resource", reason="Windows has no such limits")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            own(tmp_path)
        release_all()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_system_without_locks_checks_nothing(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(run_owner.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_owner.fcntl, "flock", refuse)
    own(tmp_path)
    release_all()

    def fail(*arguments):
        raise OSError(run_owner.errno.EIO, "Input/output error")

    monkeypatch.setattr(run_owner.fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output"):
        own(tmp_path)
    monkeypatch.setattr(run_owner, "fcntl", None)
    own(tmp_path)


def test_a_command_says_who_owns_its_folder(command, corpus, owner, tmp_path):
    folder = tmp_path / "run"
    process = owner(folder)
    line = command.refuses("train", *corpus, "--run-dir", folder)
    assert f"is in use: process {process.pid} on" in line
    assert [path.name for path in folder.iterdir()] == [".owner"]
