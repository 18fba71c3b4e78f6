"""The bottleneck: one vector for a sentence of any length, against attention.

    python examples/bottleneck.py                         copies digits
    python examples/bottleneck.py --compare positions --run-dir runs/positions
    python examples/bottleneck.py --task translate --run-dir runs/translate
    python examples/bottleneck.py --results FILE          draws stored results again

    fixed context    c   = h_S               (B, U)      RNNencdec, Cho et al. 2014
    attention        c_t = Σ_j α_tj h_j      (B, T, U)   RNNsearch, Bahdanau et al. 2015

Both read a source of S tokens, and write T. However long the source is, RNNencdec keeps
U numbers of it; RNNsearch keeps S annotations and reads them again at every step. Both
are trained on sources of at most `--longest` tokens, and tested on longer ones, too:
attention removes the limit of memory, not the limit of the lengths seen in training.

`--task copy` repeats random digits in their order, each with the same weight in the
loss; the answer is decoded greedily, without help from the true digits, and guessing
gets 10 % of them right. A model trained up to 20 digits that copies the first 20 and
guesses the others has 85 % at 24 digits, 70 % at 30, 55 % at 40 and 40 % at 60; only
more than that shows that later digits are copied, and no mean here is more.

`--task translate` draws figure 2 of Bahdanau et al. for one `--longest`, on Multi30k,
whose captions are short: BLEU of groups of captions by the words of the source.

`--compare positions` does the same with Transformers, whose positions are sinusoids or
learned, added to the tokens or concatenated (`build_transformer`). A learned vector
beyond the trained length is still as it was initialized; a sinusoid is computed, but
was never seen.

All models of a comparison have the same budget: updates, batches, widths, and the same
learning rates tried once each with a seed that is not reported; the best on lengths up
to the trained one is used for all seeds. At the same widths RNNsearch has more weights,
as in the paper: its encoder reads in both directions. `results.json` has all figures,
with command, CPU, date and seeds, `scores_by_length.png` draws them.

Digits right (%), means of three seeds, on 2 cores of an AMD EPYC, 14 minutes of CPU
time; of the positions 27 minutes, with the first three learning rates only:

    digits                       4    8   12   16   20   24   30   40   60
    RNNsearch (attention)      100  100  100  100  100   59   41   30   20
    RNNencdec (fixed context)  100   99   95   77   61   47   34   26   18
    sinusoidal, added          100  100  100  100  100   85   68   51   32
    sinusoidal, concatenated   100  100  100  100  100   84   68   50   31
    learned, added             100  100  100  100  100   82   63   45   27
    learned, concatenated      100  100  100  100  100   81   58   38   20

A command that is started again reads the results of finished runs and resumes the one
that was killed, a translator after its last epoch. `--task translate` needs
`pip install ".[text,eval]"` and the files of Multi30k (Elliott et al. 2016). It was run
small only, with `--limit 6000 --epochs 4 --hidden-dim 128 --seeds 2`: 67 seconds of CPU
time per model, and after 360 updates both have a BLEU of 1, which compares nothing.
"""

import functools
import json
import shutil
import time
from pathlib import Path

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np

from keras_attn import models, viz
from keras_attn.data import SubwordTokenizer, load_multi30k
from keras_attn.decoding import generate
from keras_attn.files.writing import write_atomically
from keras_attn.losses import SmoothedCrossEntropy
from keras_attn.metrics import bleu
from keras_attn.training import CosineWarmup
from keras_attn.translator import Translator, fit_translator

