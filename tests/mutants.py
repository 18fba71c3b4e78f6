"""Measures the tests by mutants: mistakes of one line that a test must notice.

    make mutants                                       all of tests/mutants.toml
    .venv/bin/python tests/mutants.py --only beams     names or files with this text

Each mutant is put into a copy of the tree, where its tests run in a process of their
own. It is killed if one of them fails, and survives if all of them pass. Nothing is
written into the tree itself. The exit code is 1 if a mutant survives, 2 if the list or
the tests of the unchanged tree are wrong, 130 after Ctrl-C, which removes the copies.

The processes are forks of this one, which has imported TensorFlow: importing it takes
longer than most of the tests.

An entry of the list has

    name    what the mistake is
    file    the name of the module, with folders before it where others have that name:
            "training/segmentation.py" is also found in "keras_attn/training/images/"
    old     a text of the file, which it must have exactly once; usually part of a line
    new     what replaces it
    tests   tests of pytest, of which one must fail: "tests/ops/test_boxes.py::test_iou"
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".toml")
# Folders with the library's sources.
SOURCES = ("keras_attn", "models", "export")
SECONDS = 300  # A mutant whose tests take longer, in an endless loop, is killed too.
PASSED, FAILED = 0, 1  # Exit codes of pytest.
# What PyTorch would notice does not count: a contributor may not have it.
PYTEST = ("-q", "--tb=short", "-p", "no:cacheprovider", "-m", "not parity")
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "MPLBACKEND": "Agg",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_backend_optimization_level=1 "
    "--xla_cpu_use_fusion_emitters=false",
}


class ListError(ValueError):
    """An entry of the list is wrong, or its tests fail without the mutant."""


@dataclass(frozen=True)
class Mutant:
    """One entry of the list."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


def read_mutants() -> list[Mutant]:
    """The entries of the list."""
    return [Mutant(**entry) for entry in tomllib.loads(LIST.read_text())["mutant"]]


def sources() -> dict[str, str]:
    """Every source file of the library: its path from the root, and its text."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*.py"))  # Follows no links.
    }


def find(mutant: Mutant, files: dict[str, str]) -> str:
    """The path of the file that has the mutant's old text.

    Raises:
        ListError: if not exactly one file of that name has it exactly once.
    """
    *folders, name = mutant.file.split("/")
    counts = {
        path: text.count(mutant.old)
        for path, text in files.items()
        if path.split("/")[-1] == name and _in_order(folders, path.split("/")[:-1])
    }
    if sum(counts.values()) != 1:
        raise ListError(
            f"`old` of the mutant {mutant.name!r} must stand exactly once in "
            f"{mutant.file}: write it as the file has it now. Received: "
            f"old={mutant.old!r}, found {counts or 'no such file'}"
        )
    if mutant.new == mutant.old:
        raise ListError(f"`new` of the mutant {mutant.name!r} must differ from `old`.")
    return next(path for path, count in counts.items() if count)


def _in_order(names: list[str], path: list[str]) -> bool:
    """Whether a path has these folders in this order, perhaps with others between."""
    rest = iter(path)
    return all(name in rest for name in names)


@dataclass
class Run:
    """Tests in a copy of the tree, perhaps with another text in one of its files."""

    name: str
    tests: Sequence[str]
    path: str = ""
    text: str = ""

    def start(self, copy: Path) -> None:
        """Starts the tests in a process of their own."""
        self.copy, self.began = copy, time.monotonic()
        self._original = ""
        if self.path:
            self._original = (copy / self.path).read_text()
            self._write(self.text)
        self._log = copy.with_suffix(".log")
        sys.stdout.flush()
        self._process = os.fork()
        if not self._process:
            _run_pytest(
                copy, self._log, ("-x", *self.tests) if self.path else self.tests
            )

    def poll(self) -> int | None:
        """pytest's exit code, or None while it runs."""
        found, status = os.waitpid(self._process, os.WNOHANG)
        if found:
            self._restore()
            return os.waitstatus_to_exitcode(status)
        if self.path and time.monotonic() - self.began > SECONDS:
            self.stop()
            return FAILED
        return None

    def stop(self) -> None:
        """Ends the tests and all processes that they have started."""
        # Until it has a group of its own, the process itself.
        for kill in (os.killpg, os.kill):
            try:
                kill(self._process, signal.SIGKILL)
                break
            except ProcessLookupError:
                continue
        os.waitpid(self._process, 0)
        self._restore()

    def output(self) -> str:
        """The end of what pytest has printed."""
        return self._log.read_text(errors="replace")[-4000:]

    def _restore(self):
        if self.path:
            self._write(self._original)

    def _write(self, text):
        file = self.copy / self.path
        file.write_text(text)
        # Python compares time in seconds and size of a file, which may be equal.
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()


