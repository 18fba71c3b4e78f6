"""Recurrence, convolution, self-attention: what reading a sequence costs, measured.

    python examples/three_ways.py                 one layer of each, 64 wide

Table 1 of Vaswani et al. 2017 (arXiv:1706.03762) has O() for the operations of a
layer, for how many of them wait for each other, and for the path between two tokens.
Here each is measured, on one Keras layer of each kind:

    GFLOPs    of the forward pass of 4 sequences, counted by TensorFlow
    ms        of a training step: forward, and gradients of inputs and weights
    MB        of the forward pass that its gradients need, counted in the graph
    chain     products that wait for one another: the longest path in the graph
    layers    until the last token hears of the first
    path      chain x layers, what lies between these two tokens

On 2 CPU cores, no GPU, nothing else running, 50 s:

    layer           T     GFLOPs   ms     MB     chain  layers  path
    recurrence      128   0.0085    13.1    4.6    128       1   128
    recurrence      1024  0.0676   131.5   36.7   1024       1  1024
    convolution     128   0.0126     1.8    0.3      1      64    64
    convolution     1024  0.1009     5.4    2.1      1     512   512
    self-attention  128   0.0356     4.9    3.0      4       1     4
    self-attention  1024  1.3303    96.5  144.8      4       1     4

From T = 512 to 1024 attention takes 3.6 times the operations (4, but for its four
projections), 3.8 times the memory and 3.4 times the time; its path stays. Recurrence
and convolution take twice the operations and the memory, and their paths double.
"""

import argparse
import math
import statistics
import time
from pathlib import Path

import cpu_settings  # noqa: F401
import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from keras_attn.layers import MultiHeadAttention
from keras_attn.viz import save_figure

# What Table 1 says of operations, of those that wait, and of the path; the path through
# kernels without gaps is of section 4. The projections of attention, T d², come on top.
WAYS = {
    "recurrence": ("T d²", "T", "T"),
    "convolution": ("k T d²", "1", "T / k"),
    "self-attention": ("T² d", "1", "1"),
}
KERNEL, HEADS, BATCH = 3, 4, 4
PRODUCTS = ("MatMul", "BatchMatMulV2", "Conv2D")


def parse_arguments():
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[128, 256, 512, 1024],
        help="tokens of a sequence",
    )
    parser.add_argument("--width", type=int, default=64, help="units of a layer")
    parser.add_argument("--repeats", type=int, default=7, help="steps timed")
    parser.add_argument(
        "--run-dir", default="runs/three-ways", help="folder of the picture"
    )
    return parser.parse_args()


