"""Attention in blocks against all scores at once: memory and time.

    python benchmarks/lean.py
    python benchmarks/lean.py --lengths 4096 --way xla --causal
    python benchmarks/lean.py --no-times --lengths 1024 2048 4096 8192 16384 \
        --draw attention_memory.png
    python benchmarks/lean.py --gpt2 --rounds 3    a training step of GPT-2 small
    python benchmarks/lean.py --small --rounds 1    checks that it runs

Forward and backward of one layer's scores and sums, 8 heads of 64, float32: "blocks" is
ours without the probabilities, "scores" ours with them, "keras"
`keras.ops.dot_product_attention`, "torch" its fused kernel. Times are interleaved. Peak
memory is what the second call adds to a process of its own; it runs on Linux. Results
are in `RESULTS.md`.
"""

import argparse
import contextlib
import os
import subprocess
import sys
from typing import Any

import interleaved
import numpy as np
import tables

NEEDS = {"blocks": (), "scores": (), "keras": (), "torch": ("torch",)}
# Contestants that hold tensors of all scores, several at a time in the backward pass.
WHOLE, COPIES = ("scores", "keras"), 4
# Forms of ours.
GPT2 = ("blocks", "scores")
HEADS, SIZE = 8, 64


def arrays(length):
    """Queries, keys, values, and the gradient of the outputs, (1, 8, T, 64)."""
    shape = (1, HEADS, length, SIZE)
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype("float32") for _ in range(4)]


def torch_call(length, arguments):
    """One forward and backward pass of PyTorch's fused attention."""
    import torch

    tensors = [torch.from_numpy(x) for x in arrays(length)]
    inputs, above = [x.requires_grad_() for x in tensors[:3]], tensors[3]

    def call():
        for tensor in inputs:
            tensor.grad = None
        attend = torch.nn.functional.scaled_dot_product_attention
        query, key, value = inputs
        attend(query, key, value, is_causal=arguments.causal).backward(above)

    return call


def tensorflow_call(contestant, length, arguments):
    """One forward and backward pass in a `tf.function`, which is traced already."""
    import keras
    import tensorflow as tf

    from keras_attn.ops import scaled_dot_product_attention

    def attend(query, key, value):
        if contestant == "keras":
            # Which has the heads after the length.
            parts = [tf.transpose(x, (0, 2, 1, 3)) for x in (query, key, value)]
            outputs = keras.ops.dot_product_attention(
                *parts, is_causal=arguments.causal
            )
            return tf.transpose(outputs, (0, 2, 1, 3))
        return scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=arguments.causal,
            return_weights=contestant == "scores",
        )[0]

    @tf.function(jit_compile=arguments.way == "xla", autograph=False)
    def gradients(query, key, value, above) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            outputs = attend(query, key, value)
        return tape.gradient(outputs, [query, key, value], above)

    tensors = [tf.constant(x) for x in arrays(length)]
    compiled: Any = gradients
    traced = compiled.get_concrete_function(*tensors)
    return lambda: [x.numpy() for x in traced(*tensors)]


def gpt2_call(contestant, arguments):
    """A training step of GPT-2 small; "scores" computes them all at once."""
    import keras

    from keras_attn import models
    from keras_attn.kernels.lean_attention import whole_scores

    sizes = {"vocabulary_size": 31, **tables.TINY} if arguments.small else {}
    keras.utils.set_random_seed(0)
    model = models.create("gpt2_small", **sizes)
    length = 16 if arguments.small else 1024
    token_ids = np.random.default_rng(0).integers(1, 31, (arguments.batch, length))
    inputs = {"token_ids": token_ids.astype("int32")}
    inputs["padding_mask"] = np.ones(token_ids.shape, bool)
    inputs = {x.name: inputs[x.name] for x in model.inputs}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=arguments.way == "xla")

    def call():
        form = whole_scores() if contestant == "scores" else contextlib.nullcontext()
        with form:
            model.train_on_batch(inputs, token_ids)

    return call


def call_of(contestant, length, arguments):
    """What a contestant computes."""
    if arguments.gpt2:
        return gpt2_call(contestant, arguments)
    if contestant == "torch":
        return torch_call(length, arguments)
    return tensorflow_call(contestant, length, arguments)