def _run_pytest(copy, log, arguments):
    """Runs pytest in a forked process, which it ends."""
    code = -1
    try:
        os.setsid()  # Ctrl-C is for the parent, which ends this group of processes.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(copy)
        sys.path[0] = os.environ["PYTHONPATH"] = str(copy)
        import pytest

        code = pytest.main([*PYTEST, *arguments])
        sys.stdout.flush()
    finally:
        os._exit(code)


def finished(runs: list[Run], copies: list[Path]) -> Iterator[tuple[Run, int]]:
    """Each run with its exit code, as soon as it ends: one at a time in each copy."""
    waiting, free, running = list(reversed(runs)), list(copies), []
    try:
        while waiting or running:
            while waiting and free:
                running.append(waiting.pop())
                running[-1].start(free.pop())
            time.sleep(0.05)
            for run in list(running):
                code = run.poll()
                if code is not None:
                    running.remove(run)
                    free.append(run.copy)
                    yield run, code
    finally:
        for run in running:
            run.stop()


def copy_tree(folder: Path) -> None:
    """Copies what git knows, and what it does not ignore, into a new folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        # A file that was deleted without git is still listed.
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)


def check_unchanged(mutants: list[Mutant], copies: list[Path]) -> None:
    """Runs all tests without a mutant; those of a file in one process.

    Raises:
        ListError: if one fails, or is not found.
    """
    by_file: dict[str, list[str]] = {}
    for test in sorted({test for mutant in mutants for test in mutant.tests}):
        by_file.setdefault(test.split("::")[0], []).append(test)
    print(f"{sum(map(len, by_file.values()))} tests of the unchanged tree", flush=True)
    for run, code in finished([Run(*each) for each in by_file.items()], copies):
        if code != PASSED:
            raise ListError(f"{run.output()}\nThe tests must pass first: {run.name}")


def measure(mutants: list[Mutant], copies: list[Path]) -> list[str]:
    """Runs the mutants, prints the score and returns the names of the survivors.

    Raises:
        ListError: for a mutant that is no mistake for a test to find: pytest ended
            without a test that failed, such as for an error of syntax.
    """
    files = sources()
    runs = []
    for mutant in mutants:
        path = find(mutant, files)
        text = files[path].replace(mutant.old, mutant.new)
        runs.append(Run(mutant.name, mutant.tests, path, text))
    began, survivors, count = time.monotonic(), [], 0
    try:
        for run, code in finished(runs, copies):
            if code not in (PASSED, FAILED):
                raise ListError(f"{run.output()}\nNo test could run: {run.name}")
            count += 1
            if code == PASSED:
                survivors.append(run.name)
            word = "killed  " if code else "SURVIVED"
            failed = re.findall(r"^FAILED (\S+)", run.output(), re.M)
            by = f", by {failed[0].split('/')[-1]}" if code and failed else ""
            print(f"{word} {time.monotonic() - run.began:4.0f} s  {run.name}{by}")
            sys.stdout.flush()
    finally:
        minutes = (time.monotonic() - began) / 60
        print(
            f"{count - len(survivors)} of {count} mutants killed in {minutes:.0f} "
            f"minutes; {len(mutants) - count} not run"
        )
    return survivors


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Measures the tests by mutants.")
    parser.add_argument(
        "-k", "--only", default="", help="mutants with this text in name or file"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in read_mutants()
        if options.only in mutant.name or options.only in mutant.file
    ]
    if not mutants:
        parser.error(f"no mutant has {options.only!r} in its name or file")
    os.environ.update({**ENVIRONMENT, **os.environ})
    # As Ctrl-C: otherwise the copies would stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # In the copies, not here, the library is imported.
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="keras_attn_mutants_") as folder:
        copies = [Path(folder) / str(number) for number in range(options.workers)]
        for copy in copies:
            copy_tree(copy)
        try:
            check_unchanged(mutants, copies)
            survivors = measure(mutants, copies)
        except ListError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
    for name in survivors:
        print(f"survived: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
