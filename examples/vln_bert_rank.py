"""VLN-BERT, the last stage: it ranks paths, and chooses among the walks of a follower.

    python examples/walk_buildings.py --worlds look_ahead
    python examples/vln_bert_rank.py --world ways

    python examples/shape_detector.py
    python examples/vln_bert_captions.py
    python examples/vln_bert_rank.py --world pictures

"ways": a follower (`walk_buildings.py`, "look_ahead") finds up to 30 walks for each
instruction by beam search. VLN-BERT, and a scorer that knows the words of an
instruction and the regions of a path but no order of either, learn to tell walks that
reach the goal from those that don't, from the same candidates, and choose one of the
walks of the validation splits. An ensemble adds the logarithm of a scorer's softmax to
the follower's own score, times a weight that is chosen in seen buildings: of an
ensemble only the column "unseen" is held out. The regions of a viewpoint are the ways
from it (`data.way_regions`).

"pictures": does it help to learn from pictures with captions first? The buildings and
paths are the same, but a picture of colored shapes hangs at each viewpoint, and an
instruction names one object of each picture on the path, as in "start at the small red
circle then pass the large blue star and stop at the large green ring". Regions are what
the detector of `shape_detector.py` finds. Candidates are the true path and random walks
from its start. Options of training are made from the true paths. "captions" starts from
`vln_bert_captions.py`, "none" from random weights; both then learn masked words and
regions (stage 3, which `--masked-epochs 2` runs alone), and to rank, from a few
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
from dataclasses import dataclass
from pathlib import Path

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_attn import data, losses, metrics, models, training
from keras_attn.decoding import Beam, walk, walk_candidates
from keras_attn.viz import save_figure

WORLDS = ("ways", "pictures")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_TOKENS = 60
MAX_PATH = 8
NUM_REGIONS = 3  # Of a picture, at most.
# Number of the first; captions and the detector's images have smaller numbers.
PICTURES_OF_BUILDINGS = 2_000_000
VIEW = np.pi / 3  # Width and height of a picture, in radians.
SPLITS = {"seen": "val_seen", "unseen": "val_unseen"}
SENSE = "look_ahead"  # What the followers know; see `walk_buildings.py`.
FOLLOWER_STEPS = 15
MAX_WORDS = 48  # Of an instruction, for the followers.
WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)  # Of a scorer in an ensemble.
MAX_STEPS = MAX_PATH - 1
STARTS = {"ways": ("none", "masked"), "pictures": ("none", "captions")}
WALK_BATCH = 128


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/vln-bert/rank")
    content = "R2R_train.json, R2R_val_seen.json, R2R_val_unseen.json, connectivity/"
    script_arguments.add_data_dir(parser, "r2r", f"folder with {content}")
    parser.add_argument("--world", choices=WORLDS, default="ways", help="see above")
    parser.add_argument("--width", type=int, default=64, help="of both streams")
    parser.add_argument(
        "--layers",
        type=int,
        default=3,
        help="of the words; at most one less of regions",
    )
    parser.add_argument(
        "--detector",
        type=Path,
        default=Path("runs/shape-detector/model.keras"),
        help="in pictures: the detector that shape_detector.py writes",
    )
    parser.add_argument(
        "--captions",
        type=Path,
        default=Path("runs/vln-bert/captions"),
        help="in pictures: the folder that vln_bert_captions.py writes",
    )
    parser.add_argument(
        "--followers",
        type=Path,
        default=Path("runs/walks"),
        help="in ways: the folder that walk_buildings.py writes",
    )
    parser.add_argument(
        "--sectors", type=int, default=16, help="headings of the followers"
    )
    parser.add_argument("--min-count", type=int, default=5, help="of a word")
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
    parser.add_argument(
        "--masked-epochs",
        type=int,
        help="only stage 3, for so many epochs, and how well it predicts",
    )
    parser.add_argument("--batch-size", type=int, default=16, help="examples per step")
    parser.add_argument(
        "--learning-rate", type=float, default=5e-4, help="peak learning rate"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    tiny = {"seeds": 1, "beams": 4, "instructions": [4], "tests": 4, "updates": 2}
    tiny |= {"masked_updates": 1, "batch_size": 4, "width": 8, "layers": 1}
    arguments = script_arguments.parse(parser, **tiny, min_count=1, sectors=6)
    known = STARTS[arguments.world]
    arguments.starts = arguments.starts or known
    if not set(arguments.starts) <= set(known):
        parser.error(f"--starts in {arguments.world} must be of {', '.join(known)}")
    return arguments


@dataclass(frozen=True)
class World:
    """Instructions with their paths, and what is seen along them.

    Attributes:
        train: The training instructions.
        tests: Those in seen and in unseen buildings.
        paths: The regions along paths.
        tokenizer: Of the instructions, and in "pictures" of the captions, too.
    """

    train: data.WalkData
    tests: dict
    paths: data.PathRegions
    tokenizer: data.WordPieceTokenizer


def read_world(arguments):
    """Reads Room-to-Room, with ways or with pictures."""
    train, tests = read_splits(arguments.data_dir, arguments.min_count)
    splits = {"train": train, **tests}
    buildings = {
        each.building.name: each.building
        for split in splits.values()
        for each in split.examples
    }
    if arguments.world == "ways":
        regions = {name: data.way_regions(one) for name, one in buildings.items()}
        texts = [each.instruction for each in train.examples]
        tokenizer = data.WordPieceTokenizer.train(texts, vocabulary_size=2000)
        paths = data.PathRegions(regions, max_path_length=MAX_PATH)
        return World(train, tests, paths, tokenizer)
    path = script_arguments.written_by("shape_detector.py", arguments.detector)
    detector = keras.saving.load_model(path, compile=False)
    shapes = data.Shapes(image_size=64, num_objects=(1, 2), noise=8.0)
    pictures = data.hang_pictures(buildings.values(), shapes, PICTURES_OF_BUILDINGS)
    regions = {name: picture_regions(detector, x) for name, x in pictures.items()}
    splits = {
        name: data.picture_instructions(split, pictures)
        for name, split in splits.items()
    }
    tokenizer = data.WordPieceTokenizer([*SPECIAL, *data.instruction_words(shapes)])
    paths = data.PathRegions(regions, max_path_length=MAX_PATH)
    return World(splits.pop("train"), splits, paths, tokenizer)


def read_splits(folder, min_count):
    """The training paths, and the test paths in seen and in unseen buildings."""
    connectivity = folder / "connectivity"
    train = data.read_r2r(
        folder / "R2R_train.json", connectivity, min_word_count=min_count
    )
    tests = {
        name: data.read_r2r(
            folder / f"R2R_{split}.json", connectivity, words=train.words
        )
        for name, split in SPLITS.items()
    }
    return train, tests


def picture_regions(detector, pictures):
    """What a detector finds in pictures, each the only view from its viewpoint."""
    found = []
    for first in range(0, len(pictures), 100):
        images = np.stack([each.image for each in pictures[first : first + 100]])
        detected = data.detect_regions(detector, images, num_regions=NUM_REGIONS)
        found += data.view_regions(detected, VIEW)
    return found


def new_encoder(world, arguments, start=None):
    """A VLN-BERT.

    Args:
        world: From `read_world`.
        arguments: Command-line arguments.
        start: A ViLBERT whose layers of the same names lend their weights. None starts
            from random weights.
    """
    width, layers = arguments.width, arguments.layers
    co_attentions = max(layers - 1, 1)
    encoder = models.build_vln_bert(
        vocabulary_size=world.tokenizer.vocabulary_size,
        max_sequence_length=MAX_TOKENS,
        num_layers=layers,
        hidden_dim=width,
        num_heads=4,
        mlp_dim=2 * width,
        feature_dim=world.paths.feature_dim,
        region_dim=width,
        num_region_layers=co_attentions,
        num_region_heads=4,
        region_mlp_dim=2 * width,
        co_attention_dim=width,
        num_co_attention_heads=4,
        text_co_layers=tuple(range(layers - co_attentions, layers)),
        region_co_layers=tuple(range(co_attentions)),
        max_path_length=MAX_PATH,
    )
    if start is not None:
        lent = {layer.name: layer for layer in start.layers}
        for layer in encoder.layers:
            if layer.weights and layer.name in lent:
                layer.set_weights(lent[layer.name].get_weights())
    return encoder


def fit(model, make_dataset, folder, *, epochs, rate, loss, metrics=None):
    """Trains a model, or resumes.

    Args:
        model: The model.
        make_dataset: From the variable of the epoch to a dataset.
        folder: For the backup.
        epochs: Passes over the data.
        rate: Peak learning rate.
        loss: As of `compile`.
        metrics: As of `compile`.
    """
    backup = training.BackupAndResume(folder / "backup", delete_checkpoint=False)
    dataset = make_dataset(backup.epoch)
    steps = epochs * len(dataset)
    schedule = training.CosineWarmup(rate, steps // 10 + 1, steps + 2)
    model.compile(
        training.AdamW(schedule, weight_decay=0.01, clipnorm=1.0),
        loss,
        metrics=metrics,
        jit_compile=False,
    )
    return model.fit(
        dataset, epochs=epochs, shuffle=False, verbose=2, callbacks=[backup]
    )


def masked_batches(world, split, batch_size, seed, epoch, same_each_epoch=False):
    """Batches of instructions and true paths, with masked words and regions."""
    batches = data.path_pair_dataset(
        split,
        world.paths,
        world.tokenizer,
        batch_size=batch_size,
        max_length=MAX_TOKENS,
        seed=seed,
        shuffle=True,
        epoch=epoch,
    )
    pieces = list(world.tokenizer.pieces)
    masking = training.MaskedLMMasking(
        len(pieces),
        mask_token_id=pieces.index("[MASK]"),
        special_token_ids=[pieces.index(each) for each in SPECIAL],
    )
    batches = training.mask_pairs(
        batches,
        masking,
        seed=seed,
        epoch=epoch,
        same_each_epoch=same_each_epoch,
        mismatch_rate=0.0,  # All instructions belong to their paths.
    )

    def without_alignment(inputs, labels, weights):
        names = ("masked_lm", "masked_regions")
        parts = labels, weights
        return inputs, *({name: part[name] for name in names} for part in parts)

    return batches.map(without_alignment).prefetch(2)


def train_masked(encoder, world, train, arguments, seed, folder, epochs):
    """Stage 3: trains the encoder; its masked heads are left behind.

    Returns:
        The pre-trainer.
    """
    keras.utils.set_random_seed(seed)
    model = models.build_vln_bert_pretrainer(
        encoder, num_region_classes=world.paths.num_classes
    )
    # The score has no loss yet.
    outputs = {name: model.output[name] for name in ("masked_lm", "masked_regions")}
    model = keras.Model(model.input, outputs)
    fit(
        model,
        lambda epoch: masked_batches(world, train, arguments.batch_size, seed, epoch),
        folder,
        epochs=epochs,
        rate=arguments.learning_rate,
        loss={
            "masked_lm": keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            ),
            "masked_regions": losses.MaskedRegionLoss(),
        },
    )
    return model


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


def follower_path(arguments, seed):
    """The file of the follower of `walk_buildings.py` that was trained with a seed."""
    folder = arguments.followers / f"{SENSE}_attention_{seed}"
    return script_arguments.written_by("walk_buildings.py", folder / "model.keras")


def read_follower(arguments, seed):
    """The follower that was trained with a seed."""
    return keras.saving.load_model(follower_path(arguments, seed))


def simulator_of(split, arguments):
    """The walks of a split before the first step, as the follower knows them."""
    return split.simulator(arguments.sectors, odometry=True, look_ahead=True)


def instructions_of(split):
    """The words of instructions, as inputs of the follower."""
    texts = split.encode(each.instruction for each in split.examples)
    return {name: value[:, :MAX_WORDS] for name, value in texts.items()}


def candidates_of(follower, arguments, split, path):
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
            inputs = instructions_of(part)
            simulator = simulator_of(part, arguments)
            strategy = Beam(arguments.beams)
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
        follower = read_follower(arguments, seed)
        folder = arguments.run_dir / f"ways_{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        walks, _ = candidates_of(follower, arguments, train, folder / "train.json")
        keras.utils.set_random_seed(seed)
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
            name: candidates_of(follower, arguments, test, folder / f"{name}.json")
            for name, test in tests.items()
        }
        for name, test in tests.items():
            greedy = walk(
                follower,
                instructions_of(test),
                simulator_of(test, arguments),
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
        starts: dict = dict.fromkeys(arguments.starts)
        if "captions" in starts:
            path = script_arguments.written_by(
                "vln_bert_captions.py", arguments.captions / str(seed) / "model.keras"
            )
            starts["captions"] = keras.saving.load_model(path, compile=False)
        for count in arguments.instructions or (100, 1600):
            train = some(world.train, count, seed)
            keras.utils.set_random_seed(seed)
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


def run_masked(world, arguments):
    """Stage 3 alone: trains one model, and evaluates it on both validation splits."""
    seed = arguments.seed
    keras.utils.set_random_seed(seed)
    encoder = new_encoder(world, arguments)
    where, epochs = arguments.run_dir / f"masked_{seed}", arguments.masked_epochs
    model = train_masked(encoder, world, world.train, arguments, seed, where, epochs)
    for name, test in world.tests.items():
        batches = masked_batches(world, test, arguments.batch_size, 0, 0, True)
        found = model.evaluate(batches, return_dict=True, verbose=0)
        shown = ", ".join(f"{key} {value:.3f}" for key, value in found.items())
        print(f"{name} buildings: {shown}")


def main():
    """Runs all seeds of one world, and prints a table for each validation split."""
    arguments = parse_arguments()
    began = time.process_time()
    if arguments.world == "ways" and arguments.masked_epochs is None:
        follower_path(arguments, arguments.seed)  # Before minutes of reading.
    world = read_world(arguments)
    arguments.run_dir.mkdir(parents=True, exist_ok=True)
    if arguments.masked_epochs is not None:
        run_masked(world, arguments)
        return
    run = run_ways if arguments.world == "ways" else run_pictures
    results = run(world, arguments)
    for name, of_split in results.items():
        count = len(chosen_tests(world, arguments)[name])
        print(f"\n{name} buildings, {count} instructions")
        report(of_split)
    print(f"\n{time.process_time() - began:.0f} seconds of CPU time in this process")
    picture = arguments.run_dir / f"{arguments.world}.png"
    save_figure(plot_success(results), picture)
    print(f"Picture: {picture}")
    path = arguments.run_dir / f"{arguments.world}.json"
    path.write_text(json.dumps(results, indent=1, default=list), "utf-8")


if __name__ == "__main__":
    main()
