"""Timing one against another: in turn, A B A B, each in a process of its own.

Only the ratio is worth keeping: times move with the machine and with what else it
does, and what moves both alike leaves the ratio as it is.
"""

import os
import statistics
import subprocess
import sys
import time


def serve(calls, warm_ups=3):
    """Child process: answers each line, the name of a call, with its milliseconds.

    Args:
        calls: Name to function.
        warm_ups: Calls of each in front of the first that is timed.
    """
    for call in calls.values():
        for _ in range(warm_ups):
            call()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        calls[line.strip()]()
        print(1000 * (time.perf_counter() - began), flush=True)


def measure(script, contestants, work, rounds, paths=None):
    """Median milliseconds of each contestant at each work, interleaved.

    Args:
        script: Serves the calls when it is run with a contestant's arguments.
        contestants: Name to command-line arguments.
        work: Names of the calls.
        rounds: Calls of each contestant.
        paths: Name to the checkout that a contestant's keras_attn is imported from.
            None = all import the installed one.

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
            sys.exit(f"a benchmark process did not start; {arguments} shows why")
    for _ in range(rounds):
        for what in work:
            for name, child in children.items():
                milliseconds = _answer(child, what)
                if not milliseconds:
                    sys.exit(f"the benchmark process of {name} died at {what!r}")
                times[what][name].append(float(milliseconds))
    for child in children.values():
        child.communicate()
    return {
        what: {name: statistics.median(values) for name, values in each.items()}
        for what, each in times.items()
    }


def print_table(script, rows, contestants, rounds):
    """Prints a line for each row and precision: times, and theirs by ours.

    Args:
        script: Takes `--serve contestant row dtype`.
        rows: Row to its precisions.
        contestants: Row to who takes part; the first is ours.
        rounds: Calls of each.
    """
    everyone = list(dict.fromkeys(who for each in contestants.values() for who in each))
    ratios = [f"{who} / ours" for who in everyone[1:]]
    print(f"| work | {' | '.join(everyone + ratios)} |")
    print("|---" * (1 + len(everyone + ratios)) + "|")
    for row, dtypes in rows.items():
        for dtype in dtypes:
            taking = {who: ["--serve", who, row, dtype] for who in contestants[row]}
            times = measure(script, taking, [row], rounds)[row]
            mine = times[everyone[0]]
            cells = [f"{times[x]:.0f} ms" if x in times else "–" for x in everyone]
            cells += [
                f"{times[x] / mine:.2f}" if x in times else "–" for x in everyone[1:]
            ]
            print(f"| {row}, {dtype} | {' | '.join(cells)} |", flush=True)


def frozen(model):
    """`export.freeze` of a model whose weights are all drawn anew.

    In a fresh one the biases are zeros, and a constant zero is not added at all.
    """
    import keras

    from keras_attn import export

    draw = keras.random.SeedGenerator(0)
    for weight in model.weights:
        noise = keras.random.normal(weight.shape, 0, 0.02, "float32", draw)
        weight.assign_add(keras.ops.cast(noise, weight.dtype))
    return export.freeze(model)


def _answer(child, question=None):
    """The next line a child prints, after a line written to it, if there is one."""
    if question is not None:
        print(question, file=child.stdin, flush=True)
    return child.stdout.readline().strip()
