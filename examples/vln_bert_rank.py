"""VLN-BERT, the last stage: it ranks paths, and chooses among the walks of a follower.

    python examples/vln_bert_rank.py --world ways
    python examples/vln_bert_rank.py --world pictures

"ways": a follower (`walk_buildings.py`, "look_ahead") finds up to 30 walks for each
instruction by beam search. VLN-BERT, and a scorer that knows the words of an
instruction and the regions of a path but no order of either, learn to tell walks that
reach the goal from those that don't, from the same candidates, and choose one of the
walks of the validation splits. An ensemble adds the logarithm of a scorer's softmax to
the follower's own score, times a weight that is chosen in seen buildings: of an
ensemble only the column "unseen" is held out.

"pictures": does it help to learn from pictures with captions first? Candidates are the
true path and random walks from its start. Options of training are made from the true
paths. "captions" starts from `vln_bert_captions.py`, "none" from random weights; both
then learn masked words and regions (`vln_bert_paths.py`), and to rank, from a few
instructions or from many.

Results of "pictures", three seeds, on one thread of an AMD EPYC (AVX-512 and VNNI, no
AMX) with two cores, beside other work, about 25 minutes of CPU time a seed: 6,000
pictures with captions, 16 epochs; 100 steps of masked words and regions and 500 of
ranking, the same for both starts; 340 instructions in seen buildings and 400 in unseen
ones, with about 29 candidates each. Percent of instructions for which the chosen walk
ends less than 3 m from the goal (a random candidate: 15.2 and 15.9):

                                        seen          unseen
    100 instructions, bag of words   21.0 ± 3.6     21.3 ± 2.4
      VLN-BERT from nothing          16.6 ± 0.1     19.8 ± 1.3
      VLN-BERT from captions         60.9 ± 3.1     62.7 ± 8.1
    1,600, bag of words              19.2 ± 0.7     17.3 ± 0.5
      VLN-BERT from nothing          15.9 ± 2.3     17.8 ± 1.2
      VLN-BERT from captions         77.9 ± 8.2     75.3 ± 7.0

After pictures with captions 100 instructions are worth more than 1,600 without. But the
arms have unequal compute: 16 epochs of captions are some 6,000 updates more, and from
nothing VLN-BERT never begins to learn: its loss stays at that of a guess, as in the
first thousand steps with captions, before it falls. So this does not show whether it is
the captions that help, or the updates. As many steps of ranking alone are not tried.
The instructions are made up, and so are the candidates: a follower's walks are harder
to tell apart.

Results of "ways", three seeds, on the same processor, beside other work, about 16
minutes of CPU time a seed: 1,500 training instructions, 100 steps of masked words and
regions for "masked", 500 of ranking; 400 instructions of each kind of building, 30
candidates each:

                                        seen          unseen
    the follower, greedy             27.4 ± 1.0     29.6 ± 0.4
      best of its beam               21.9 ± 1.2     25.5 ± 1.1
    bag of words                     30.1 ± 2.1     29.2 ± 1.3
      with the follower              38.9 ± 3.1     37.0 ± 0.7
    VLN-BERT from nothing            37.7 ± 2.7     40.5 ± 2.2
      with the follower              39.9 ± 1.7     41.4 ± 2.7
    VLN-BERT from masked paths       37.1 ± 1.5     39.5 ± 3.4
      with the follower              39.7 ± 1.1     39.8 ± 1.8
    the best candidate               88.8 ± 1.0     88.5 ± 1.1

So ranking by VLN-BERT is worth 11 points over the follower in unseen buildings, and
more than a bag of words, which needs the follower's score to come within 4 points of
it. To VLN-BERT the follower's score adds little, and so does learning masked words and
regions of the same paths first: both are within the spread of the seeds.
"""

import json
import time
from types import SimpleNamespace

import cpu_settings  # noqa: F401  TensorFlow reads it when imported.
import keras
import numpy as np
from keras import ops
from matplotlib.figure import Figure
from options import add_training_options, new_parser, parse_with_smoke
from shape_regions import TINY_DETECTOR
from vln_bert_captions import train_captions
from vln_bert_paths import train_masked
from vln_bert_worlds import (
    MAX_PATH,
    MAX_TOKENS,
    add_world_options,
    fit,
    new_encoder,
    read_world,
)
from walk_buildings import MAX_STEPS as FOLLOWER_STEPS
from walk_buildings import WORLDS as SENSES
from walk_buildings import fit as fit_follower
from walk_buildings import instructions_of, new_model

