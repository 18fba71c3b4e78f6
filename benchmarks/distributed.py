"""A GPT on one, two and four processes, batches or weights divided: time and memory.

    python benchmarks/distributed.py
    python benchmarks/distributed.py --small --rounds 1    checks that it runs, on two

Every process has one device, a CPU; they talk over Gloo, and each computes with
one thread. First a checkpoint of random float32 weights is loaded under
`models.layout_map`, and the memory is what this adds to the process at its peak, as a
part of the size of the file. Then three steps of Adam: the time is that of the fastest
step but the first, and the losses are compared with those of one process. It runs on
Linux, with the JAX backend, and needs no accelerator.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import interleaved
import numpy as np
import tables

# Label to the number of processes and the axis of the mesh that divides.
WAYS = {
    "1 process": (1, "batch"),
    "2 processes, batches divided": (2, "batch"),
    "2 processes, weights divided": (2, "model"),
    "4 processes, batches divided": (4, "batch"),
    "4 processes, weights divided": (4, "model"),
}
SIZES = {**tables.BASE, "vocabulary_size": 32_000, "max_sequence_length": 128}
SMALL = {"vocabulary_size": 64, "num_layers": 1, "hidden_dim": 32}
SMALL |= {"num_heads": 4, "mlp_dim": 64, "max_sequence_length": 16}
ROWS = 4


def memory(field):
    """`VmRSS`, what this process holds, or `VmHWM`, the most that it has held: MiB."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    (kibibytes,) = [line.split()[1] for line in lines if line.startswith(field)]
    return int(kibibytes) / 1024


def work(arguments):
    """One process: prints its peak of loading, its losses and its time as JSON."""
    coordinator, count, number, axis, folder = arguments.work
    import jax
    import keras

    # An import of TensorFlow, if only by Keras, must not count as loading.
    from keras_attn import models

    if int(count) > 1:
        keras.distribution.initialize(coordinator, int(count), int(number))
    devices = keras.distribution.get_device_count()
    shape = (devices, 1) if axis == "batch" else (1, devices)
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"])
    distribution = keras.distribution.ModelParallel(
        layout_map=models.layout_map(folder, mesh), batch_dim_name="batch"
    )
    keras.distribution.set_distribution(distribution)
    jax.block_until_ready(jax.numpy.zeros(8) + 1)  # What JAX allocates when it starts.
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "utf-8")  # Forgets the peak.
    model = models.load_checkpoint(folder, dropout=0.0, attention_dropout=0.0)
    peak = memory("VmHWM") - before

    model.compile(
        keras.optimizers.Adam(1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    length = arguments.sizes["max_sequence_length"]
    random = np.random.default_rng(0)
    tokens = random.integers(1, arguments.sizes["vocabulary_size"], (ROWS, length + 1))
    parts = np.array_split(tokens.astype("int32"), distribution.num_model_replicas)
    mine = parts[distribution.data_shard_id]
    inputs = {"token_ids": mine[:, :-1], "padding_mask": np.ones_like(mine[:, :-1])}
    losses, times = [], []
    for _ in range(2 + arguments.rounds):
        start = time.perf_counter()
        losses.append(float(model.train_on_batch(inputs, mine[:, 1:])))
        times.append(time.perf_counter() - start)
    print(json.dumps({"peak": peak, "losses": losses, "time": min(times[1:])}))


def run(way, folder, options):
    """What every process of a way printed."""
    count, axis = WAYS[way]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    threads = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {threads}".strip()
    work = [coordinator, str(count)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *options, "--work", *work, str(i), axis, folder],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    printed = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{way}: a process failed")
    return [json.loads(text.splitlines()[-1]) for text in printed]


def save(folder, sizes):
    """Writes a checkpoint with random weights; returns its size in MiB."""
    from keras_attn import models

    models.save_checkpoint(models.create("gpt2_small", **sizes), folder)
    return sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**20


def main():
    """Prints the table, or is one of its processes."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="timed steps")
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.sizes = SMALL if arguments.small else SIZES
    if arguments.work:
        work(arguments)
        return
    options = ["--rounds", str(arguments.rounds)]
    options += ["--small"] if arguments.small else []
    with tempfile.TemporaryDirectory() as folder:
        size = save(folder, arguments.sizes)
        print(f"| GPT, a file of {size:.0f} MiB | loading, peak | a step | losses |")
        print("|---|---|---|---|")
        expected = None
        for way in [*WAYS][:3] if arguments.small else WAYS:
            results = run(way, folder, options)
            peak = max(each["peak"] for each in results)
            step = max(each["time"] for each in results)
            losses = np.array(results[0]["losses"])
            expected = losses if expected is None else expected
            apart = np.max(np.abs(losses / expected - 1))
            print(
                f"| {way} | {peak:.0f} MiB, {peak / size:.2f} × the file "
                f"| {1e3 * step:.0f} ms | {apart:.1e} apart |",
                flush=True,
            )


if __name__ == "__main__":
    main()
