"""An exported ViT-B/16: LiteRT against ONNX Runtime, two threads each.

    python benchmarks/edge.py
    python benchmarks/edge.py --model swin_tiny --rounds 7
    python benchmarks/edge.py --small --rounds 1    a tiny ViT: checks that it runs

Published sizes, random weights, float32, one image of 224 × 224 pixels; see
`interleaved.py` for the method. The results are in `RESULTS.md`.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import interleaved
import tables

THREADS = 2
FILES = {"litert": "model.tflite", "onnx": "model.onnx"}
NEEDS = {
    "litert": ("ai_edge_litert",),
    "onnx": ("tf2onnx", "onnx", "onnxruntime"),
}
SMALL = {"image_size": 32, **tables.TINY}


def export_model(name, sizes, files):
    """Exports a model to files of several formats, verified against Keras."""
    from keras_attn import export, models

    model = models.create(name, **sizes)
    for file in files:
        print(export.export(model, file), file=sys.stderr)


def litert(path):
    """Returns a function that runs the file in LiteRT (XNNPACK is on by default)."""
    import numpy as np
    from ai_edge_litert.interpreter import (  # pyright: ignore[reportMissingImports]
        Interpreter,
    )

    interpreter = Interpreter(str(path), num_threads=THREADS)
    (image_input,) = interpreter.get_input_details()
    shape = [1, *image_input["shape"][1:]]
    interpreter.resize_tensor_input(image_input["index"], shape)
    interpreter.allocate_tensors()
    pixels = np.random.default_rng(0).normal(size=shape).astype("float32")

    def call():
        interpreter.set_tensor(image_input["index"], pixels)
        interpreter.invoke()

    return call


def onnx(path):
    """Returns a function that runs the file in ONNX Runtime, on the CPU."""
    import numpy as np
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )
    (image_input,) = session.get_inputs()
    pixels = np.random.default_rng(0).normal(size=[1, *image_input.shape[1:]])
    feed = {image_input.name: pixels.astype("float32")}
    return lambda: session.run(None, feed)


def main():
    """Exports, measures, and prints the medians and their ratio."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument(
        "--model", default="vit_base_patch16", help="name in `keras-attn list`"
    )
    parser.add_argument("--rounds", type=int, default=15, help="calls of each runtime")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.serve:
        runtime, path = arguments.serve
        interleaved.serve(
            {arguments.model: {"litert": litert, "onnx": onnx}[runtime](path)}
        )
        return
    runtimes = interleaved.available(NEEDS, arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        sizes = SMALL if arguments.small else {}
        files = {runtime: Path(folder, FILES[runtime]) for runtime in runtimes}
        export_model(arguments.model, sizes, files.values())
        contestants = {
            runtime: [
                *("--model", arguments.model),
                *("--serve", runtime, str(file)),
            ]
            for runtime, file in files.items()
        }
        times = interleaved.measure(
            __file__, contestants, [arguments.model], arguments.rounds
        )[arguments.model]
    print("| model | LiteRT | ONNX Runtime | LiteRT / ONNX Runtime |")
    print("|---|---|---|---|")
    cells = [f"{times[x]:.0f} ms" if x in times else "–" for x in FILES]
    both = len(times) == len(FILES)
    ratio = f"{times['litert'] / times['onnx']:.2f}" if both else "–"
    print(f"| {arguments.model} | {' | '.join(cells)} | {ratio} |")


if __name__ == "__main__":
    main()
