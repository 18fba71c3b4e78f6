"""Multi-head attention: ours against `keras.layers.MultiHeadAttention`.

    make bench        (or: python benchmarks/attention.py --rounds 9)

Each round times both layers in turn, on the same inputs and weights, by
`interleaved.py`.

Results with Keras 3.15.1 on TensorFlow 2.21, 2 cores of a Xeon (AVX-512), Keras' time
over ours: forward 1.07, forward with padding 1.13, training step 1.19.
"""

import argparse
import json
import os

import interleaved

# Width, heads, sequences and tokens.
SIZES, SMALL = (768, 12, 8, 128), (8, 2, 2, 5)
WORK = ("forward", "forward, padded", "training step")


def serve(which, dtype, width, heads, batch, length):
    """Child process: times the calls of one layer by name."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import numpy as np

    from keras_attn.layers import MultiHeadAttention

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(dtype)
    shape = (batch, length, width)
    lengths = np.linspace(length // 2, length, batch)
    inputs = {
        "x": np.random.normal(size=shape).astype("float32"),
        "mask": np.arange(length)[None] < lengths[:, None],
    }
    target = np.random.normal(size=shape).astype("float32")
    x = keras.Input((None, width), name="x")
    mask = keras.Input((None,), dtype="bool", name="mask")

    def build(padded):
        if which == "ours":
            layer = MultiHeadAttention(heads, width // heads)
            outputs = layer(x, padding_mask=mask if padded else None)
        else:
            layer = keras.layers.MultiHeadAttention(heads, width // heads)
            row = keras.ops.expand_dims(mask, 1)
            outputs = layer(x, x, attention_mask=row if padded else None)
        model = keras.Model({"x": x, "mask": mask}, outputs)
        # On a CPU TensorFlow's own kernels are faster than XLA's for both layers.
        jit_compile = keras.backend.backend() != "tensorflow"
        model.compile("sgd", "mse", jit_compile=jit_compile)
        return model

    plain, padded = build(False), build(True)
    calls = {
        "forward": lambda: plain.predict_on_batch(inputs),
        "forward, padded": lambda: padded.predict_on_batch(inputs),
        "training step": lambda: plain.train_on_batch(inputs, target),
    }
    interleaved.serve(calls)


def main():
    """Prints a table, or with `--json` one line of JSON."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="calls per layer")
    parser.add_argument("--dtype", default="float32", help="Keras dtype policy")
    parser.add_argument(
        "--batch-size", type=int, default=SIZES[2], help="sequences per call"
    )
    parser.add_argument(
        "--length", type=int, default=SIZES[3], help="tokens per sequence"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--serve", choices=("ours", "keras"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    width, heads, *_ = SIZES
    batch, length = arguments.batch_size, arguments.length
    if arguments.small:
        width, heads, batch, length = SMALL
    if arguments.serve:
        serve(arguments.serve, arguments.dtype, width, heads, batch, length)
        return
    sizes = ["--dtype", arguments.dtype, *(["--small"] if arguments.small else [])]
    sizes += ["--batch-size", str(batch), "--length", str(length)]
    contestants = {which: ["--serve", which, *sizes] for which in ("ours", "keras")}
    medians = interleaved.measure(__file__, contestants, WORK, arguments.rounds)
    if arguments.json:
        print(json.dumps(medians))
        return
    print(f"({batch}, {length}, {width}) x {heads} heads, {arguments.dtype}, ms")
    print(f"{'':18}{'ours':>8}{'Keras':>8}{'Keras / ours':>14}")
    for work, both in medians.items():
        ratio = both["keras"] / both["ours"]
        print(f"{work:18}{both['ours']:8.1f}{both['keras']:8.1f}{ratio:14.2f}")


if __name__ == "__main__":
    main()
