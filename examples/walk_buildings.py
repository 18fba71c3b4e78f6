"""Listen, attend and walk (Mei et al. 2016) follows instructions through buildings.

    python examples/walk_buildings.py

Trains on the paths of Room-to-Room (Anderson et al. 2018) and follows the instructions
of its two validation splits, in buildings that training has seen and in others. A
walker sees no images, only the ways around it: how long and how steep they are, and
where it has been. Two models attend, an ensemble; a third has the mean of the words at
every step. Run again, it resumes.

Results on 2 cores of an AMD EPYC (AVX-512) that were busy with other work (a load of 6
to 13), one thread: 510,144 parameters each, 14,039 instructions of 61 buildings, 3
epochs in 735, 947 and 257 seconds; the last two epochs, when the load was lower, took
50 seconds each. A walk succeeds if it ends less than 3 m from the goal.

                                    seen, 1,021 instructions  unseen, 1,470 instructions
                                     success   SPL    error      success   SPL    error
    random walk                        9.1 %   7.3 %  9.63 m      11.3 %   9.3 %  9.11 m
    mean of the words, greedy         25.3 %  23.6 %  9.05 m      24.4 %  22.4 %  8.77 m
    mean of the words, beam of 4      18.5 %  17.5 % 10.15 m      20.4 %  18.7 %  9.76 m
    attention, greedy                 28.5 %  26.7 %  8.64 m      26.0 %  23.9 %  8.56 m
    attention, greedy, 2 models       28.8 %  27.1 %  8.63 m      25.9 %  23.8 %  8.58 m
    attention, beam of 4              21.1 %  20.0 %  9.78 m      21.4 %  19.6 %  9.50 m
    attention, beam of 4, 2 models    21.6 %  20.6 %  9.79 m      21.2 %  19.5 %  9.48 m

A random walk has as many steps as a path of the training set, and turns back only
where nothing else is left.
Attention is worth 3 points in seen buildings and under 2 in unseen ones, from one seed;
the second model adds nothing that could be told from noise. The beam is worse: it finds
likelier walks, and shorter ones are likelier (8.5 m instead of 9.4 to 9.7 m). In the
picture, "turn right and go up the stairs and stand at the top", attention moves from
"right" to "stairs" and "top".
"""

import json
import time

import cpu_settings  # noqa: F401  TensorFlow reads it when imported.
import keras
import numpy as np
from options import (
    add_data_dir,
    add_training_options,
    new_parser,
    parse_with_smoke,
)

from keras_attn import data, models, training, viz
from keras_attn.decoding import Beam, Greedy, walk

SPLITS = {"seen": "val_seen", "unseen": "val_unseen"}
MAX_STEPS = 15  # The longest path has 7 viewpoints.
SHOWN = 3


def parse_arguments():
    """Parses the command line."""
    parser = new_parser(__doc__, "runs/walks")
    content = "R2R_train.json, R2R_val_seen.json, R2R_val_unseen.json, connectivity/"
    add_data_dir(parser, "r2r", f"folder with {content}")
    parser.add_argument("--sectors", type=int, default=16, help="headings to choose")
    parser.add_argument("--width", type=int, default=96, help="units; paper: 100")
    parser.add_argument(
        "--min-count", type=int, default=5, help="of a word that the model knows"
    )
    parser.add_argument("--max-words", type=int, default=48, help="of an instruction")
    parser.add_argument("--members", type=int, default=2, help="of the ensemble")
    parser.add_argument("--beams", type=int, default=4, help="of the beam search")
    add_training_options(parser, epochs=3, batch_size=64, learning_rate=3e-3)
    tiny = {"epochs": 1, "batch_size": 2, "width": 5, "sectors": 6}
    tiny |= {"min_count": 1, "members": 1}
    return parse_with_smoke(parser, **tiny)


def read_splits(folder, min_count):
    """The training paths, and those of seen and of unseen buildings."""
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


def new_model(vocabulary_size, simulator, arguments, attends):
    """A model; one that does not attend averages all words alike at every step."""
    model = models.create(
        "listen_attend_walk",
        vocabulary_size=vocabulary_size,
        world_dim=simulator.world_dim,
        num_actions=simulator.num_actions,
        embedding_dim=arguments.width,
        hidden_dim=arguments.width,
        attention_dim=arguments.width,
        dropout=0.2,
    )
    if not attends:
        attention = model.get_layer("decoder").attention
        # Scores of 0 for every word, which training leaves as they are.
        attention.score_vector.assign(0 * attention.score_vector)
        attention.trainable = False
    return model


