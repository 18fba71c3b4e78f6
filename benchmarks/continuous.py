"""GPT-2 small continues 32 prompts of unlike lengths: tokens a second, in three ways.

    python benchmarks/continuous.py
    python benchmarks/continuous.py --prompts 8 --rounds 1    a minute
    python benchmarks/continuous.py --small --rounds 1        tiny: checks that it runs

Published size, random weights, greedy. Prompts have 8 to 96 tokens and get 8 to 128 new
ones, drawn evenly; `generate` with padded batches of the same size goes on until the
longest row of the batch has its tokens, of which only the wanted ones count.
Interleaved calls, each way in its own process (`interleaved.py`); results are in
`RESULTS.md`.
"""

import argparse
import os

import interleaved
import tables

PROMPTS, NEW = (8, 96), (8, 128)
SMALL_PROMPTS, SMALL_NEW = (1, 5), (1, 4)
WAYS = ("continuous", "padded batches", "one by one")


def work(arguments):
    """The prompts, and how many tokens each of them gets."""
    import numpy as np

    rng = np.random.default_rng(0)
    prompts, new = (SMALL_PROMPTS, SMALL_NEW) if arguments.small else (PROMPTS, NEW)
    lengths = rng.integers(*prompts, arguments.prompts, endpoint=True)
    limits = rng.integers(*new, arguments.prompts, endpoint=True)
    return [rng.integers(1, 1000, length) for length in lengths], limits.tolist()


def generation(way, arguments):
    """The call that continues all prompts."""
    import keras
    import numpy as np

    from keras_attn import models
    from keras_attn.decoding import generate, generate_all

    keras.utils.set_random_seed(0)
    sizes = tables.TINY if arguments.small else tables.BASE
    model = models.create("gpt2_small", **sizes)
    prompts, limits = work(arguments)
    size = arguments.batch
    if way == "continuous":
        return lambda: generate_all(model, prompts, limits, batch_size=size)

    def padded(prompts, limit):
        longest = max(map(len, prompts))
        widths = [(longest - len(prompt), 0) for prompt in prompts]
        pairs = list(zip(prompts, widths, strict=True))
        inputs = {
            "token_ids": np.stack([np.pad(x, width) for x, width in pairs]),
            "padding_mask": np.stack([np.pad(x > 0, width) for x, width in pairs]),
        }
        return generate(model, inputs, limit)

    rows = size if way == "padded batches" else 1
    starts = range(0, len(prompts), rows)
    parts = [(prompts[i : i + rows], max(limits[i : i + rows])) for i in starts]
    return lambda: [padded(*part) for part in parts]


def main():
    """Prints a row for each way."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="calls per way")
    parser.add_argument("--prompts", type=int, default=32, help="number of prompts")
    parser.add_argument("--batch", type=int, default=8, help="rows of a batch")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.serve:
        call = generation(arguments.serve, arguments)
        interleaved.serve({"generation": call}, warm_ups=1)
        return
    same = ["--prompts", str(arguments.prompts), "--batch", str(arguments.batch)]
    same += ["--small"] if arguments.small else []
    contestants = {way: ["--serve", way, *same] for way in WAYS}
    times = interleaved.measure(__file__, contestants, ["generation"], arguments.rounds)
    times, wanted = times["generation"], sum(work(arguments)[1])
    print("| way | time | tokens a second | / one by one |")
    print("|---|---|---|---|")
    for way, mine in times.items():
        print(
            f"| {way} | {mine / 1000:.1f} s | {1000 * wanted / mine:.1f} "
            f"| {times['one by one'] / mine:.2f} |"
        )
    print(f"{arguments.prompts} prompts, {wanted} new tokens, {arguments.batch} rows")


if __name__ == "__main__":
    main()
