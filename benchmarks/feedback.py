"""An iteration of PPO, RLOO and GRPO against its generation and its updates alone.

    python benchmarks/feedback.py
    python benchmarks/feedback.py --row ppo --rounds 9
    python benchmarks/feedback.py --small --rounds 1    tiny: checks that rows run

An iteration samples completions, reads them by the policy, the reference and a reward
model of the same size, and takes the passes of its method. "generation" is the compiled
loop alone, "training" the same updates on a batch that exists. Random weights, float32;
all tokens are sampled and learned. Results are in `RESULTS.md`.
"""

import argparse
import os
from typing import Any, NamedTuple

import interleaved
import tables

# Passes over the completions, and completions of each prompt.
ROWS = {"ppo": (4, 1), "rloo": (1, 4), "grpo": (1, 8)}
PARTS = ("iteration", "generation", "training")


class Sizes(NamedTuple):
    """Sizes of the blocks, tokens of the vocabulary, rows, tokens of both parts."""

    blocks: dict[str, Any]
    vocabulary: int
    rows: int
    prompt: int
    new: int


PUBLISHED = Sizes(
    {"num_layers": 6, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536},
    vocabulary=8000,
    rows=32,
    prompt=16,
    new=32,
)
SMALL = Sizes(tables.TINY, vocabulary=11, rows=8, prompt=3, new=4)


def calls(row, sizes):
    """The functions that are timed, by name."""
    import keras
    import numpy as np

    from keras_attn import models
    from keras_attn.models import as_reward_model
    from keras_attn.training import GRPO, PPO, RLOO, AdamW, CompletionSampling

    passes, group_size = ROWS[row]

    def gpt():
        return models.create(
            "gpt2_small",
            vocabulary_size=sizes.vocabulary,
            max_sequence_length=sizes.prompt + sizes.new,
            **sizes.blocks,
        )

    keras.utils.set_random_seed(0)
    policy = gpt()
    sampling = CompletionSampling(sizes.new, 2, learn_after_end=True)
    given = (policy, as_reward_model(gpt()), sampling)
    if row == "ppo":
        trainer = PPO(*given, num_passes=passes)
    else:
        cls = {"rloo": RLOO, "grpo": GRPO}[row]
        trainer = cls(*given, num_passes=passes, group_size=group_size)
    trainer.compile(AdamW(1e-6), jit_compile=False)
    ids = np.random.default_rng(0).integers(
        3, sizes.vocabulary, (sizes.rows // group_size, sizes.prompt)
    )
    prompts = {"token_ids": ids.astype("int32"), "padding_mask": np.ones_like(ids)}
    repeated = {name: np.repeat(x, group_size, axis=0) for name, x in prompts.items()}
    kept = []
    learn = trainer.train_on_batch

    def keep(batch, **options):
        kept[:] = [batch]
        return learn(batch, **options)

    trainer.train_on_batch = keep
    trainer.fit([prompts], verbose=0)
    trainer.train_on_batch = learn

    def training():
        for _ in range(passes):
            trainer.train_on_batch(kept[0])

    return {
        f"{row} iteration": lambda: trainer.fit([prompts], verbose=0),
        f"{row} generation": lambda: sampling.sample(policy, repeated, seed=0),
        f"{row} training": training,
    }


def main():
    """Prints the times of each row, and the ratio to the parts alone."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument("--row", choices=ROWS, help="measure only this row")
    parser.add_argument("--rounds", type=int, default=7, help="calls of each part")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.serve:
        sizes = SMALL if arguments.small else PUBLISHED
        interleaved.serve(calls(arguments.serve, sizes), warm_ups=1)
        return
    small = ["--small"] if arguments.small else []
    print(f"| work | {' | '.join(PARTS)} | iteration / (generation + training) |")
    print("|---|---|---|---|---|")
    for row in [arguments.row] if arguments.row else ROWS:
        work = [f"{row} {part}" for part in PARTS]
        commands = {"ours": ["--serve", row, *small]}
        times = interleaved.measure(__file__, commands, work, arguments.rounds)
        iteration, generation, training = (times[what]["ours"] for what in work)
        cells = [f"{x:.0f} ms" for x in (iteration, generation, training)]
        ratio = iteration / (generation + training)
        print(f"| {row} | {' | '.join(cells)} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
