"""Tables of benchmarks: rows, and the contestants that are timed for each.

`interleaved.py` does the timing. This file holds what `text.py`, `vision.py` and
`dense.py` share. All need the extra `parity`, and the first two `pip install
keras-hub==0.32.0` as well; a contestant whose package is missing is skipped, which is
printed. Results are in `RESULTS.md`.
"""

import argparse
import os

import interleaved

# BERT, GPT-2 and ViT.
BASE = {"num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}
TINY = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}


def new_parser(doc, rows):
    """The options of a benchmark with these rows, described by its docstring."""
    parser = interleaved.new_parser(doc)
    parser.add_argument("--row", choices=rows, help="measure only this row")
    parser.add_argument("--rounds", type=int, default=7, help="calls per contestant")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    return parser


def hugging_face(blocks):
    """`BASE`, `TINY` or the like in the names of transformers."""
    return {
        "num_hidden_layers": blocks["num_layers"],
        "num_attention_heads": blocks["num_heads"],
        "hidden_size": blocks["hidden_dim"],
        "intermediate_size": blocks["mlp_dim"],
    }


def run(benchmark, arguments):
    """Prints the table, or serves one contestant as a child process.

    Args:
        benchmark: The module of the benchmark, with

            ROWS            row to precisions
            CONTESTANTS     row to contestants; the first is ours
            PUBLISHED       sizes, the last argument of the three calls below
            SMALL           sizes for `--small`
            needs           row, contestant to the packages that it imports
            ours            row to the call of our model; for the contestant "ours x y"
                            also x and y, the way in which it is called
            keras_model     row, whether it is frozen to the call of the other Keras
                            model, if there is one
            torch_model     row, precision to the call of the PyTorch model
            genai_model     to the call of ONNX Runtime GenAI's model, if there is one
        arguments: Arguments of `new_parser`.
    """
    if not arguments.serve:
        rows = benchmark.ROWS
        rows = {arguments.row: rows[arguments.row]} if arguments.row else rows
        options = ["--small"] if arguments.small else []
        print_table(
            benchmark.__file__,
            rows,
            benchmark.CONTESTANTS,
            benchmark.needs,
            arguments.rounds,
            lambda row: options,
        )
        return
    sizes = benchmark.SMALL if arguments.small else benchmark.PUBLISHED
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    contestant, row, dtype = arguments.serve
    if contestant == "torch":
        interleaved.serve({row: benchmark.torch_model(row, dtype, sizes)})
        return
    if contestant == "genai":
        interleaved.serve({row: benchmark.genai_model(sizes)})
        return
    import keras

    keras.config.set_dtype_policy(dtype)
    kind, *way = contestant.split()
    if kind == "ours":
        call = benchmark.ours(row, sizes, *way)
    else:
        call = benchmark.keras_model(row, "frozen" in contestant, sizes)
    interleaved.serve({row: call})


def print_table(script, rows, contestants, needs, rounds, prepare):
    """Prints times and ratios for each row and precision.

    Args:
        script: Script that takes `--serve contestant row dtype`.
        rows: Mapping from row to precisions.
        contestants: Mapping from row to contestants; the first is ours.
        needs: From a row and a contestant to the packages that it imports.
        rounds: Number of calls per contestant.
        prepare: Function of a row, called before it is timed, that returns further
            arguments for the script.
    """
    contestants = {
        row: interleaved.available(
            {name: needs(row, name) for name in contestants[row]}, row
        )
        for row in rows
    }
    names = list(dict.fromkeys(name for row in rows for name in contestants[row]))
    ours, *others = names
    headers = names + [f"{name} / {ours}" for name in others]
    print(f"| work | {' | '.join(headers)} |")
    print("|---" * (1 + len(headers)) + "|")
    for row, dtypes in rows.items():
        options = prepare(row)
        for dtype in dtypes:
            commands = {
                name: ["--serve", name, row, dtype, *options]
                for name in contestants[row]
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


def torch_forward(model, *inputs, **options):
    """A forward pass of a PyTorch model, eager."""
    import torch  # pyright: ignore[reportMissingImports]

    model.eval()

    def forward():
        with torch.no_grad():
            model(*inputs, **options)

    return forward


def torch_training(model, inputs, dtype):
    """A training step of a model of transformers whose inputs include labels."""
    import torch  # pyright: ignore[reportMissingImports]

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bfloat16" in dtype):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()

    return step


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
