"""Published sizes as SavedModel, LiteRT and ONNX: time, memory, bytes, agreement.

    python benchmarks/shipping.py
    python benchmarks/shipping.py --models gpt2_small bert_base --formats onnx

One row per model and format, each in a process of its own: random weights, exported
with the defaults, run in the stock runtime and compared with Keras. Seconds are those
of `export.export` with its comparison; the peak memory is that of the whole process,
TensorFlow and the Keras model included, and with it each mapping of a file that a
runtime reads from (two of one file count twice, though memory has it once). A call is
that of the signature `serve`, or of `prefill` where there is a `step`, on the small
sample that the comparison makes up.

Finished rows are kept in `--rows`, so a run that was stopped goes on; those that failed
are tried again. Needs 24 GB of memory for `megatron_1p2b` and `gpt2_xl` (which is
exported to ONNX alone), 12 GB for the others, and takes an hour or two.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MODELS = (
    "bert_base",
    "roberta_base",
    "xlnet_base",
    "xlm_mlm_tlm_xnli15",
    "transformer_base",
    "gpt_117m",
    "gpt2_small",
    "gpt3_small",
    "megatron_1p2b",
    "seq2seq_context",
    "seq2seq_sutskever",
    "rnnsearch_50",
    "vit_base_patch16",
    "vit_hybrid_r50_base_patch16",
    "deit3_base",
    "mae_vit_base",
    "swin_base",
    "convnext_tiny",
    "sagan_generator_128",
    "sagan_discriminator_128",
    "cnn_self_attention",
)
# 1.6 B parameters, 6.2 GB: more than a message of protobuf, and so one file, holds.
BEYOND_A_FILE = ("gpt2_xl", "onnx")
# Which patches are hidden is an input: drawn inside, no two calls would agree.
OPTIONS = {"mae_vit_base": {"noise": True}}
FORMATS = {"saved_model": "model", "litert": "model.tflite", "onnx": "model.onnx"}
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
# Of an error, in a cell of the table.
ERROR_CHARACTERS = 160


def serve(name, format):
    """Child process: exports one model and prints its figures as JSON."""
    from keras_attn import export, models

    model = models.create(name, **OPTIONS.get(name, {}))
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


def measured(name, format, timeout):
    """Runs one row in a fresh process.

    Args:
        name: Of the model.
        format: Of the artefact.
        timeout: Seconds until the process is killed.

    Returns:
        The row: what the process printed, or `error`, and its peak memory in bytes.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, format], stdout=out, stderr=err
        )
        timer = threading.Timer(timeout, child.kill)
        timer.start()
        try:
            # Unlike `child.wait()` it says what memory this one child took.
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
        # The last line that is no continuation names the error.
        said = next((x for x in reversed(lines) if "Error" in x), lines[-1])
    if not in_time:
        return {**row, "error": f"not done after {timeout} s"}
    if child.returncode < 0:
        return {**row, "error": f"killed by signal {-child.returncode}"}
    return {**row, "error": said}


def cpu_name():
    """The processor and how many cores of it there are."""
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
    step = row["step_ms"]
    return [
        *head,
        f"{row['parameters'] / 1e6:.0f} M",
        f"{row['seconds']:.0f} s",
        memory,
        f"{row['bytes'] / 1e6:.0f} MB",
        f"{row['max_abs_diff']:.1e}",
        f"{row['call_ms']:.0f} ms",
        "" if step is None else f"{step:.0f} ms",
    ]


def load_rows(path):
    """The rows of earlier runs, by model and format."""
    rows = json.loads(path.read_text()) if path.exists() else []
    return {(row["model"], row["format"]): row for row in rows}


def save_rows(path, rows):
    """Writes all rows; who stops the run here keeps the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    partial.replace(path)


def main():
    """Prints a line of the table for each model and format."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--models", nargs="+", default=MODELS, help="as `keras-attn list` prints them"
    )
    parser.add_argument("--formats", nargs="+", default=[*FORMATS], choices=[*FORMATS])
    parser.add_argument("--timeout", type=float, default=1800, help="seconds per row")
    parser.add_argument(
        "--rows",
        type=Path,
        default=Path("runs/shipping.json"),
        help="where finished rows are kept; remove it to begin anew",
    )
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.serve:
        serve(*arguments.serve)
        return
    rows = load_rows(arguments.rows)
    work = [(name, form) for name in arguments.models for form in arguments.formats]
    if arguments.models is MODELS and "onnx" in arguments.formats:
        work.append(BEYOND_A_FILE)
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|", flush=True)
    for number, key in enumerate(work, 1):
        if "seconds" not in rows.get(key, {}):
            began = time.strftime("%H:%M:%S")
            progress = f"{began} {number} of {len(work)}: {key[0]} as {key[1]}"
            print(progress, file=sys.stderr, flush=True)
            rows[key] = measured(*key, arguments.timeout)
            save_rows(arguments.rows, rows)
        print(f"| {' | '.join(cells(rows[key]))} |", flush=True)


if __name__ == "__main__":
    main()
