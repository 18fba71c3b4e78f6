"""Attention and whole models on a GPU: ours on JAX beside `jax.nn` and PyTorch.

    python benchmarks/gpu.py --rounds 7 --json figures.jsonl    all, about 15 minutes
    python benchmarks/gpu.py --row "causal 4096 training"
    python benchmarks/gpu.py --small --rounds 1    tiny sizes, also without a GPU

Needs Keras and JAX, but not TensorFlow; the other side needs PyTorch, transformers, and
PEFT for LoRA. Random weights. "xla" and "cudnn" are the implementations of
`jax.nn.dot_product_attention`. Prints three tables:

- time: medians of interleaved rounds, each of a few calls that are queued together, so
  that only the first waits for its launch from Python;
- peak memory: arguments, results and temporaries. JAX: of the compiled program, by its
  compiler; PyTorch: the peak of its allocator;
- attention's distance from the same equation in float32 at the highest precision of
  products: the largest ‖x - reference‖ / ‖reference‖ of the outputs and, in training,
  of the three gradients.

"training" is forward and backward, for whole models the step of `fit`, with AdamW; in
float32 both sides may use TF32, which is JAX's default. "fit" is `model.fit` itself, a
step of it. Each side runs in one process; results are in `RESULTS.md`.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import interleaved
import tables

LENGTHS, SMALL_LENGTHS = (512, 1024, 4096, 16384), (8,)
MASKS, WORKS = ("causal", "padding"), ("forward", "training")
FORWARD, TRAINING = ("float32", "bfloat16"), ("float32", "mixed_bfloat16")
WARM_UPS = 2
MODELS = ("vit", "bert", "gpt2", "swin")
# Which side computes a contestant.
SIDES = {
    "ours": "jax",
    "xla": "jax",
    "cudnn": "jax",
    "fit": "jax",
    "lora": "jax",
    "torch": "torch",
    "torch lora": "torch",
}
NEEDS = {
    "jax": ("jax",),
    "torch": ("torch", "transformers"),
}


class Sizes(NamedTuple):
    """Heads, their size and tokens a call; and of whole models, what they read.

    `bert`, `lora` and `gpt2` are sequences and tokens, `generation` tokens of a prompt
    and new ones; `vit` and `swin` are arguments of our builders.
    """

    heads: int
    head_dim: int
    tokens: int
    blocks: dict[str, Any]
    images: int
    side: int
    bert: tuple[int, int]
    lora: tuple[int, int]
    gpt2: tuple[int, int]
    generation: tuple[int, int]
    swin: dict[str, Any]
    calls: int


PUBLISHED = Sizes(
    heads=8,
    head_dim=64,
    tokens=16_384,
    blocks=tables.BASE,
    images=64,
    side=224,
    bert=(32, 512),
    lora=(32, 128),
    gpt2=(8, 1024),
    generation=(32, 256),
    swin={
        "hidden_dim": 96,
        "num_blocks": (2, 2, 6, 2),
        "num_heads": (3, 6, 12, 24),
        "window_size": 7,
    },
    calls=5,
)
SMALL = Sizes(
    heads=2,
    head_dim=8,
    tokens=16,
    blocks=tables.TINY,
    images=2,
    side=32,
    bert=(2, 8),
    lora=(2, 8),
    gpt2=(2, 8),
    generation=(3, 4),
    swin={
        "hidden_dim": 4,
        "num_blocks": (1, 1),
        "num_heads": (1, 2),
        "window_size": 4,
    },
    calls=2,
)


def rows(lengths):
    """Each row with its precisions and contestants; the first contestant is ours.

    Args:
        lengths: Numbers of tokens of attention.
    """
    table = {}
    for mask in MASKS:
        for length in lengths:
            for work in WORKS:
                names = ("ours", "xla", "cudnn", "torch")
                table[f"{mask} {length} {work}"] = (FORWARD, names)
    for model in MODELS:
        table[f"{model} forward"] = (FORWARD, ("ours", "torch"))
        names = ("ours", "torch")
        if model == "bert":
            names = ("ours", "fit", "lora", "torch", "torch lora")
        table[f"{model} training"] = (TRAINING, names)
    names = ("ours", "lora", "torch", "torch lora")
    table["lora training"] = (TRAINING, names)
    for batch in (1, 16):
        table[f"gpt2 generation {batch}"] = (FORWARD, ("ours", "torch"))
    return table


class Child:
    """A process with the contestants of one side.

    Args:
        arguments: Arguments of this script.
        cache: Folder for compiled programs: `fit` compiles what was compiled before.
    """

    def __init__(self, arguments, cache):
        environment = {
            "JAX_COMPILATION_CACHE_DIR": cache,
            **os.environ,
            "KERAS_BACKEND": "jax",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, **question):
        """The answer to a question, both dictionaries."""
        print(json.dumps(question), file=self.process.stdin, flush=True)
        output = self.process.stdout
        answer = output.readline() if output else ""
        if not answer:
            sys.exit(f"the benchmark process stopped in {question}")
        return json.loads(answer)


def serve(side, sizes):
    """Child process: answers questions, one JSON object per line.

    A side is a module with

        describe        the card and the versions
        prepare         sizes, row, precision, contestant to `Prepared`
        free            lets go of memory
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # What libraries print.
    prepared = {}
    for line in sys.stdin:
        question = json.loads(line)
        what = question.pop("do")
        try:
            if what == "describe":
                answer = side.describe()
            elif what == "prepare":
                name = question["name"]
                # No other name refers to it, which would keep its memory.
                prepared[name] = side.prepare(sizes, **question)
                answer = {"bytes": prepared[name].bytes}
                answer["values"] = prepared[name].values
            elif what == "time":
                answer = prepared[question["name"]].time()
            else:
                prepared.clear()
                answer = side.free()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