from keras_attn import data, losses, metrics, models
from keras_attn.decoding import Beam, walk, walk_candidates
from keras_attn.viz import save_figure

SENSE = "look_ahead"
WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)  # Of a scorer in an ensemble.
MAX_STEPS = MAX_PATH - 1
STARTS = {"ways": ("none", "masked"), "pictures": ("none", "captions")}
WALK_BATCH = 128


def parse_arguments():
    """Parses the command line."""
    parser = new_parser(__doc__, "runs/vln-bert/rank")
    add_world_options(parser)
    parser.add_argument("--seeds", type=int, default=3, help="counted from --seed")
    parser.add_argument(
        "--starts",
        nargs="+",
        help="what VLN-BERT starts from: none, or masked (words and regions of paths) "
        "in ways, captions in pictures; by default both",
    )
    parser.add_argument("--beams", type=int, default=30, help="candidates")
    parser.add_argument(
        "--instructions",
        type=int,
        nargs="+",
        help="training instructions; by default 1500, in pictures 100 and 1600",
    )
    parser.add_argument(
        "--tests", type=int, default=400, help="instructions of each validation split"
    )
    parser.add_argument(
        "--updates", type=int, default=500, help="training steps, approximately"
    )
    parser.add_argument(
        "--masked-updates", type=int, default=100, help="steps of stage 3"
    )
    parser.add_argument("--pictures", type=int, default=6000, help="with captions")
    parser.add_argument(
        "--caption-learning-rate",
        type=float,
        default=1e-3,
        help="peak learning rate of stage 2",
    )
    add_training_options(parser, epochs=16, batch_size=16, learning_rate=5e-4)
    tiny = {"seeds": 1, "beams": 4, "instructions": [4], "tests": 4, "updates": 2}
    tiny |= {"masked_updates": 1, "pictures": 8, "epochs": 1, "batch_size": 4}
    tiny |= {"width": 8, "layers": 1, "min_count": 1}
    arguments = parse_with_smoke(parser, **tiny, **TINY_DETECTOR)
    known = STARTS[arguments.world]
    arguments.starts = arguments.starts or known
    if not set(arguments.starts) <= set(known):
        parser.error(f"--starts in {arguments.world} must be of {', '.join(known)}")
    return arguments


def some(split, count, seed):
    """A random selection of the instructions of a split."""
    order = np.random.default_rng(seed).permutation(len(split))[:count]
    return data.WalkData([split.examples[row] for row in order], split.words)


def bag_of_words_scorer(world, arguments):
    """A scorer for which words and regions have no order.

    `score = MLP([w, p, w * p])` of the mean w of the word vectors and the mean p of a
    layer of the numbers of each region.
    """
    width = 2 * arguments.width
    inputs = {
        "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
        "padding_mask": keras.Input((None,), dtype="int32", name="padding_mask"),
        "region_features": keras.Input(
            (None, world.paths.feature_dim), name="region_features"
        ),
        "region_boxes": keras.Input((None, 4), name="region_boxes"),
        "region_angles": keras.Input((None, 3), name="region_angles"),
        "region_padding_mask": keras.Input(
            (None,), dtype="int32", name="region_padding_mask"
        ),
    }

    def mean(vectors, mask):
        real = ops.cast(mask, "float32")[..., None]
        return ops.sum(vectors * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1.0)

    size = world.tokenizer.vocabulary_size
    vectors = keras.layers.Embedding(size, width)(inputs["token_ids"])
    words = mean(vectors, inputs["padding_mask"])
    angles = inputs["region_angles"]
    numbers = [inputs["region_features"], inputs["region_boxes"]]
    numbers = ops.concatenate([*numbers, ops.sin(angles), ops.cos(angles)], axis=-1)
    regions = keras.layers.Dense(width, activation="relu")(numbers)
    path = mean(regions, inputs["region_padding_mask"])
    words = keras.layers.Dropout(0.1)(keras.layers.Dense(width)(words))
    path = keras.layers.Dropout(0.1)(keras.layers.Dense(width)(path))
    both = ops.concatenate([words, path, words * path], axis=-1)
    hidden = keras.layers.Dense(width, activation="relu")(both)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden), name="bag_of_words")


