"""ViT-B/16 as an exported file: LiteRT against ONNX Runtime, two threads each.

    python benchmarks/edge.py
    python benchmarks/edge.py --model swin_tiny --rounds 7

Published sizes, random weights, float32, one image of 224 pixels; `interleaved.py` says
how. What came out is in `RESULTS.md`.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import interleaved

THREADS = 2
FILES = {"litert": "model.tflite", "onnx": "model.onnx"}


def write(name, folder):
    """Exports the model in both formats, each compared with Keras."""
    from keras_attn import export, models

    model = models.create(name)
    for file in FILES.values():
        print(export.export(model, folder / file), file=sys.stderr)


def litert(path):
    """A call of the file in LiteRT, whose XNNPACK is on by default."""
    import numpy as np
    from ai_edge_litert.interpreter import (  # pyright: ignore[reportMissingImports]
        Interpreter,
    )

    interpreter = Interpreter(str(path), num_threads=THREADS)
    (given,) = interpreter.get_input_details()
    shape = [1, *given["shape"][1:]]
    interpreter.resize_tensor_input(given["index"], shape)
    interpreter.allocate_tensors()
    pixels = np.random.default_rng(0).normal(size=shape).astype("float32")

    def call():
        interpreter.set_tensor(given["index"], pixels)
        interpreter.invoke()

    return call


def onnx(path):
    """A call of the file in ONNX Runtime, on the CPU."""
    import numpy as np
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )
    (given,) = session.get_inputs()
    pixels = np.random.default_rng(0).normal(size=[1, *given.shape[1:]])
    feed = {given.name: pixels.astype("float32")}
    return lambda: session.run(None, feed)


def main():
    """Exports, then prints the medians and their ratio."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--model", default="vit_base_patch16", help="as `keras-attn list` prints it"
    )
    parser.add_argument("--rounds", type=int, default=15, help="calls of each")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.serve:
        who, path = arguments.serve
        interleaved.serve(
            {arguments.model: {"litert": litert, "onnx": onnx}[who](path)}
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        write(arguments.model, Path(folder))
        contestants = {
            who: ["--model", arguments.model, "--serve", who, str(Path(folder, file))]
            for who, file in FILES.items()
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
