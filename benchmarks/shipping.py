"""Published sizes to SavedModel, LiteRT and ONNX: time, memory, size, difference.

    python benchmarks/shipping.py
    python benchmarks/shipping.py --models gpt2_small bert_base --formats onnx
    python benchmarks/shipping.py --small    tiny models: checks that rows run

One row per model and format, each in its own process: random weights, exported with the
defaults, run in the stock runtime and compared with Keras. Seconds are for
`export.export`, including the comparison. The peak memory is for the whole process,
including TensorFlow, the Keras model and every file that a runtime maps (a file mapped
twice counts twice). A call is a call of the signature `serve`, or of `prefill` if there
is a `step`, on the small random sample of the comparison.

Finished rows are kept in `--rows`, so an interrupted run continues; failed rows are
tried again. Needs 24 GB of memory for `megatron_1p2b` and `gpt2_xl` (exported only to
ONNX), 12 GB for the others, and takes one or two hours.
"""

import argparse
import inspect
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import interleaved
import tables

from keras_attn.files.writing import write_atomically

# Besides the default variant of every builder in the registry.
FURTHER = {"gpt_117m", "gpt3_small", "megatron_1p2b"}
# What ships of models of images and texts, besides a whole CLIP and a whole SigLIP.
PARTS = {
    "clip_image_encoder": lambda models: models.build_clip_image_encoder(),
    "clip_text_encoder": lambda models: models.build_clip_text_encoder(),
    "dvae_encode": lambda models: models.build_dvae().encode_model(),
    "dvae_decode": lambda models: models.build_dvae().decode_model(),
    # The published caption, image and vocabularies, with the blocks of GPT-2 small.
    "dalle_gpt2_small": lambda models: models.build_dalle(**tables.BASE),
    "vilbert_classifier": lambda models: models.build_vilbert_classifier(),
    "vln_bert_scorer": lambda models: models.build_vln_bert_scorer(),
}
# Models whose parts ship in their place; the first takes 49 GB.
IN_PARTS = {"dalle_12b", "dvae_dalle", "vilbert_base", "vln_bert_base"}
# 1.6 B parameters, 6.2 GB: above protobuf's limit, so a folder.
LARGER_THAN_ONE_FILE = ("gpt2_xl", "onnx")
# The masking noise is an input, because random masks would differ in every call; images
# of these models may have any size, so they get the sizes in the papers.
OPTIONS = {
    "mae_vit_base": {"noise": True},
    "segnet": {"image_size": (360, 480)},
    "unet": {"image_size": 572},
}
# The models of `--small`, with their sizes.
SMALL = {
    "gpt2_small": tables.TINY,
    "vit_base_patch16": {"image_size": 32, **tables.TINY},
}
FORMATS = {"saved_model": "model", "litert": "model.tflite", "onnx": "model.onnx"}
NEEDS = {
    "saved_model": (),
    "litert": ("ai_edge_litert",),
    "onnx": ("tf2onnx", "onnx", "onnxruntime"),
}
COLUMNS = (
    "model",
    "format",
    "CPU",
    "parameters",
    "export",
    "peak memory",
    "on disk",
    "max abs diff",
    "call",
    "step",
)
# Maximum length of an error in the table.
ERROR_CHARACTERS = 160


def default_models():
    """The default variant of every builder, `FURTHER` and `PARTS`."""
    from keras_attn import models
    from keras_attn.models.catalog import registry

    entries = [registry.entry(name) for name in models.list_models()]
    defaults = {
        entry.card.name
        for entry in entries
        if inspect.signature(entry.builder).parameters["variant"].default
        == entry.variant
    }
    return sorted((defaults - IN_PARTS) | FURTHER | set(PARTS))


def new_model(name, small=False):
    """The model of a row: one of `PARTS`, or of the registry."""
    from keras_attn import models

    if name in PARTS:
        return PARTS[name](models)
    return models.create(name, **(SMALL if small else OPTIONS).get(name, {}))


def serve(name, format, small):
    """Child process: exports one model and prints its figures as JSON."""
    from keras_attn import export

    model = new_model(name, small)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        report = export.export(model, Path(folder, FORMATS[format]), format=format)
        seconds = time.perf_counter() - began
    latency = report.latency_ms
    row = {
        "parameters": model.count_params(),
        "seconds": seconds,
        "bytes": report.bytes,
        "max_abs_diff": report.max_abs_diff,
        "call_ms": latency.get("serve", latency.get("prefill")),
        "step_ms": latency.get("step"),
    }
    print(json.dumps(row))


