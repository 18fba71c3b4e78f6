"""A training step of BERT-base with LoRA against one that trains all: time, memory.

    python benchmarks/finetune.py
    python benchmarks/finetune.py --only full lora_8 --batch 8 --length 128
    python benchmarks/finetune.py --small --rounds 1    checks that it runs

A classifier of two classes, Adam, float32, random weights. `lora_8` adapts queries and
values and trains the head as well, as PEFT does by default; `lora_8_all` adapts every
kernel. Steps are timed by `interleaved.py`. Peak memory is that of a process of its
own that trains three steps, less what it held after its imports; it runs on Linux.
Results are in `RESULTS.md`.
"""

import argparse
import os
import subprocess
import sys

import interleaved
import tables

NEEDS = {name: () for name in ("full", "lora_8", "lora_32", "lora_8_all")}


def step_of(contestant, arguments):
    """The call of one training step."""
    import keras
    import numpy as np

    from keras_attn import models, training

    sizes = {"vocabulary_size": 31, **tables.TINY} if arguments.small else {}
    keras.utils.set_random_seed(0)
    encoder = models.create("bert_base", **sizes)
    model = models.build_bert_classifier(encoder, num_classes=2)
    if contestant != "full":
        _, rank, *everything = contestant.split("_")
        print(
            training.enable_lora(
                model,
                rank=1 if arguments.small else int(rank),
                targets="all" if everything else ("query", "value"),
                also_train="classifier",
            ),
            file=sys.stderr,
        )
    shape = (arguments.batch, arguments.length)
    token_ids = np.random.default_rng(0).integers(1, 31, shape).astype("int32")
    inputs = {
        "token_ids": token_ids,
        "segment_ids": np.zeros(shape, "int32"),
        "padding_mask": np.ones(shape, bool),
    }
    return tables.keras_training(keras.optimizers.Adam, model, inputs)


def peak_memory():
    """The most memory that this process has held, in bytes."""
    import resource

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def added_memory(contestant, arguments):
    """Bytes that three steps add to what a process holds after its imports."""
    import keras
    import numpy as np

    from keras_attn import models, training  # noqa: F401

    # What a session holds before any model: kernels, threads, a compiled function.
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((1, 2)), np.ones((1, 1)))
    before = peak_memory()
    step = step_of(contestant, arguments)
    for _ in range(3):
        step()
    return peak_memory() - before


def main():
    """Prints a row for each contestant, or serves one as a child process."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=NEEDS, default=list(NEEDS), help="contestants"
    )
    parser.add_argument("--batch", type=int, default=8, help="texts in a batch")
    parser.add_argument("--length", type=int, default=128, help="tokens in a text")
    parser.add_argument("--rounds", type=int, default=7, help="steps per contestant")
    parser.add_argument("--serve", choices=NEEDS, help=argparse.SUPPRESS)
    parser.add_argument("--peak", choices=NEEDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.small:
        arguments.batch, arguments.length = 2, 5
    if arguments.peak:
        print(added_memory(arguments.peak, arguments))
        return
    if arguments.serve:
        interleaved.serve({"step": step_of(arguments.serve, arguments)})
        return
    options = ["--batch", str(arguments.batch), "--length", str(arguments.length)]
    options += ["--small"] if arguments.small else []
    contestants = {who: ["--serve", who, *options] for who in arguments.only}
    times = interleaved.measure(__file__, contestants, ["step"], arguments.rounds)
    times, first = times["step"], arguments.only[0]
    memory = {}
    for who in arguments.only:
        command = [sys.executable, __file__, "--peak", who, *options]
        finished = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        memory[who] = int(finished.stdout.split()[-1])
    print(f"| training | step | / {first} | peak memory added | / {first} |")
    print("|---|---|---|---|---|")
    for who in arguments.only:
        print(
            f"| {who} | {times[who]:.0f} ms | {times[who] / times[first]:.2f} "
            f"| {memory[who] / 2**20:.0f} MiB | {memory[who] / memory[first]:.2f} |"
        )


if __name__ == "__main__":
    main()
