"""Detectors at their published sizes: a forward pass, a training step, every format.

    python benchmarks/detection.py

The image has 800 × 800 pixels (VGG16: 600 × 1000), the weights are random, and a batch
has one image. Times are medians of `--rounds` calls after one to warm up; the peak is
that of a process that did nothing else. `benchmarks/RESULTS.md` has the results.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

MODELS = ("faster_rcnn_resnet50", "mask_rcnn_resnet50", "faster_rcnn_vgg16")
WORK = ("forward", "forward, XLA", "training step", "saved_model", "litert", "onnx")
_SUFFIXES = {"litert": ".tflite", "onnx": ".onnx"}


def median_ms(call, rounds):
    """The median milliseconds of a call, after one to warm up."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def measure(name, work, rounds):
    """The cells of one row: milliseconds of a call, and what there is to say."""
    import keras
    import numpy as np

    from keras_attn import export, models

    keras.utils.set_random_seed(1)
    model = models.create(name)
    size = model.input.shape[1:3]
    rng = np.random.default_rng(1)
    images = rng.normal(size=(1, *size, 3)).astype("float32")
    if work.startswith("forward"):
        model.compile(jit_compile=work.endswith("XLA"))
        return median_ms(lambda: model.predict_on_batch(images), rounds), ""
    if work == "training step":
        truth = {
            "boxes": np.array([[[30, 50, 400, 300], [200, 90, 590, 590]]], "float32"),
            "classes": np.array([[3, 5]], "int32"),
            "masks": np.ones((1, 2, *size), bool),
        }
        model.compile(keras.optimizers.SGD(1e-4), jit_compile=False)
        return median_ms(lambda: model.train_on_batch(images, truth), rounds), ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{_SUFFIXES.get(work, '')}"
        start = time.perf_counter()
        report = export.export(
            model, path, format=work, batch_size=1, sample_inputs=images
        )
        seconds = time.perf_counter() - start
        notes = (
            f"exported in {seconds:.0f} s, {report.bytes / 1e6:.0f} MB, "
            f"max abs diff {report.max_abs_diff:.1e}"
        )
        return report.latency_ms["serve"], notes


def _row(name, work, rounds):
    took, notes = measure(name, work, rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    sys.stdout.write(f"| {name} | {work} | {took:.0f} ms | {peak:.1f} GB | {notes} |\n")
    sys.stdout.flush()


def main():
    """Prints a table with one process for each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--work", nargs="+", default=WORK, choices=WORK)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    sys.stdout.write(
        "| model | work | per call | peak | notes |\n|---|---|---|---|---|\n"
    )
    sys.stdout.flush()
    context = multiprocessing.get_context("spawn")
    for name in options.models:
        for work in options.work:
            process = context.Process(target=_row, args=(name, work, options.rounds))
            process.start()
            process.join()


if __name__ == "__main__":
    main()