def measured(name, format, timeout, small):
    """Runs one row in a fresh process.

    Args:
        name: Name of the model.
        format: Name of the format.
        timeout: Seconds until the process is killed.
        small: Whether the model has its sizes in `SMALL`.

    Returns:
        The row: what the process printed, or `error`, and its peak memory in bytes.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(
            [
                *(sys.executable, __file__, "--serve", name, format),
                *(["--small"] if small else []),
            ],
            stdout=out,
            stderr=err,
        )
        timer = threading.Timer(timeout, child.kill)
        timer.start()
        try:
            # Unlike `child.wait()` it returns the memory usage of this child.
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            raise
        finally:
            in_time = timer.is_alive()
            timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        row = {"model": name, "format": format, "cpu": cpu_name()}
        row["peak_bytes"] = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        out.seek(0)
        err.seek(0)
        if child.returncode == 0:
            return {**row, **json.loads(out.read().splitlines()[-1])}
        lines = err.read().strip().splitlines() or ["no message"]
        # The last line with an error's name; continuation lines may follow.
        message = next((x for x in reversed(lines) if "Error" in x), lines[-1])
    if not in_time:
        return {**row, "error": f"not finished after {timeout} s"}
    if child.returncode < 0:
        return {**row, "error": f"killed by signal {-child.returncode}"}
    return {**row, "error": message}


def cpu_name():
    """Number of cores and name of the processor."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [
            x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")
        ]
        name = names[0] if names else name
    except OSError:
        pass
    return f"{os.cpu_count()} × {name}"


def cells(row):
    """A row of the table as text."""
    head = [row["model"], row["format"], row["cpu"]]
    memory = f"{row['peak_bytes'] / 1e9:.1f} GB"
    if "error" in row:
        error = " ".join(row["error"].split()).replace("|", r"\|")
        return [*head, "", error[:ERROR_CHARACTERS], memory, "", "", "", ""]
    step, difference = row["step_ms"], row["max_abs_diff"]
    return [
        *head,
        f"{row['parameters'] / 1e6:.0f} M",
        f"{row['seconds']:.0f} s",
        memory,
        f"{row['bytes'] / 1e6:.0f} MB",
        "not compared" if difference is None else f"{difference:.1e}",
        f"{row['call_ms']:.0f} ms",
        "" if step is None else f"{step:.0f} ms",
    ]


def load_rows(path):
    """The rows of earlier runs, by model and format."""
    rows = json.loads(path.read_text()) if path.exists() else []
    return {(row["model"], row["format"]): row for row in rows}


def save_rows(path, rows):
    """Writes all rows, atomically."""
    text = json.dumps(list(rows.values()), indent=1) + "\n"
    write_atomically(path, text.encode())


def main():
    """Prints a row of the table for each model and format."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument(
        "--models",
        nargs="+",
        help="names in `keras-attn list` or PARTS; by default one variant of each",
    )
    parser.add_argument("--formats", nargs="+", default=[*FORMATS], choices=[*FORMATS])
    parser.add_argument("--timeout", type=float, default=1800, help="seconds per row")
    parser.add_argument(
        "--rows",
        type=Path,
        default=Path("runs/shipping.json"),
        help="file of finished rows; remove it to start over",
    )
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.serve:
        name, format = arguments.serve
        serve(name, format, arguments.small)
        return
    if arguments.small:
        if not set(arguments.models or ()) <= set(SMALL):
            parser.error(f"--small has only {', '.join(SMALL)}")
        with tempfile.TemporaryDirectory() as folder:
            arguments.rows = Path(folder, "rows.json")
            print_table(arguments, arguments.models or SMALL)
        return
    print_table(arguments, arguments.models or default_models())


def print_table(arguments, names):
    """Measures the rows of these models that are not finished, and prints all."""
    rows = load_rows(arguments.rows)
    formats = interleaved.available(
        {format: NEEDS[format] for format in arguments.formats}, "all models"
    )
    work = [(name, form) for name in names for form in formats]
    if not arguments.models and not arguments.small and "onnx" in formats:
        work.append(LARGER_THAN_ONE_FILE)
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|", flush=True)
    for number, key in enumerate(work, 1):
        if "seconds" not in rows.get(key, {}):
            began = time.strftime("%H:%M:%S")
            progress = f"{began} {number} of {len(work)}: {key[0]} as {key[1]}"
            print(progress, file=sys.stderr, flush=True)
            rows[key] = measured(*key, arguments.timeout, arguments.small)
            save_rows(arguments.rows, rows)
        print(f"| {' | '.join(cells(rows[key]))} |", flush=True)


if __name__ == "__main__":
    main()