def build_layer(way, width, unroll=False):
    """A layer (B, T, d) -> (B, T, d) that sees the token itself and those before it."""
    if way == "recurrence":
        return keras.layers.SimpleRNN(width, return_sequences=True, unroll=unroll)
    if way == "convolution":
        return keras.layers.Conv1D(width, KERNEL, padding="causal")
    layer = MultiHeadAttention(HEADS, width // HEADS)
    return lambda inputs: layer(inputs, use_causal_mask=True)


def build(way, length, width, depth=1, unroll=False):
    """`depth` layers of one kind on top of each other."""
    inputs = hidden = keras.Input((length, width))
    for _ in range(depth):
        hidden = build_layer(way, width, unroll)(hidden)
    return keras.Model(inputs, hidden)


def train(model, inputs):
    """Forward, then gradients of inputs and weights; returns these and the loss."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(tf.square(model(inputs, training=True)))
    return loss, tape.gradient(loss, [inputs, *model.trainable_variables])


def milliseconds(way, length, width, repeats):
    """Of a training step, the median."""
    model = build(way, length, width)
    inputs, times = tf.random.normal([BATCH, length, width]), []
    step = tf.function(lambda inputs: train(model, inputs))
    for _ in range(3 + repeats):
        began = time.perf_counter()
        step(inputs)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times[3:])


def read_graph(way, length, width):
    """FLOPs, products in the longest path, and bytes kept for the gradients."""
    model = build(way, length, width, unroll=True)
    inputs = tf.TensorSpec([BATCH, length, width])
    graph = tf.function(model).get_concrete_function(inputs).graph
    profiler = tf.compat.v1.profiler
    options = {**profiler.ProfileOptionBuilder.float_operation(), "output": "none"}
    flops = profiler.profile(graph, options=options).total_float_ops
    longest = {}
    for node in graph.get_operations():  # In an order that puts inputs first.
        before = (longest[tensor.op.name] for tensor in node.inputs)
        longest[node.name] = max(before, default=0) + (node.type in PRODUCTS)

    step = tf.function(lambda inputs: train(model, inputs))
    step = step.get_concrete_function(inputs)
    nodes = step.graph.get_operations()
    place = {node.name: index for index, node in enumerate(nodes)}
    last, kept = place[without_view(step.outputs[0]).op.name], {}
    for node in nodes[last + 1 :]:
        for tensor in map(without_view, node.inputs):
            if place[tensor.op.name] <= last and tensor.dtype == tf.float32:
                kept[tensor.name] = 4 * math.prod(tensor.shape.as_list())
    return flops, max(longest.values()), sum(kept.values())


def without_view(tensor):
    """The tensor whose memory this one is a view of."""
    while tensor.op.type in ("Reshape", "Identity", "ExpandDims", "Squeeze"):
        tensor = tensor.op.inputs[0]
    return tensor


def reach(way, length, width):
    """How many tokens further one layer carries what the first one says."""
    model = build(way, length, width)
    # Whatever is computed from what is not a number is none either.
    first, rest = tf.fill([1, 1, width], math.nan), tf.zeros([1, length - 1, width])
    outputs = model(tf.concat([first, rest], axis=1))
    hears = tf.reduce_any(tf.math.is_nan(outputs), axis=(0, 2))
    return int(np.flatnonzero(hears)[-1])


def measure(way, length, arguments):
    """A line of the table."""
    width = arguments.width
    flops, chain, kept = read_graph(way, length, width)
    layers = math.ceil((length - 1) / reach(way, length, width))
    return {
        "GFLOPs": flops / 1e9,
        "ms": milliseconds(way, length, width, arguments.repeats),
        "MB": kept / 1e6,
        "chain": chain,
        "layers": layers,
        "path": chain * layers,
    }


def draw(results, lengths):
    """Time, memory and path over the length, each on two scales of logarithms."""
    figure = Figure(figsize=(9, 3), dpi=150, layout="compressed")
    names = {
        "ms": "ms of a training step",
        "MB": "MB kept for gradients",
        "path": "path",
    }
    for axis, (name, title) in zip(figure.subplots(1, 3), names.items(), strict=True):
        for way, lines in results.items():
            axis.plot(lengths, [line[name] for line in lines], "o-", label=way)
        axis.set(xscale="log", yscale="log", xlabel="T", title=title)
        axis.set_xticks(lengths, map(str, lengths), minor=False)
        axis.minorticks_off()
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def main():
    """Measures each way at each length, and compares the growth with the table's."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(0)
    # What counts operations warns of its own age.
    tf.get_logger().setLevel("ERROR")
    results, lengths = {}, sorted(arguments.lengths)
    if len(lengths) < 2:
        raise SystemExit("--lengths needs two or more, to tell what grows")
    print("| layer | T | GFLOPs | ms | MB | chain | layers | path |")
    print("|---|---|---|---|---|---|---|---|")
    for way in WAYS:
        results[way] = []
        for length in lengths:
            line = measure(way, length, arguments)
            results[way].append(line)
            cells = (f"{value:.4g}" for value in line.values())
            print(f"| {way} | {length} | {' | '.join(cells)} |", flush=True)
    print(f"\nFrom T = {lengths[-2]} to {lengths[-1]} grow, in O() and measured:")
    for way, (operations, waiting, path) in WAYS.items():
        before, after = results[way][-2:]
        times = {name: after[name] / before[name] for name in after}
        print(
            f"  {way}: operations O({operations}) x {times['GFLOPs']:.2f}, waiting "
            f"O({waiting}) x {times['chain']:.2f}, path O({path}) x "
            f"{times['path']:.2f}; time x {times['ms']:.2f}, memory x "
            f"{times['MB']:.2f}"
        )
    picture = Path(arguments.run_dir) / "three_ways.png"
    save_figure(draw(results, lengths), picture)
    print(f"Picture: {picture}")


if __name__ == "__main__":
    main()
