"""Recurrence, convolution, self-attention: what reading a sequence costs, measured.

    python examples/three_ways.py                 one layer of each, 64 wide

Table 1 of Vaswani et al. 2017 (arXiv:1706.03762) gives O() for the operations per
layer, the sequential operations, and the path length between two tokens. Here each is
measured on one Keras layer of each kind:

    GFLOPs    of the forward pass of 4 sequences, counted by TensorFlow
    ms        of a training step: forward, and gradients of inputs and weights
    MB        of activations kept for the gradients, counted in the graph
    chain     sequential matrix products: the longest path in the graph
    layers    number of layers until the last token depends on the first
    path      chain x layers, the path length between these two tokens

A dilated convolution is measured as the last layer of a stack whose kernels skip 0, 2,
8, … tokens, k ^ index - 1: its costs are a convolution's, and each layer reaches k
times as far, so log_k T layers connect all tokens, in place of T / k.

Attention computes all its scores at once, as in the paper; the library's layer attends
to long sequences in blocks, whose operations are as many, but hidden in a loop, and
whose memory grows as that of the others.

On 2 cores of an AMD EPYC (AVX-512, no AMX), nothing else running, 31 s:

    layer           T     GFLOPs   ms     MB     chain  layers  path
    recurrence      128   0.0085     7.8    4.6    128       1   128
    recurrence      1024  0.0676    70.4   36.7   1024       1  1024
    convolution     128   0.0126     1.1    0.3      1      64    64
    convolution     1024  0.1009     4.6    2.1      1     512   512
    dilated         128   0.0160     1.7    0.5      1       5     5
    dilated         1024  0.1436     5.9    4.1      1       7     7
    self-attention  128   0.0356     2.7    3.0      4       1     4
    self-attention  1024  1.3299    68.3  144.8      4       1     4

From T = 512 to 1024 attention takes 3.6 times the operations (4, without its four
projections), 3.8 times the memory and 3.4 to 3.7 times the time (two runs); its path
length is constant. The others take twice the operations and about twice the memory. The
paths of recurrence and convolution double, that of dilated convolutions is one layer
longer, 7.
"""

import itertools
import math
import statistics
import time

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from keras_attn.kernels.lean_attention import whole_scores
from keras_attn.layers import MultiHeadAttention
from keras_attn.viz import save_figure

# Table 1's operations, sequential operations and path length; the paths of contiguous
# and of dilated kernels are from section 4. The projections of attention add T d².
LAYERS = {
    "recurrence": ("T d²", "T", "T"),
    "convolution": ("k T d²", "1", "T / k"),
    "dilated": ("k T d²", "1", "log_k T"),
    "self-attention": ("T² d", "1", "1"),
}
KERNEL, HEADS, BATCH = 3, 4, 4
PRODUCTS = ("MatMul", "BatchMatMulV2", "Conv2D")


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/three-ways")
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[128, 256, 512, 1024],
        help="sequence lengths, in tokens",
    )
    parser.add_argument("--width", type=int, default=64, help="width of the layers")
    parser.add_argument("--repeats", type=int, default=7, help="number of timed steps")
    return parser.parse_args()


def build_layer(kind, width, unroll=False, index=0):
    """A causal layer (B, T, d) -> (B, T, d); `index` is its place in a stack."""
    if kind == "recurrence":
        return keras.layers.SimpleRNN(width, return_sequences=True, unroll=unroll)
    if kind == "convolution":
        return keras.layers.Conv1D(width, KERNEL, padding="causal")
    if kind == "dilated":
        step = KERNEL**index
        return keras.layers.Conv1D(width, KERNEL, padding="causal", dilation_rate=step)
    layer = MultiHeadAttention(HEADS, width // HEADS)
    return lambda inputs: layer(inputs, use_causal_mask=True)


def build(kind, length, width, indices=(0,), unroll=False):
    """A model of the layers of one kind at these places of a stack."""
    inputs = hidden = keras.Input((length, width))
    for index in indices:
        hidden = build_layer(kind, width, unroll, index)(hidden)
    return keras.Model(inputs, hidden)


def train(model, inputs):
    """Computes the loss and its gradients for inputs and weights."""
    with whole_scores(), tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(tf.square(model(inputs, training=True)))
    return loss, tape.gradient(loss, [inputs, *model.trainable_variables])


def milliseconds(kind, length, width, repeats, index=0):
    """Median time of a training step."""
    model = build(kind, length, width, (index,))
    inputs, times = tf.random.normal([BATCH, length, width]), []
    step = tf.function(lambda inputs: train(model, inputs))
    for _ in range(3 + repeats):
        start = time.perf_counter()
        step(inputs)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[3:])


