"""A decoding step by cache size: Keras, LiteRT and ONNX Runtime.

    python benchmarks/steps.py
    python benchmarks/steps.py --model gpt2_medium --lengths 128 512 --rounds 9
    python benchmarks/steps.py --small --rounds 1    a tiny model: checks that it runs

One token of one row, published size, random weights, float32; half of the cache is
filled. Keras' step is a graph, as in `generate` on a CPU; the others come from
`export.load_runner`, with NumPy arrays as state and the runtime's default number of
threads. Timed by `interleaved.py`; results are in `RESULTS.md`.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import interleaved
import tables

FILES = {"litert": "model.tflite", "onnx": "model.onnx"}
NEEDS = {
    "keras": (),
    "litert": ("ai_edge_litert",),
    "onnx": ("tf2onnx", "onnx", "onnxruntime"),
}
LENGTHS, SMALL_LENGTHS = (128, 1024), (8,)


def write(name, sizes, lengths, runtimes, folder):
    """Exports the model for the runtimes at every length, verified against Keras."""
    from keras_attn import export, models

    model = models.create(name, **sizes)
    for length in lengths:
        for runtime in runtimes:
            path = folder / str(length) / FILES[runtime]
            path.parent.mkdir(exist_ok=True)
            print(export.export(model, path, max_length=length), file=sys.stderr)


def state_at(specs, length):
    """Arrays for the inputs of a step with a half-filled cache.

    Args:
        specs: Mapping from name to shape and dtype.
        length: Length of the cache.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    state = {}
    for name, (shape, dtype) in specs.items():
        shape = tuple(1 if size is None else size for size in shape)
        if name == "visible":
            state[name] = np.arange(length)[None] < length // 2
        elif name in ("position", "cache_index"):
            state[name] = np.full(shape, length // 2, dtype)
        elif name == "token_ids":
            state[name] = np.full(shape, 7, dtype)
        else:
            state[name] = rng.normal(size=shape).astype(dtype)
    return state


def keras_step(name, sizes, length):
    """The call of Keras' step, compiled as in `generate` on a CPU."""
    import tensorflow as tf

    from keras_attn import models

    pair = models.create(name, **sizes).incremental(max_length=length)
    specs = {x.name: (tuple(x.shape), x.dtype) for x in pair.step.inputs}
    state = {k: tf.constant(v) for k, v in state_at(specs, length).items()}
    step = tf.function(pair.step, autograph=False)
    return lambda: step(state)["logits"].numpy()


def artefact_step(path, length):
    """The call of the step of an exported file."""
    from keras_attn import export
    from keras_attn.decoding import next_state

    runner = export.load_runner(path)
    inputs = runner.signatures["step"].inputs
    state = state_at({k: (v.shape, v.dtype) for k, v in inputs.items()}, length)

    def call():
        return next_state(state, runner.step(state, in_place=True), in_place=True)

    return call


def main():
    """Exports the model, then prints medians and their ratios."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument(
        "--model", default="gpt2_small", help="name of a decoder in `keras-attn list`"
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=LENGTHS, help="lengths of the caches"
    )
    parser.add_argument("--rounds", type=int, default=15, help="steps per runtime")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sizes, small = {}, []
    if arguments.small:
        sizes, small, arguments.lengths = tables.TINY, ["--small"], SMALL_LENGTHS
    if arguments.serve:
        who, length, folder = arguments.serve
        length = int(length)
        if who == "keras":
            call = keras_step(arguments.model, sizes, length)
        else:
            call = artefact_step(Path(folder, str(length), FILES[who]), length)
        interleaved.serve({"step": call})
        return
    runtimes = interleaved.available(NEEDS, arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        files = [runtime for runtime in runtimes if runtime in FILES]
        write(arguments.model, sizes, arguments.lengths, files, Path(folder))
        contestants = {
            f"{who} {length}": [
                *("--model", arguments.model),
                *("--serve", who, str(length), folder),
                *small,
            ]
            for length in arguments.lengths
            for who in runtimes
        }
        times = interleaved.measure(__file__, contestants, ["step"], arguments.rounds)
    times, shortest = times["step"], arguments.lengths[0]
    print(f"| runtime | positions | step | / Keras | / {shortest} positions |")
    print("|---|---|---|---|---|")
    for length in arguments.lengths:
        for who in runtimes:
            mine = times[f"{who} {length}"]
            print(
                f"| {who} | {length} | {mine:.0f} ms "
                f"| {mine / times[f'keras {length}']:.2f} "
                f"| {mine / times[f'{who} {shortest}']:.2f} |"
            )


if __name__ == "__main__":
    main()
