"""An exported ViT-B/16: LiteRT against ONNX Runtime, two threads each.

    python benchmarks/edge.py
    python benchmarks/edge.py --model swin_tiny --rounds 7

Published sizes, random weights, float32, one image of 224 × 224 pixels; see
`interleaved.py` for the method. The results are in `RESULTS.md`.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import interleaved

THREADS = 2
FILES = {"litert": "model.tflite", "onnx": "model.onnx"}


def export_model(name, folder):
    """Exports a model to both formats, verified against Keras."""
    from keras_attn import export, models

    model = models.create(name)
    for file in FILES.values():
        print(export.export(model, folder / file), file=sys.stderr)


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
    with tempfile.TemporaryDirectory() as folder:
        export_model(arguments.model, Path(folder))
        contestants = {
            runtime: [
                *("--model", arguments.model),
                *("--serve", runtime, str(Path(folder, file))),
            ]
            for runtime, file in FILES.items()
        }
        times = interleaved.measure(
            __file__, contestants, [arguments.model], arguments.rounds
        )[arguments.model]
    print("| model | LiteRT | ONNX Runtime | LiteRT / ONNX Runtime |")
    print("|---|---|---|---|")
    ratio = times["litert"] / times["onnx"]
    print(
        f"| {arguments.model} | {times['litert']:.0f} ms | {times['onnx']:.0f} ms | "
        f"{ratio:.2f} |"
    )


if __name__ == "__main__":
    main()
