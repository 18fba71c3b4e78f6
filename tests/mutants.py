"""Measures the tests by mutants: mistakes of one line that a test must notice.

    make mutants                                       all of tests/mutants.toml
    .venv/bin/python tests/mutants.py --only beams     names or files with this text

Each mutant is put into a copy of the tree, where its tests run in a process of their
own. It is killed if one of them fails, and survives if all of them pass. Nothing is
written into the tree itself. The exit code is 1 if a mutant survives, 2 if the list or
the tests of the unchanged tree are wrong, 130 after Ctrl-C, which removes the copy.

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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".toml")
# Folders with the library's sources.
SOURCES = ("keras_attn", "models", "export")
SECONDS = 300  # A mutant whose tests take longer, in an endless loop, is killed too.
FAILED = 1  # pytest's exit code if a test failed.
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "MPLBACKEND": "Agg",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_backend_optimization_level=1 "
    "--xla_cpu_use_fusion_emitters=false",
}


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
        ValueError: if not exactly one file of that name has it exactly once.
    """
    *folders, name = mutant.file.split("/")
    counts = {
        path: text.count(mutant.old)
        for path, text in files.items()
        if path.split("/")[-1] == name and _in_order(folders, path.split("/")[:-1])
    }
    if sum(counts.values()) != 1:
        raise ValueError(
            f"`old` of the mutant {mutant.name!r} must stand exactly once in "
            f"{mutant.file}: write it as the file has it now. Received: "
            f"old={mutant.old!r}, found {counts or 'no such file'}"
        )
    if mutant.new == mutant.old:
        raise ValueError(f"`new` of the mutant {mutant.name!r} must differ from `old`.")
    return next(path for path, count in counts.items() if count)


def _in_order(names: list[str], path: list[str]) -> bool:
    """Whether a path has these folders in this order, perhaps with others between."""
    rest = iter(path)
    return all(name in rest for name in names)


class Copies:
    """Copies of the tree, one for each worker, in which the tests of mutants run."""

    def __init__(self, folder: Path, count: int):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._running: set[subprocess.Popen] = set()
        self.stopped = False
        for number in range(count):
            copy = folder / str(number)
            for name in filter(None, listed.split("\0")):
                # A file that was deleted without git is still listed.
                if os.path.lexists(ROOT / name):
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
            self._free.put(copy)

    def run(self, tests: list[str], path: str = "", text: str = "") -> tuple[int, str]:
        """Runs tests, with another text in one of the files.

        Returns:
            pytest's exit code, `FAILED` after `SECONDS`, and its output.
        """
        copy = self._free.get()
        try:
            if not path:
                return self._pytest(copy, tests, None)
            file = copy / path
            original = file.read_text()
            try:
                _write(file, text)
                return self._pytest(copy, ["-x", *tests], SECONDS)
            finally:
                _write(file, original)
        finally:
            self._free.put(copy)

    def _pytest(self, copy, arguments, seconds):
        if self.stopped:
            return -1, "stopped"
        # What PyTorch would notice does not count: a contributor may not have it.
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-m", "not parity"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *arguments],
            cwd=copy,
            env={**ENVIRONMENT, **os.environ, "PYTHONPATH": str(copy)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C is for this script, which ends the group of each process of pytest.
            start_new_session=True,
        )
        self._running.add(process)
        try:
            output, _ = process.communicate(timeout=seconds)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            _kill(process)
            return FAILED, f"still running after {seconds} seconds"
        finally:
            self._running.discard(process)

    def stop(self) -> None:
        """Ends all tests that run, and starts no others."""
        self.stopped = True
        for process in list(self._running):
            _kill(process)


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    # Python compares the time of a file in seconds and its size, which may be equal.
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def _kill(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def measure(mutants: list[Mutant], workers: int, folder: Path) -> int:
    """Runs all mutants and prints the score; returns the exit code."""
    files = sources()
    try:
        paths = [find(mutant, files) for mutant in mutants]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    began, outcomes = time.monotonic(), {}
    copies = Copies(folder, workers)
    with ThreadPoolExecutor(workers) as pool:
        try:
            tests = sorted({test for mutant in mutants for test in mutant.tests})
            print(f"{len(tests)} tests of the unchanged tree …", flush=True)
            # As many processes as workers, with the tests of a file in one of them.
            for code, output in pool.map(copies.run, _shares(tests, workers)):
                if code:
                    print(output[-5000:], file=sys.stderr)
                    print("error: the tests must pass first", file=sys.stderr)
                    return 2

            def run(mutant, path):
                start = time.monotonic()
                text = files[path].replace(mutant.old, mutant.new)
                code, output = copies.run(mutant.tests, path, text)
                return code, output, time.monotonic() - start

            for mutant, (code, output, seconds) in zip(
                mutants, pool.map(run, mutants, paths), strict=True
            ):
                if code not in (0, FAILED):
                    # Such as a mutant that cannot be imported: no mistake that a test
                    # has to find.
                    print(output[-5000:], file=sys.stderr)
                    print(f"error: {mutant.name}: exit code {code}", file=sys.stderr)
                    return 2
                outcomes[mutant.name] = bool(code)
                word = "killed" if code else "SURVIVED"
                print(f"{word:8} {seconds:4.0f} s  {mutant.name}", flush=True)
        except KeyboardInterrupt:
            return 130
        finally:
            copies.stop()
            killed = sum(outcomes.values())
            minutes = (time.monotonic() - began) / 60
            print(
                f"{killed} of {len(outcomes)} mutants killed in {minutes:.0f} minutes "
                f"with {workers} workers; {len(mutants) - len(outcomes)} not run"
            )
    survivors = [name for name, is_killed in outcomes.items() if not is_killed]
    for name in survivors:
        print(f"survived: {name}")
    return 1 if survivors else 0


def _shares(tests: list[str], count: int) -> list[list[str]]:
    """Divides tests into lists of about equal length, the tests of a file in one."""
    shares: list[list[str]] = [[] for _ in range(count)]
    by_file: dict[str, list[str]] = {}
    for test in tests:
        by_file.setdefault(test.split("::")[0], []).append(test)
    for group in sorted(by_file.values(), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return [share for share in shares if share]


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
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
    with tempfile.TemporaryDirectory(prefix="keras_attn_mutants_") as folder:
        return measure(mutants, options.workers, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