def measure(children, row, dtype, names, rounds):
    """Times one row, interleaved.

    Args:
        children: Mapping from side to `Child`.
        row: The row.
        dtype: Its precision.
        names: Contestants.
        rounds: Timed rounds.

    Returns:
        By contestant: `ms`, `bytes` and, of attention, `distance`.
    """
    found, values = {}, {}
    for name in names:
        child = children[SIDES[name]]
        answer = child.ask(do="prepare", row=row, dtype=dtype, name=name)
        if "error" in answer:
            skip(name, row, dtype, answer["error"])
        else:
            found[name] = {"bytes": answer["bytes"]}
            values[name] = answer["values"]
    times = {name: [] for name in found}
    for number in range(WARM_UPS + rounds):
        for name in list(found):
            answer = children[SIDES[name]].ask(do="time", name=name)
            if "error" in answer:
                skip(name, row, dtype, answer["error"])
                del found[name], times[name]
            elif number >= WARM_UPS:
                times[name].append(answer["ms"])
    for name, each in times.items():
        found[name]["ms"] = statistics.median(each)
    if row.split()[0] in MASKS:
        for child in children.values():
            child.ask(do="free")
        question = {"row": row, "dtype": dtype, "name": "reference"}
        exact = children["jax"].ask(do="prepare", **question)
        if "error" in exact:
            skip(**question, error=exact["error"])
        for name in found if "values" in exact else ():
            found[name]["distance"] = max(map(distance, values[name], exact["values"]))
    for child in children.values():
        child.ask(do="free")
    return found


def skip(name, row, dtype, error):
    """Says why a contestant has no figures."""
    reason = " ".join(error.split())
    print(f"skipped: {name} in {row}, {dtype}, because {reason}", flush=True)


def distance(values, reference):
    """‖x - reference‖ / ‖reference‖."""
    pairs = list(zip(values, reference, strict=True))
    return (sum((x - y) ** 2 for x, y in pairs) / sum(y**2 for _, y in pairs)) ** 0.5