def train_ranking(model, world, train, candidates, arguments, seed, folder):
    """Trains a scorer to tell a right path from three wrong ones, or resumes."""
    keras.utils.set_random_seed(seed)

    def batches(epoch):
        chosen = data.path_choice_dataset(
            train,
            world.paths,
            world.tokenizer,
            batch_size=arguments.batch_size,
            candidates=candidates,
            max_length=MAX_TOKENS,
            seed=seed,
            shuffle=True,
            epoch=epoch,
        )
        names = list(model.input)
        return chosen.map(
            lambda inputs, labels: ({name: inputs[name] for name in names}, labels)
        )

    epochs = -(-arguments.updates // len(batches(0)))
    fit(
        model,
        batches,
        folder,
        epochs=epochs,
        rate=arguments.learning_rate,
        loss=losses.ChoiceCrossEntropy(4),
        metrics=[metrics.ChoiceAccuracy(4)],
    )


def scores_of(model, world, test, candidates):
    """The log of the softmax over the candidates of each instruction."""
    texts = world.tokenizer.encode_batch(
        [each.instruction for each in test.examples], max_length=MAX_TOKENS
    )
    rows = [(row, walk) for row, walks in enumerate(candidates) for walk in walks]
    scores = []
    for first in range(0, len(rows), 512):
        part = rows[first : first + 512]
        inputs = {
            name: array[[row for row, _ in part]] for name, array in texts.items()
        }
        inputs |= world.paths.encode([walk for _, walk in part])
        inputs = {name: inputs[name] for name in model.input}
        scores.append(np.asarray(model.predict_on_batch(inputs))[:, 0])
    ends = np.cumsum([len(walks) for walks in candidates])[:-1]
    found = np.split(np.concatenate(scores), ends)
    return [each - np.logaddexp.reduce(each) for each in found]


def chosen(candidates, *scores):
    """The candidate of the largest sum of scores, for each instruction."""
    return [
        walks[int(np.argmax(np.sum(of_walks, axis=0)))]
        for walks, *of_walks in zip(candidates, *scores, strict=True)
    ]


def weighted(scores, weight):
    """Scores times a weight."""
    return [weight * each for each in scores]


def measured(walks, test):
    """Success and navigation error."""
    found = metrics.navigation_scores(walks, test.examples)
    return found["success"], found["navigation_error"]


def report(results):
    """Prints means and standard deviations over seeds, a line for each method."""
    for name, runs in results.items():
        success, error = np.array(runs).T
        print(
            f"{name:<44} success {100 * success.mean():5.1f} ± "
            f"{100 * success.std(ddof=min(1, len(runs) - 1)):.1f} %  "
            f"error {error.mean():5.2f} m"
        )


def plot_success(results):
    """A figure: the success of each method in seen and unseen buildings."""
    names = list(next(iter(results.values())))
    figure = Figure(figsize=(8, 1 + 0.4 * len(names)), dpi=100, layout="constrained")
    place = figure.subplots()
    for number, (split, of_split) in enumerate(results.items()):
        success = [100 * np.array(of_split[name])[:, 0] for name in names]
        mean, spread = ([f(x) for x in success] for f in (np.mean, np.std))
        rows = np.arange(len(names)) + 0.4 * number
        label = f"{split} buildings"
        place.barh(rows, mean, 0.4, xerr=spread, capsize=2, label=label)
    place.set(yticks=np.arange(len(names)) + 0.2, yticklabels=names)
    place.set_xlabel("% of instructions whose walk ends less than 3 m from the goal")
    place.invert_yaxis()
    place.legend()
    return figure


def trained_follower(world, arguments, seed):
    """The follower of `walk_buildings.py`, trained on all instructions, or loaded."""
    folder = arguments.run_dir / f"follower_{seed}"
    options = SimpleNamespace(**vars(arguments), sectors=16, max_words=48)
    options.width = 8 if arguments.smoke else 96
    options.batch_size, options.learning_rate = 128, 3e-3
    options.epochs = 1 if arguments.smoke else 4
    keras.utils.set_random_seed(seed)
    simulator = world.train.simulator(**SENSES[SENSE])
    model = new_model(world.train.vocabulary_size, simulator, options, "attention")
    if (folder / "model.keras").exists():
        return keras.saving.load_model(folder / "model.keras"), options
    fit_follower(model, world.train, SENSE, options, seed, folder, [])
    return model, options


def candidates_of(follower, options, split, path):
    """Walks and scores of a beam search, or those that `path` has.

    Returns:
        Two lists, for each instruction its walks and their scores.
    """
    if not path.exists():
        found = []
        for first in range(0, len(split), WALK_BATCH):
            part = data.WalkData(
                split.examples[first : first + WALK_BATCH], split.words
            )
            inputs = instructions_of(part.examples, part, options)
            simulator = part.simulator(**SENSES[SENSE])
            strategy = Beam(options.beams)
            found += walk_candidates(
                follower, inputs, simulator, MAX_STEPS, strategy=strategy
            )
        written = [
            [[list(map(int, each.walk.path)), each.score] for each in of_row]
            for of_row in found
        ]
        path.write_text(json.dumps(written), "utf-8")
    walks, scores = [], []
    for each, found in zip(split.examples, json.loads(path.read_text()), strict=True):
        walks.append(
            [data.Walk(each.building, tuple(p), each.heading) for p, _ in found]
        )
        scores.append(np.array([score for _, score in found]))
    return walks, scores


def run_ways(world, arguments):
    """Re-ranks the walks of a follower."""
    count = (arguments.instructions or [1500])[0]
    results = {name: {} for name in world.tests}
    tests = chosen_tests(world, arguments)
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        train = some(world.train, count, seed)
        follower, options = trained_follower(world, arguments, seed)
        folder = arguments.run_dir / f"ways_{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        walks, _ = candidates_of(follower, options, train, folder / "train.json")
        scorers = {"bag of words": bag_of_words_scorer(world, arguments)}
        for start in arguments.starts:
            keras.utils.set_random_seed(seed)
            encoder = new_encoder(world, arguments)
            if start == "masked":
                batches = -(-len(train) // arguments.batch_size)
                epochs = -(-arguments.masked_updates // batches)
                where = folder / "masked"
                train_masked(encoder, world, train, arguments, seed, where, epochs)
            scorers[f"VLN-BERT, start: {start}"] = models.build_vln_bert_scorer(encoder)
        beams = {
            name: candidates_of(follower, options, test, folder / f"{name}.json")
            for name, test in tests.items()
        }
        for name, test in tests.items():
            greedy = walk(
                follower,
                instructions_of(test.examples, test, options),
                test.simulator(**SENSES[SENSE]),
                FOLLOWER_STEPS,
            )
            add(results[name], "follower, greedy", measured(greedy.walks, test))
            found, own = beams[name]
            best = measured(chosen(found, own), test)
            add(results[name], "follower, best of the beam", best)
            nearness = [
                -each.building.distances(each.path[-1])[[x.path[-1] for x in of_row]]
                for each, of_row in zip(test.examples, found, strict=True)
            ]
            best = measured(chosen(found, nearness), test)
            add(results[name], "the best candidate (an oracle)", best)
        for label, model in scorers.items():
            began = time.process_time()
            where = folder / file_name(label)
            train_ranking(model, world, train, walks, arguments, seed, where)
            print(
                f"{label}: {time.process_time() - began:.0f} s of CPU time", flush=True
            )
            given = {
                split: scores_of(model, world, test, beams[split][0])
                for split, test in tests.items()
            }
            seen, own = beams["seen"]
            best = max(
                WEIGHTS,
                key=lambda w: measured(
                    chosen(seen, own, weighted(given["seen"], w)), tests["seen"]
                )[0],
            )
            for split, test in tests.items():
                found, own = beams[split]
                alone = chosen(found, given[split])
                both = chosen(found, own, weighted(given[split], best))
                add(results[split], label, measured(alone, test))
                add(results[split], f"follower + {label}", measured(both, test))
    return results


def chosen_tests(world, arguments):
    """The same instructions of both validation splits in all runs."""
    return {name: some(test, arguments.tests, 0) for name, test in world.tests.items()}


def file_name(label):
    """The name of a scorer as that of a folder."""
    return label.replace(" ", "_").replace(",", "").replace(":", "")


def add(results, name, figures):
    """Appends the figures of one run."""
    results.setdefault(name, []).append(figures)


def random_candidates(split, count, seed):
    """The true path among random walks from its start that visit nothing twice."""
    found = []
    for row, each in enumerate(split.examples):
        random = np.random.default_rng([seed, row])
        paths = [each.path]
        for _ in range(4 * count):
            path, steps = [each.path[0]], int(random.integers(4, 7))
            while len(path) <= steps:
                ways = [x for x in each.building.neighbors[path[-1]] if x not in path]
                if not ways:
                    break
                path.append(int(random.choice(ways)))
            if len(paths) < count and tuple(path) not in paths:
                paths.append(tuple(path))
        # A model whose scores are all equal must not find the true path.
        order = random.permutation(len(paths))
        walks = [data.Walk(each.building, paths[n], each.heading) for n in order]
        found.append(walks)
    return found


def run_pictures(world, arguments):
    """With and without captions, from a few instructions and from many."""
    results = {name: {} for name in world.tests}
    tests = chosen_tests(world, arguments)
    found = {
        name: random_candidates(test, arguments.beams, 0)
        for name, test in tests.items()
    }
    for name, test in tests.items():
        one_by_one = [
            measured([walk], data.WalkData([each], []))
            for each, walks in zip(test.examples, found[name], strict=True)
            for walk in walks
        ]
        add(results[name], "a random candidate", np.mean(one_by_one, axis=0))
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        folder = arguments.run_dir / f"pictures_{seed}"
        options = SimpleNamespace(**vars(arguments))
        options.batch_size = min(32, arguments.pictures // 2)
        options.learning_rate = arguments.caption_learning_rate
        starts: dict = dict.fromkeys(arguments.starts)
        if "captions" in starts:
            starts["captions"] = train_captions(options, seed, folder / "captions")
        for count in arguments.instructions or (100, 1600):
            train = some(world.train, count, seed)
            scorers = {"bag of words": bag_of_words_scorer(world, arguments)}
            for start, lent in starts.items():
                keras.utils.set_random_seed(seed)
                encoder = new_encoder(world, arguments, lent)
                batches = -(-len(train) // arguments.batch_size)
                epochs = -(-arguments.masked_updates // batches)
                where = folder / f"masked_{start}_{count}"
                train_masked(encoder, world, train, arguments, seed, where, epochs)
                scorers[f"VLN-BERT, start: {start}"] = models.build_vln_bert_scorer(
                    encoder
                )
            for label, model in scorers.items():
                where = folder / f"{file_name(label)}_{count}"
                train_ranking(model, world, train, None, arguments, seed, where)
                for split, test in tests.items():
                    given = scores_of(model, world, test, found[split])
                    figures = measured(chosen(found[split], given), test)
                    add(results[split], f"{count} instructions, {label}", figures)
                    print(split, count, label, figures, flush=True)
    return results


def main():
    """Runs all seeds of one world, and prints a table for each validation split."""
    arguments = parse_arguments()
    began = time.process_time()
    world = read_world(arguments)
    arguments.run_dir.mkdir(parents=True, exist_ok=True)
    run = run_ways if arguments.world == "ways" else run_pictures
    results = run(world, arguments)
    for name, of_split in results.items():
        count = len(chosen_tests(world, arguments)[name])
        print(f"\n{name} buildings, {count} instructions")
        report(of_split)
    print(f"\n{time.process_time() - began:.0f} seconds of CPU time in this process")
    figure = plot_success(results)
    save_figure(figure, arguments.run_dir / f"{arguments.world}.png")
    path = arguments.run_dir / f"{arguments.world}.json"
    path.write_text(json.dumps(results, indent=1, default=list), "utf-8")


if __name__ == "__main__":
    main()