def read_graph(kind, length, width, index=0):
    """FLOPs, matrix products in the longest path, and bytes kept for gradients."""
    model = build(kind, length, width, (index,), unroll=True)
    inputs = tf.TensorSpec([BATCH, length, width])
    with whole_scores():
        graph = tf.function(model).get_concrete_function(inputs).graph
    profiler = tf.compat.v1.profiler
    options = {**profiler.ProfileOptionBuilder.float_operation(), "output": "none"}
    flops = profiler.profile(graph, options=options).total_float_ops
    longest = {}
    for node in graph.get_operations():  # In topological order.
        before = (longest[tensor.op.name] for tensor in node.inputs)
        longest[node.name] = max(before, default=0) + (node.type in PRODUCTS)

    step = tf.function(lambda inputs: train(model, inputs))
    step = step.get_concrete_function(inputs)
    nodes = step.graph.get_operations()
    index = {node.name: number for number, node in enumerate(nodes)}
    last, kept = index[without_view(step.outputs[0]).op.name], {}
    for node in nodes[last + 1 :]:
        for tensor in map(without_view, node.inputs):
            if index[tensor.op.name] <= last and tensor.dtype == tf.float32:
                kept[tensor.name] = 4 * math.prod(tensor.shape.as_list())
    return flops, max(longest.values()), sum(kept.values())


def without_view(tensor):
    """The tensor whose memory this one shares."""
    while tensor.op.type in ("Reshape", "Identity", "ExpandDims", "Squeeze"):
        tensor = tensor.op.inputs[0]
    return tensor


def reach(kind, length, width, depth=1):
    """Distance, in tokens, over which layers propagate the first token."""
    model = build(kind, length, width, range(depth))
    # NaN propagates to every output that depends on it.
    first, rest = tf.fill([1, 1, width], math.nan), tf.zeros([1, length - 1, width])
    outputs = model(tf.concat([first, rest], axis=1))
    depends = tf.reduce_any(tf.math.is_nan(outputs), axis=(0, 2))
    return int(np.flatnonzero(depends)[-1])


def count_layers(kind, length, width):
    """Number of layers until the last token depends on the first."""
    if kind != "dilated":  # Each layer reaches as far as any other.
        return math.ceil((length - 1) / reach(kind, length, width))
    depths = itertools.count(1)
    return next(n for n in depths if reach(kind, length, width, n) == length - 1)


def measure(kind, length, arguments):
    """Measures one row of the table."""
    width = arguments.width
    layers = count_layers(kind, length, width)
    index = layers - 1 if kind == "dilated" else 0
    flops, chain, kept = read_graph(kind, length, width, index)
    return {
        "GFLOPs": flops / 1e9,
        "ms": milliseconds(kind, length, width, arguments.repeats, index),
        "MB": kept / 1e6,
        "chain": chain,
        "layers": layers,
        "path": chain * layers,
    }


def plot_costs(results, lengths):
    """Time, memory and path over the length, on logarithmic axes."""
    figure = Figure(figsize=(9, 3), dpi=150, layout="compressed")
    names = {
        "ms": "a training step (ms)",
        "MB": "kept for gradients (MB)",
        "path": "from the first token to the last\n(matrix products in a row)",
    }
    for axis, (name, title) in zip(figure.subplots(1, 3), names.items(), strict=True):
        for kind, rows in results.items():
            axis.plot(lengths, [row[name] for row in rows], "o-", label=kind)
        axis.set(xscale="log", yscale="log", xlabel="tokens")
        axis.set_title(title, fontsize=10)
        axis.set_xticks(lengths, map(str, lengths), minor=False)
        axis.minorticks_off()
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def main():
    """Measures each layer at each length, and compares the growth with Table 1."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(0)
    # The profiler warns that it is deprecated.
    tf.get_logger().setLevel("ERROR")
    results, lengths = {}, sorted(arguments.lengths)
    if len(lengths) < 2:
        raise SystemExit("--lengths needs two or more values, to measure growth")
    print("| layer | T | GFLOPs | ms | MB | chain | layers | path |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in LAYERS:
        results[kind] = []
        for length in lengths:
            row = measure(kind, length, arguments)
            results[kind].append(row)
            cells = (f"{value:.4g}" for value in row.values())
            print(f"| {kind} | {length} | {' | '.join(cells)} |", flush=True)
    print(f"\nGrowth from T = {lengths[-2]} to {lengths[-1]}, in O() and measured:")
    for kind, (operations, sequential, path) in LAYERS.items():
        before, after = results[kind][-2:]
        times = {name: after[name] / before[name] for name in after}
        print(
            f"  {kind}: operations O({operations}) x {times['GFLOPs']:.2f}, sequential "
            f"O({sequential}) x {times['chain']:.2f}, path O({path}) x "
            f"{times['path']:.2f}; time x {times['ms']:.2f}, memory x "
            f"{times['MB']:.2f}"
        )
    figure = arguments.run_dir / "three_ways.png"
    save_figure(plot_costs(results, lengths), figure)
    print(f"Figure: {figure}")


if __name__ == "__main__":
    main()
