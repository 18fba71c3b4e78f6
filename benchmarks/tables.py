"""Tables of benchmarks: rows, and the contestants that are timed for each.

`interleaved.py` does the timing. What `text.py` and `vision.py` share is here.
"""

import argparse
import os

import interleaved


def new_parser(doc, rows):
    """The options of a benchmark with these rows, described by its docstring."""
    parser = interleaved.new_parser(doc)
    parser.add_argument("--row", choices=rows, help="measure only this row")
    parser.add_argument("--rounds", type=int, default=7, help="calls per contestant")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    return parser


def run(script, arguments, rows, contestants, make_call):
    """Prints the table, or serves one contestant as a child process.

    Args:
        script: Path of the benchmark.
        arguments: Arguments of `new_parser`.
        rows: Mapping from row to precisions.
        contestants: Mapping from row to contestants; the first is ours.
        make_call: From contestant, row and precision to a function to time.
    """
    if not arguments.serve:
        rows = {arguments.row: rows[arguments.row]} if arguments.row else rows
        print_table(script, rows, contestants, arguments.rounds)
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    contestant, row, dtype = arguments.serve
    if contestant != "torch":
        import keras

        keras.config.set_dtype_policy(dtype)
    interleaved.serve({row: make_call(contestant, row, dtype)})


def print_table(script, rows, contestants, rounds):
    """Prints times and ratios for each row and precision.

    Args:
        script: Script that takes `--serve contestant row dtype`.
        rows: Mapping from row to precisions.
        contestants: Mapping from row to contestants; the first is ours.
        rounds: Number of calls per contestant.
    """
    names = list(dict.fromkeys(name for row in rows for name in contestants[row]))
    ours, *others = names
    headers = names + [f"{name} / {ours}" for name in others]
    print(f"| work | {' | '.join(headers)} |")
    print("|---" * (1 + len(headers)) + "|")
    for row, dtypes in rows.items():
        for dtype in dtypes:
            commands = {
                name: ["--serve", name, row, dtype] for name in contestants[row]
            }
            times = interleaved.measure(script, commands, [row], rounds)[row]
            cells = [f"{times[x]:.0f} ms" if x in times else "–" for x in names]
            cells += [
                f"{times[x] / times[ours]:.2f}" if x in times else "–" for x in others
            ]
            print(f"| {row}, {dtype} | {' | '.join(cells)} |", flush=True)


def forward(model, inputs, frozen=False):
    """A compiled forward pass, without copying its outputs to NumPy."""
    import tensorflow as tf

    call = tf.function(lambda tensors: model(tensors, training=False))
    if frozen:
        call = freeze_random(model)
    tensors = tf.nest.map_structure(tf.constant, inputs)
    return lambda: call(tensors)


def keras_training(optimizer, model, inputs):
    """A training step of a classifier."""
    import keras
    import numpy as np

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(1e-5), loss, metrics=[])
    labels = np.zeros(len(keras.tree.flatten(inputs)[0]), "int32")
    return lambda: model.train_on_batch(inputs, labels)


def freeze_random(model):
    """`export.freeze` of a model with all weights random.

    Initial biases are zeros, and adding a constant zero would be optimized away.
    """
    import keras

    from keras_attn import export

    seeds = keras.random.SeedGenerator(0)
    for weight in model.weights:
        noise = keras.random.normal(weight.shape, 0, 0.02, "float32", seeds)
        weight.assign_add(keras.ops.cast(noise, weight.dtype))
    return export.freeze(model)