def print_times(table, sizes, results):
    """Prints times and ratios; adds each row's figures to `results`.

    Args:
        table: From `rows`, without contestants that cannot run.
        sizes: `Sizes`.
        results: Function from row and precision to the figures by contestant.
    """
    names = list(dict.fromkeys(name for _, each in table.values() for name in each))
    ours, *others = names
    print(
        f"| work | {' | '.join(names)} | {' | '.join(f'{x} / ours' for x in others)} |"
    )
    print("|---" * (1 + len(names) + len(others)) + "|")
    for row, (dtypes, _) in table.items():
        for dtype in dtypes:
            found = results(row, dtype)
            cells = []
            for name in names:
                if name not in found:
                    cells.append("–")
                elif "generation" in row:
                    tokens = int(row.split()[-1]) * sizes.generation[1]
                    rate = tokens / found[name]["ms"] * 1000
                    cells.append(f"{rate:.0f} tokens/s")
                else:
                    cells.append(f"{found[name]['ms']:.3g} ms")
            for name in others:
                is_there = name in found and ours in found
                ratio = found[name]["ms"] / found[ours]["ms"] if is_there else None
                cells.append("–" if ratio is None else f"{ratio:.2f}")
            print(f"| {row}, {dtype} | {' | '.join(cells)} |", flush=True)


def print_figures(table, kept, title, key, form):
    """Prints a table of another figure.

    Args:
        table: From `rows`.
        kept: Row and precision to the figures by contestant.
        title: What the figure is.
        key: Its name in the figures.
        form: From the figure to a cell.
    """
    names = list(dict.fromkeys(name for _, each in table.values() for name in each))
    lines = []
    for (row, dtype), found in kept.items():
        figures = [found.get(name, {}).get(key) for name in names]
        if any(x is not None for x in figures):
            cells = ["–" if x is None else form(x) for x in figures]
            lines.append(f"| {row}, {dtype} | {' | '.join(cells)} |")
    if lines:
        print(f"\n| {title} | {' | '.join(names)} |")
        print("|---" * (1 + len(names)) + "|")
        print("\n".join(lines), flush=True)


def main():
    """Prints the tables, or serves one side as a child process."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument(
        "--row", nargs="+", default=("",), help="only rows that begin like this"
    )
    parser.add_argument("--dtype", default="", help="only these precisions")
    parser.add_argument("--rounds", type=int, default=7, help="rounds per contestant")
    parser.add_argument("--json", type=Path, help="file to which figures are added")
    parser.add_argument("--serve", choices=("jax", "torch"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = SMALL if arguments.small else PUBLISHED
    if arguments.serve:
        serve(importlib.import_module(f"gpu_{arguments.serve}"), sizes)
        return
    table = {
        row: ([x for x in dtypes if arguments.dtype in x], names)
        for row, (dtypes, names) in rows(
            SMALL_LENGTHS if arguments.small else LENGTHS
        ).items()
        if row.startswith(tuple(arguments.row))
    }
    sides = interleaved.available(NEEDS, "all rows")
    if "jax" not in sides:
        return
    table = {
        row: (dtypes, [x for x in names if SIDES[x] in sides])
        for row, (dtypes, names) in table.items()
    }
    options = ["--small"] if arguments.small else []
    with tempfile.TemporaryDirectory() as cache:
        children = {side: Child(["--serve", side, *options], cache) for side in sides}
        described = [child.ask(do="describe")["text"] for child in children.values()]
        print("measured on", "; ".join(described), file=sys.stderr, flush=True)
        kept = {}

        def results(row, dtype):
            names = table[row][1]
            found = measure(children, row, dtype, names, arguments.rounds)
            kept[row, dtype] = found
            if arguments.json:
                with arguments.json.open("a") as file:
                    figures = {"row": row, "dtype": dtype, "found": found}
                    print(json.dumps(figures), file=file)
            return found

        print_times(table, sizes, results)
        for child in children.values():
            child.process.communicate()
    print_figures(
        table, kept, "peak memory", "bytes", lambda x: f"{x / 1e6:.0f} MB" if x else "–"
    )
    print_figures(table, kept, "distance", "distance", lambda x: f"{x:.1e}")


if __name__ == "__main__":
    main()
