"""Interleaved timing of contestants, A B A B, each in its own process.

Compare ratios, not times: times depend on the machine and its load, which affect all
contestants alike.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time


def new_parser(doc):
    """A parser that shows defaults, described by the first line of a docstring."""
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes: only a test")
    return parser


def missing_package(packages):
    """The first of the packages that is not installed, or None."""
    found = (name for name in packages if importlib.util.find_spec(name) is None)
    return next(found, None)


def available(needs, work):
    """The contestants that can run here; prints why any other is skipped.

    Args:
        needs: Mapping from contestant to the packages that it imports.
        work: What they would compute, for the message.
    """
    kept = []
    for contestant, packages in needs.items():
        missing = missing_package(packages)
        if missing is None:
            kept.append(contestant)
        else:
            reason = f"{missing} is not installed"
            print(f"skipped: {contestant} in {work}, because {reason}", flush=True)
    return kept


def serve(calls, warm_ups=3):
    """Child process: reads names of calls, one per line, and prints milliseconds.

    Args:
        calls: Mapping from name to function.
        warm_ups: Untimed calls of each function before the first timed one.
    """
    for call in calls.values():
        for _ in range(warm_ups):
            call()
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        calls[line.strip()]()
        print(1000 * (time.perf_counter() - start), flush=True)


def measure(script, contestants, work, rounds, paths=None):
    """Measures the median time of each call for each contestant, interleaved.

    Args:
        script: Script that serves the calls when run with a contestant's arguments.
        contestants: Mapping from name to command-line arguments.
        work: Names of the calls.
        rounds: Number of calls per contestant.
        paths: Mapping from name to the checkout from which a contestant imports
            keras_attn. None imports the installed one.

    Returns:
        `{work: {contestant: milliseconds}}`.
    """
    children = {
        name: subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **({"PYTHONPATH": paths[name]} if paths else {})},
        )
        for name, arguments in contestants.items()
    }
    times = {what: {name: [] for name in children} for what in work}
    for name, child in children.items():
        if _answer(child) != "ready":
            for other in children.values():
                other.kill()
            arguments = " ".join(contestants[name])
            sys.exit(f"a benchmark process did not start; to see why, run {arguments}")
    for _ in range(rounds):
        for what in work:
            for name, child in children.items():
                milliseconds = _answer(child, what)
                if not milliseconds:
                    sys.exit(f"the benchmark process of {name} stopped in {what!r}")
                times[what][name].append(float(milliseconds))
    for child in children.values():
        child.communicate()
    return {
        what: {name: statistics.median(values) for name, values in each.items()}
        for what, each in times.items()
    }


def _answer(child, question=None):
    """The next line that a child prints, after the question if one is given."""
    if question is not None:
        print(question, file=child.stdin, flush=True)
    return child.stdout.readline().strip()