def fit(model, train, arguments, seed, folder, watch):
    """Path supervision: trains on the true actions, or resumes."""
    backup = training.BackupAndResume(folder / "backup", delete_checkpoint=False)
    dataset = data.walk_dataset(
        train,
        batch_size=arguments.batch_size,
        num_sectors=arguments.sectors,
        max_words=arguments.max_words,
        seed=seed,
        shuffle=True,
        epoch=backup.epoch,
    )
    steps = arguments.epochs * len(dataset)
    rate = training.CosineWarmup(arguments.learning_rate, steps // 20 + 1, steps + 1)
    model.compile(
        keras.optimizers.Adam(rate, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        jit_compile=False,
    )
    model.fit(
        dataset,
        epochs=arguments.epochs,
        shuffle=False,
        verbose=2,
        callbacks=[*watch, backup],
    )
    model.save(folder / "model.keras")


def random_walks(test, train, sectors, seed):
    """Walks of as many random steps as paths of the training set, never back."""
    rng = np.random.default_rng(seed)
    simulator = test.simulator(sectors)
    lengths = [len(each.path) - 1 for each in train.examples]
    walks = []
    for state, steps in zip(
        simulator.start(), rng.choice(lengths, len(test)), strict=True
    ):
        for _ in range(steps):
            neighbors = state.building.neighbors[state.path[-1]]
            forward = [each for each in neighbors if each not in state.path[-2:]]
            if not (forward or neighbors):
                break
            there = int(rng.choice(forward or neighbors))
            (state,) = simulator.move([state], [simulator.action_to(state, there)])
        walks.append(state)
    return walks


def follow(members, test, arguments, strategy):
    """The walks of models that were given the instructions of a test."""
    texts = test.encode(each.instruction for each in test.examples)
    inputs = {name: value[:, : arguments.max_words] for name, value in texts.items()}
    simulator = test.simulator(arguments.sectors)
    return inputs, walk(members, inputs, simulator, MAX_STEPS, strategy=strategy)


def report(name, walks, test, seconds=None):
    """Prints and returns the scores of walks."""
    scores = training.navigation_scores(walks, test.examples)
    took = "" if seconds is None else f"  {seconds:.0f} s"
    print(
        f"{name:<34} success {100 * scores['success']:5.1f} %  "
        f"SPL {100 * scores['spl']:5.1f} %  "
        f"error {scores['navigation_error']:5.2f} m  "
        f"length {scores['path_length']:5.2f} m{took}",
        flush=True,
    )
    return scores


def picture_of(model, test, arguments, path):
    """Draws one walk to the goal, and its attention."""
    inputs, walked = follow(model, test, arguments, Greedy())
    reached = [
        row
        for row, (state, example) in enumerate(
            zip(walked.walks, test.examples, strict=True)
        )
        if state.path == example.path
    ]
    row = reached[0] if reached else 0
    seen = {name: value[row : row + 1] for name, value in inputs.items()}
    seen["world_state"] = walked.world_states[row : row + 1]
    (scores,) = viz.capture_attention(model, seen).values()
    example = test.examples[row]
    words = [
        test.words[number - 2] if number > 1 else "?" for number in seen["token_ids"][0]
    ]
    count = int(seen["padding_mask"].sum())
    figure = viz.plot_walk(
        example.building,
        example.path,
        walked.walks[row].path,
        words[:count],
        scores[0],
        title=f"{example.building.name}, path {example.path_id}",
    )
    viz.save_figure(figure, path)


def main():
    """Trains with attention and without, and follows the instructions of two splits."""
    arguments = parse_arguments()
    train, tests = read_splits(arguments.data_dir, arguments.min_count)
    for name, split in {"train": train, **tests}.items():
        buildings = {each.building.name for each in split.examples}
        print(f"{name}: {len(split)} instructions, {len(buildings)} buildings")
    simulator = train.simulator(arguments.sectors)

    shown = tests["unseen"].examples[:SHOWN]
    inputs = tests["unseen"].encode(each.instruction for each in shown)
    inputs = {name: value[:, : arguments.max_words] for name, value in inputs.items()}
    starts = data.WalkSimulator([each.start for each in shown], arguments.sectors)
    words = [
        [train.words[number - 2] if number > 1 else "?" for number in row[row > 0]]
        for row in inputs["token_ids"]
    ]
    members = {"with attention": [], "mean of the words": []}
    for kind, made in members.items():
        for number in range(arguments.members if kind == "with attention" else 1):
            keras.utils.set_random_seed(arguments.seed + number)
            attends = kind == "with attention"
            model = new_model(train.vocabulary_size, simulator, arguments, attends)
            folder = arguments.run_dir / f"{kind.replace(' ', '_')}_{number}"
            print(f"\n{kind}: {model.count_params():,} parameters", flush=True)
            watch = [
                keras.callbacks.TensorBoard(folder),
                viz.callbacks.WalkAttentionMaps(
                    folder,
                    inputs,
                    words,
                    shown,
                    lambda model: walk(model, inputs, starts, MAX_STEPS),
                ),
            ]
            began = time.monotonic()
            fit(model, train, arguments, arguments.seed + number, folder, watch)
            print(f"{time.monotonic() - began:.0f} seconds", flush=True)
            made.append(model)

    results = {}
    for name, test in tests.items():
        print(f"\n{name} buildings, {len(test)} instructions")
        walks = random_walks(test, train, arguments.sectors, arguments.seed)
        results[f"{name}, random"] = report("random walk", walks, test)
        stand = test.simulator(arguments.sectors).start()
        results[f"{name}, at the start"] = report("standing still", stand, test)
        for kind, made in members.items():
            for strategy in (Greedy(), Beam(arguments.beams)):
                chosen = [made[:1]] if len(made) == 1 else [made[:1], made]
                for group in chosen:
                    began = time.monotonic()
                    _, walked = follow(group, test, arguments, strategy)
                    label = f"{kind}, {type(strategy).__name__.lower()}"
                    label += f" of {len(group)}" if len(group) > 1 else ""
                    seconds = time.monotonic() - began
                    results[f"{name}, {label}"] = report(
                        label, walked.walks, test, seconds
                    )
    (arguments.run_dir / "scores.json").write_text(json.dumps(results, indent=1))
    picture = arguments.run_dir / "walk.png"
    picture_of(members["with attention"][0], tests["unseen"], arguments, picture)
    print(f"\nA walk: {picture}; tensorboard --logdir {arguments.run_dir}")


if __name__ == "__main__":
    main()