PAD, START, END, ZERO, DIGITS = 0, 1, 2, 3, 10  # The token of digit d is ZERO + d.
HEADS, LAYERS = 4, 2  # Of the Transformers.
# With other ones a run is trained again.
SETTINGS = ("longest", "lengths", "hidden_dim", "steps", "epochs", "batch_size")
SETTINGS += ("tested", "limit", "vocabulary_size")
DEFAULTS = {
    "copy": {
        "longest": 20,
        "lengths": [4, 8, 12, 16, 20, 24, 30, 40, 60],
        "learning_rates": [1e-3, 3e-3, 1e-2, 3e-2, 1e-1],
        "hidden_dim": 64,
    },
    "translate": {
        "longest": 14,
        "lengths": [4, 9, 11, 13, 15, 17, 20],
        "learning_rates": [1e-3],
        "hidden_dim": 256,
    },
}
TITLES = {
    "copy": "Copying digits",
    "translate": "Captions to German",
    "attention": "one fixed context against attention",
    "positions": "positions of a Transformer",
}


def parse_arguments():
    """Parses the command line; what the task decides is filled in."""
    parser = script_arguments.new_parser(__doc__, "runs/bottleneck")
    parser.add_argument(
        "--task", choices=("copy", "translate"), default="copy", help="what is learned"
    )
    parser.add_argument(
        "--compare",
        choices=("attention", "positions"),
        default="attention",
        help="RNNsearch with RNNencdec, or Transformers by their positions",
    )
    parser.add_argument(
        "--results", type=Path, help="draw this file of results, and train nothing"
    )
    numbers = {
        "seeds": (3, "runs of each model"),
        "seed": (0, "the first seed"),
        "steps": (1500, "copy: updates of a run"),
        "epochs": (8, "translate: passes over the captions"),
        "batch_size": (64, "examples per step"),
        "tested": (100, "copy: sequences of each length"),
        "limit": (None, "translate: captions, for a quick test"),
        "vocabulary_size": (6000, "translate: subwords of both languages together"),
    }
    for name, (default, text) in numbers.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=default, help=text)
    script_arguments.add_data_dir(parser, "multi30k", "translate: files of Multi30k")
    by_task = {
        "longest": "longest source in training, in digits or words",
        "lengths": "copy: lengths tested; translate: the first of each group",
        "learning_rates": "peaks; the best of several is used for all seeds",
        "hidden_dim": "units of a GRU, and width of a Transformer",
    }
    for name, text in by_task.items():
        example = DEFAULTS["copy"][name]
        is_list = isinstance(example, list)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(example[0] if is_list else example),
            nargs="+" if is_list else None,
            help=f"{text}; of copy and translate, by default: "
            + " and ".join(str(each[name]) for each in DEFAULTS.values()),
        )
    tiny = {"seeds": 1, "steps": 4, "epochs": 1, "batch_size": 8, "tested": 3}
    tiny |= {"longest": 4, "lengths": [2, 4, 6], "hidden_dim": 8}
    tiny |= {"vocabulary_size": 97, "limit": 60, "learning_rates": [1e-3]}
    arguments = script_arguments.parse(parser, **tiny)
    for name in by_task:
        if getattr(arguments, name) is None:
            setattr(arguments, name, DEFAULTS[arguments.task][name])
    lengths = sorted(set(arguments.lengths))
    if len(lengths) < 2 or not 1 <= lengths[0] <= arguments.longest:
        raise SystemExit(
            "--lengths needs two or more lengths, the first from 1 to --longest"
        )
    arguments.lengths = lengths
    return arguments