def memory(name):
    """`VmRSS`, what this process holds, or `VmHWM`, the most that it has held: MiB."""
    with open("/proc/self/status", encoding="utf-8") as file:
        (line,) = (x for x in file if x.startswith(name))
    return int(line.split()[1]) / 1024


def added_memory(call):
    """MiB that a call adds at its peak; the first one also compiles."""
    call()
    before = memory("VmRSS")
    with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")  # Forgets the peak.
    call()
    return memory("VmHWM") - before


def draw(path, lengths, found):
    """Draws the memory of each contestant by length, and saves the figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for who, values in found.items():
        axes.plot(lengths[: len(values)], values, marker="o", label=who)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="peak memory, MiB")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], minor=False)
    axes.minorticks_off()
    axes.legend()
    figure.savefig(path, dpi=120)


def has_room_for_scores(length):
    """Whether this machine has memory for a few tensors of all scores."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return COPIES * HEADS * length**2 * np.dtype("float32").itemsize < memory


def main():
    """Prints a table, or serves one contestant as a child process."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=NEEDS, default=list(NEEDS), help="contestants"
    )
    lengths = {"type": int, "nargs": "+", "default": [1024, 2048, 4096]}
    parser.add_argument("--lengths", **lengths, help="queries and keys")
    parser.add_argument(
        "--way", choices=("graph", "xla"), default="graph", help="of TensorFlow"
    )
    parser.add_argument("--causal", action="store_true", help="no later keys")
    parser.add_argument("--gpt2", action="store_true", help="a step of GPT-2 small")
    parser.add_argument("--batch", type=int, default=8, help="texts for GPT-2")
    parser.add_argument("--rounds", type=int, default=5, help="calls per contestant")
    parser.add_argument("--no-times", action="store_true", help="memory alone")
    parser.add_argument("--draw", metavar="FILE", help="a figure of the memory")
    parser.add_argument("--serve", choices=NEEDS, help=argparse.SUPPRESS)
    parser.add_argument("--peak", choices=NEEDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.small:
        arguments.lengths, arguments.batch = [16], 2
    if arguments.gpt2:
        arguments.lengths = [1024]
    if arguments.peak:
        call = call_of(arguments.peak, arguments.lengths[0], arguments)
        print(added_memory(call))
        return
    if arguments.serve:
        call = call_of(arguments.serve, arguments.lengths[0], arguments)
        interleaved.serve({"call": call}, warm_ups=1)
        return
    contestants = [x for x in arguments.only if not arguments.gpt2 or x in GPT2]
    contestants = interleaved.available({x: NEEDS[x] for x in contestants}, "attention")
    options = ["--way", arguments.way, "--batch", str(arguments.batch)]
    options += [f"--{x}" for x in ("causal", "gpt2", "small") if vars(arguments)[x]]
    found = {who: [] for who in contestants}
    print("| tokens | attention | peak memory added | a call |\n|---|---|---|---|")
    for length in arguments.lengths:
        sized = [*options, "--lengths", str(length)]
        times = {}
        if not arguments.gpt2 and not has_room_for_scores(length):
            left_out = [who for who in contestants if who in WHOLE]
            contestants = [who for who in contestants if who not in WHOLE]
            for who in left_out:
                print(f"| {length:,} | {who} | more than this machine has | |")
        if not arguments.no_times:
            served = {who: ["--serve", who, *sized] for who in contestants}
            times = interleaved.measure(__file__, served, ["call"], arguments.rounds)
            times = {who: f"{times['call'][who]:,.0f} ms" for who in contestants}
        for who in contestants:
            command = [sys.executable, __file__, "--peak", who, *sized]
            # The C library gives what is freed back at once.
            env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=env)
            found[who].append(float(done.stdout.split()[-1]))
            row = f"| {length:,} | {who} | {found[who][-1]:,.0f} MiB "
            print(f"{row}| {times.get(who, '')} |", flush=True)
    if arguments.draw:
        draw(arguments.draw, arguments.lengths, found)


if __name__ == "__main__":
    main()
