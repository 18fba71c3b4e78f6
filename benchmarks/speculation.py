"""GPT-2 small generating with and without guesses: tokens a second, and cost of a pass.

    python benchmarks/speculation.py
    python benchmarks/speculation.py --small --rounds 1    tiny: checks that it runs

Published size, random weights, greedy, 64 tokens after a prompt of 32, one row. How
many guesses are right depends on the text and the weights, and random weights repeat
themselves: what carries over to other texts is the time of a pass against that of a
step. The draft model has 2 blocks, and guesses nothing right. Interleaved calls, each
kind in its own process (`interleaved.py`); results are in `RESULTS.md`.
"""

import argparse
import os

import interleaved
import tables

PROMPT, NEW = 32, 64
KINDS = ("plain", "lookup 4", "lookup 8", "lookup 16", "draft 4")
SMALL_KINDS = ("plain", "lookup 4", "draft 4")


def generation(kind, small):
    """The call that generates; it returns what `generate` does."""
    import keras
    import numpy as np

    from keras_attn import models
    from keras_attn.decoding import DraftModel, PromptLookup, generate

    keras.utils.set_random_seed(0)
    sizes = tables.TINY if small else tables.BASE
    model = models.create("gpt2_small", **sizes)
    prompt = {"token_ids": np.ones((1, PROMPT), "int32")}
    what, _, tokens = kind.partition(" ")
    guesses = None
    if what == "lookup":
        guesses = PromptLookup(tokens=int(tokens))
    elif what == "draft":
        draft = models.create("gpt2_small", **{**sizes, "num_layers": 2})
        guesses = DraftModel(draft, tokens=int(tokens))
    return lambda: generate(model, prompt, NEW, speculation=guesses)


def main():
    """Prints a row for each kind."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="calls per kind")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    small = ["--small"] if arguments.small else []
    if arguments.serve:
        call = generation(arguments.serve, arguments.small)
        interleaved.serve({"generation": call}, warm_ups=1)
        return
    kinds = SMALL_KINDS if arguments.small else KINDS
    contestants = {kind: ["--serve", kind, *small] for kind in kinds}
    times = interleaved.measure(__file__, contestants, ["generation"], arguments.rounds)
    print("| guesses | passes | right | tokens a second | / plain | pass / step |")
    print("|---|---|---|---|---|---|")
    plain = times["generation"]["plain"]
    for kind, mine in times["generation"].items():
        passes, share = NEW - 1, "–"
        if kind != "plain":
            answer = generation(kind, arguments.small)()
            passes, share = answer.num_passes, f"{100 * answer.acceptance_rate:.0f} %"
        cost = mine / passes / (plain / (NEW - 1))
        print(
            f"| {kind} | {passes} | {share} | {1000 * NEW / mine:.1f} | "
            f"{plain / mine:.2f} | {cost:.2f} |"
        )


if __name__ == "__main__":
    main()