def compared_models(arguments):
    """Name in the registry and arguments of each model, by its name in the picture."""
    width = arguments.hidden_dim
    if arguments.compare == "attention":
        sizes = {"hidden_dim": width, "maxout_dim": width // 2}
        sizes["embedding_dim"] = width // 2
        with_attention = {**sizes, "attention_dim": width}
        return {
            "RNNsearch (attention)": ("rnnsearch_50", with_attention),
            "RNNencdec (fixed context)": ("rnnencdec_50", sizes),
        }
    blocks = {"hidden_dim": width, "mlp_dim": 4 * width, "num_heads": HEADS}
    blocks |= {"num_layers": LAYERS, "dropout": 0.0}
    return {
        f"{positions}, {word}": (
            "transformer_base",
            {**blocks, "positions": positions, "combine": combine},
        )
        for positions in ("sinusoidal", "learned")
        for combine, word in (("add", "added"), ("concatenate", "concatenated"))
    }


def create(name, options, vocabulary_size, max_length):
    """A model by its name in the registry, with one vocabulary for both sides."""
    if name == "transformer_base":
        sizes = {"vocabulary_size": vocabulary_size}
        if options["positions"] == "learned":
            sizes["max_sequence_length"] = max_length
    else:
        sides = ("source", "target")
        sizes = {f"{side}_vocabulary_size": vocabulary_size for side in sides}
    return models.create(name, **options, **sizes)


def copy_examples(lengths, width, rng):
    """Inputs, labels and weights of sequences of digits, padded to `width`.

    Args:
        lengths: Number of digits of each sequence, (B,).
        width: Width of the inputs; the labels, digits and end, are (B, `width` + 1).
        rng: Generator of random numbers.
    """
    is_digit = np.arange(width) < np.asarray(lengths)[:, None]
    digits = rng.integers(ZERO, ZERO + DIGITS, is_digit.shape)
    digits = np.where(is_digit, digits, PAD).astype("int32")
    labels = np.pad(digits, [(0, 0), (0, 1)])
    labels[np.arange(len(labels)), lengths] = END
    inputs = {
        "token_ids": digits,
        "padding_mask": is_digit.astype("int32"),
        "decoder_token_ids": np.pad(digits, [(0, 0), (1, 0)], constant_values=START),
    }
    return inputs, labels, (labels != PAD).astype("float32")


class Copying:
    """Random digits, to be repeated in their order."""

    score_name, length_name = "digits right (%), decoded greedily", "length in digits"
    chance = 100 / DIGITS

    def __init__(self, arguments):
        self.arguments = arguments
        self.lengths = arguments.lengths
        # A target has a start and an end besides its digits.
        self.max_length = max(arguments.longest, *self.lengths) + 2

    def train(self, name, options, rate, seed, folder):
        """A trained model; every batch is new. A run is too short to be resumed."""
        del folder
        arguments = self.arguments
        steps, batch_size = arguments.steps, arguments.batch_size
        keras.utils.set_random_seed(seed)
        model = create(name, options, ZERO + DIGITS, self.max_length)
        rng = np.random.default_rng([seed, 1])
        lengths = rng.integers(1, arguments.longest + 1, steps * batch_size)
        inputs, labels, weights = copy_examples(lengths, arguments.longest, rng)
        schedule = CosineWarmup(rate, steps // 20, steps)
        model.compile(
            keras.optimizers.Adam(schedule, global_clipnorm=1.0),
            SmoothedCrossEntropy(),
            jit_compile=False,
        )
        model.fit(
            *(inputs, labels),
            sample_weight=weights,
            batch_size=batch_size,
            shuffle=False,
            verbose=0,
        )
        return model

    def scores(self, model):
        """Per cent of the digits that are right, at each length."""
        return self._scores(model, self.lengths, [0, 2])

    def tuning_score(self, model):
        """The mean score of other sequences, of no more digits than in training."""
        longest = self.arguments.longest
        lengths = [n for n in self.lengths if n < longest] + [longest]
        return float(np.mean(self._scores(model, lengths, [1, 2])))

    def _scores(self, model, lengths, seed):
        # The same sequences for all models; others to choose a learning rate.
        rng, width = np.random.default_rng(seed), max(lengths)
        each = np.repeat(lengths, self.arguments.tested)
        inputs, labels, _ = copy_examples(each, width, rng)
        del inputs["decoder_token_ids"]
        found = generate(
            model, inputs, width + 1, start_token_id=START, end_token_id=END
        ).token_ids
        is_right = (found == labels)[:, :width] & (inputs["padding_mask"] == 1)
        share = is_right.sum(1) / each
        return (100 * share.reshape(len(lengths), -1).mean(1)).tolist()


class Translating:
    """Captions of Multi30k, English to German."""

    score_name = "BLEU, decoded greedily"
    length_name = "words of the source (mean of each group of captions)"
    chance = None
    max_length = 50  # Subwords.

    def __init__(self, arguments):
        self.arguments = arguments
        pairs, tested = (
            list(zip(*load_multi30k(arguments.data_dir, split), strict=True))
            for split in ("train", "val")
        )
        pairs = [x for x in pairs if words_of(x) <= arguments.longest]
        pairs = pairs[: arguments.limit]
        count = min(500, len(pairs) // 10)
        # Learning rates are chosen by captions that are not trained on.
        self.training, self.tuning = pairs[:-count], pairs[-count:]
        first = np.array(arguments.lengths)
        group_of = np.searchsorted(first, [words_of(x) for x in tested], "right")
        groups = [
            [pair for pair, group in zip(tested, group_of, strict=True) if group == n]
            for n in range(1, len(first) + 1)
        ]
        self.groups = [group for group in groups if group]
        if len(self.groups) < 2 or not self.tuning:
            raise SystemExit("--lengths and --longest leave too few captions")
        self.lengths = [
            round(float(np.mean([words_of(pair) for pair in group])), 1)
            for group in self.groups
        ]
        self.tokenizer = SubwordTokenizer.train(
            [text for pair in self.training for text in pair],
            vocabulary_size=arguments.vocabulary_size,
        )

    def train(self, name, options, rate, seed, folder):
        """A trained translator, whose run goes on after its last epoch in `folder`."""
        arguments = self.arguments
        keras.utils.set_random_seed(seed)
        size = self.tokenizer.vocabulary_size
        # A target begins with a start token.
        model = create(name, options, size, self.max_length + 1)
        tokenizers = (self.tokenizer, self.tokenizer)
        translator = Translator(model, *tokenizers, max_length=self.max_length)
        steps = arguments.epochs * len(self.training) // arguments.batch_size
        fit_translator(
            translator,
            sides_of(self.training),
            sides_of(self.tuning),
            folder,
            epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            learning_rate=rate,
            warmup_steps=steps // 20,
            score=bleu,
            score_name="bleu",
            num_scored=50,
            num_drawn=0,
            seed=seed,
            verbose=2,
        )
        return translator

    def scores(self, translator):
        """BLEU of each group of captions."""
        return [self._bleu(translator, group) for group in self.groups]

    def tuning_score(self, translator):
        """BLEU of captions that are not longer than those of training."""
        return self._bleu(translator, self.tuning)

    def _bleu(self, translator, pairs):
        sources, references = sides_of(pairs)
        return bleu(translator.translate(sources), references)


def words_of(pair):
    """The number of words of a source."""
    return len(pair[0].split())


def sides_of(pairs):
    """Sources and targets, two lists."""
    return [source for source, _ in pairs], [target for _, target in pairs]


def measure(arguments):
    """Trains and tests all models, and returns the content of `results.json`."""
    tasks = {"copy": Copying, "translate": Translating}
    task = tasks[arguments.task](arguments)
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    results = {}
    for label, (name, options) in compared_models(arguments).items():
        run = functools.partial(measured_run, task, label, name, options)
        rates, tried = arguments.learning_rates, {}
        if len(rates) > 1:
            # A seed that is not reported.
            for each in rates:
                tried[f"{each:g}"] = run(each, seeds.stop, "tuning_score")["score"]
        rate = float(max(tried, key=tried.__getitem__)) if tried else rates[0]
        runs = [run(rate, seed, "scores") for seed in seeds]
        results[label] = {
            "parameters": runs[0]["parameters"],
            "learning_rate": rate,
            "tried": tried,
            "cpu_seconds": [found["cpu_seconds"] for found in runs],
            "scores": [found["score"] for found in runs],
        }
    return {
        **script_arguments.provenance(),
        "task": arguments.task,
        "compare": arguments.compare,
        "seeds": list(seeds),
        **script_arguments.selected(arguments, "steps", "epochs", "batch_size"),
        "trained_length": arguments.longest,
        "lengths": task.lengths,
        "length_name": task.length_name,
        "score_name": task.score_name,
        "chance": task.chance,
        "models": results,
    }


def measured_run(task, label, name, options, rate, seed, key):
    """Trains and tests one model, unless its figures are in the run folder.

    `key` is the method that tests it, `"scores"` or `"tuning_score"`.
    """
    settings = script_arguments.selected(task.arguments, *SETTINGS)
    place = f"{task.arguments.task}_{label}_{rate:g}_{seed}".replace(" ", "_")
    folder = task.arguments.run_dir / place
    about, path = folder / "settings.json", folder / f"{key}.json"
    if about.is_file() and json.loads(about.read_text("utf-8")) != settings:
        shutil.rmtree(folder)  # A translator would go on from its backup.
    if path.is_file():
        return json.loads(path.read_text("utf-8"))
    write_json(about, settings)
    start = time.process_time()
    trained = task.train(name, options, rate, seed, folder)
    found = {
        "parameters": getattr(trained, "model", trained).count_params(),
        "cpu_seconds": round(time.process_time() - start),
        "score": np.round(getattr(task, key)(trained), 2).tolist(),
    }
    write_json(path, found)
    print(
        f"{label}, rate {rate:g}, seed {seed}: {key} {found['score']}, "
        f"{found['cpu_seconds']} s of CPU",
        flush=True,
    )
    return found


def write_json(path, content):
    """Writes a file of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def print_table(results):
    """Prints mean, smallest and largest score of each model at each length."""
    print(f"\n{results['score_name']}; mean (smallest to largest) of all seeds")
    names = list(results["models"])
    print("| length | " + " | ".join(names) + " |")
    print("|---" * (1 + len(names)) + "|")
    for column, length in enumerate(results["lengths"]):
        cells = []
        for name in names:
            runs = [row[column] for row in results["models"][name]["scores"]]
            cells.append(f"{np.mean(runs):.1f} ({min(runs):.1f} to {max(runs):.1f})")
        print(f"| {length:g} | " + " | ".join(cells) + " |")


def findings(results):
    """The text under the picture: the scores at the trained length and beyond."""
    lengths, limit = np.array(results["lengths"]), results["trained_length"]
    known, last = max(0, int(np.sum(lengths <= limit)) - 1), len(lengths) - 1
    text = []
    for column in dict.fromkeys((known, last)):
        means = [
            f"{name} {np.mean([row[column] for row in model['scores']]):.0f}"
            for name, model in results["models"].items()
        ]
        text.append(f"At length {lengths[column]:g}: {'; '.join(means)}.")
    if results["chance"] is not None:
        text.append(f"Guessing: {results['chance']:g}.")
    return " ".join(text)


def draw(results):
    """The picture of stored results."""
    title = f"{TITLES[results['task']]}: {TITLES[results['compare']]}"
    return viz.plot_scores_by_length(
        results["lengths"],
        {name: model["scores"] for name, model in results["models"].items()},
        **{x: results[x] for x in ("score_name", "length_name", "trained_length")},
        chance=results["chance"],
        note=findings(results),
        title=title,
    )


def main():
    """Trains and tests, or reads results, and draws them."""
    arguments = parse_arguments()
    folder = arguments.run_dir
    if arguments.results is None:
        results = measure(arguments)
        write_json(folder / "results.json", results)
    else:
        results = json.loads(arguments.results.read_text("utf-8"))
    print_table(results)
    print(findings(results))
    picture = folder / "scores_by_length.png"
    viz.save_figure(draw(results), picture)
    print(f"\nFigure: {picture}")


if __name__ == "__main__":
    main()
