"""Listen, attend and walk (Mei et al. 2016) follows instructions through buildings.

    python examples/walk_buildings.py

Trains on the paths of Room-to-Room (Anderson et al. 2018) and follows the instructions
of its two validation splits, in buildings that training has seen and in others. A
walker sees no images, only the ways around it: how long and how steep they are, and
where it has been. With "odometry" it also knows how far it has turned since the start,
its steps and meters; with "look_ahead" the number of ways at each neighbor, too, which
is to see one step ahead. Half of the models attend to the words; the others, the same
in all else, have their mean at every step. Run again, it resumes.

Results with one thread of an AMD EPYC (AVX-512, no AMX), beside other work: 4 epochs
over 14,039 instructions of 61 buildings, 56 to 62 seconds of CPU time for each of the
twelve models. A walk succeeds if it ends less than 3 m from the goal. Means and
standard deviations of three seeds, and an ensemble of all three:

                              seen, 1,021 instructions   unseen, 1,470 instructions
                               success     SPL    error       success     SPL    error
    random walk                 9.1        7.3 %  9.6 m       11.3        9.3 %  9.1 m
    odometry
      mean of the words        26.0 ± 0.7 24.3 %  8.9 m       25.1 ± 0.8 23.0 %  8.7 m
      attention                27.8 ± 0.3 26.0 %  8.5 m       27.1 ± 0.1 24.9 %  8.5 m
      attention, 3 models      28.6       26.7 %  8.4 m       28.0       25.6 %  8.4 m
      the same, beam of 4      21.8       20.5 %  9.6 m       22.6       20.9 %  9.3 m
    look_ahead
      mean of the words        26.1 ± 0.3 24.2 %  8.9 m       27.1 ± 1.6 25.0 %  8.7 m
      attention                29.8 ± 0.2 27.7 %  8.4 m       29.3 ± 0.4 26.9 %  8.3 m
      attention, 3 models      29.9       27.7 %  8.4 m       30.1       27.8 %  8.3 m
      the same, beam of 4      21.7       20.5 %  9.8 m       24.5       22.7 %  9.0 m

A random walk has as many steps as a path of the training set, and turns back only where
nothing else is left. Attention is worth 1.8 points in seen buildings and 2.0 in unseen
ones, more than the spread of the seeds; with "look_ahead" 3.7 and 2.2, the latter
hardly more than the spread of the models without it. Looking ahead adds 2 points to
models that attend. More models add a point at most, and the beam is worse: it finds
likelier walks, which are shorter. The training loss still fell in the last epoch.
"""

import json
import time

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np

from keras_attn import data, metrics, models, training, viz
from keras_attn.decoding import Beam, Greedy, walk

SPLITS = {"seen": "val_seen", "unseen": "val_unseen"}
# What a walker knows in addition to the ways around it; see `data.WalkSimulator`.
WORLDS = {
    "ways": {},
    "odometry": {"odometry": True},
    "look_ahead": {"odometry": True, "look_ahead": True},
}
KINDS = ("attention", "mean")  # How each step weighs the words.
MAX_STEPS = 15  # The longest path has 7 viewpoints.
SHOWN = 3


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/walks")
    content = "R2R_train.json, R2R_val_seen.json, R2R_val_unseen.json, connectivity/"
    script_arguments.add_data_dir(parser, "r2r", f"folder with {content}")
    parser.add_argument("--sectors", type=int, default=16, help="number of headings")
    parser.add_argument("--width", type=int, default=96, help="units; paper: 100")
    parser.add_argument(
        "--min-count",
        type=int,
        default=5,
        help="minimum count of a word in the vocabulary",
    )
    parser.add_argument(
        "--max-words", type=int, default=48, help="maximum words of an instruction"
    )
    parser.add_argument(
        "--worlds",
        nargs="+",
        choices=WORLDS,
        default=["odometry", "look_ahead"],
        help="what a walker knows",
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="number of seeds, counted from --seed"
    )
    parser.add_argument("--beams", type=int, default=4, help="size of the beam")
    script_arguments.add_training_options(
        parser, epochs=4, batch_size=128, learning_rate=3e-3
    )
    tiny = {"epochs": 1, "batch_size": 2, "width": 5, "sectors": 6}
    tiny |= {"min_count": 1, "seeds": 2}
    return script_arguments.parse(parser, **tiny)


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


def new_model(vocabulary_size, simulator, arguments, kind):
    """A model of one of `KINDS`; everything else is equal."""
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
    if kind == "mean":
        attention = model.get_layer("decoder").attention
        # The score of every word is 0, and training does not change it.
        attention.score_vector.assign(0 * attention.score_vector)
        attention.trainable = False
    return model


def fit(model, train, world, arguments, seed, folder, watch):
    """Path supervision: trains on the true actions, or resumes.

    Returns:
        Seconds of CPU time.
    """
    began = time.process_time()
    backup = training.BackupAndResume(folder / "backup", delete_checkpoint=False)
    dataset = data.walk_dataset(
        train,
        batch_size=arguments.batch_size,
        num_sectors=arguments.sectors,
        max_words=arguments.max_words,
        **WORLDS[world],
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
    return time.process_time() - began


def random_walks(test, train, sectors, seed):
    """Random walks as long as the training paths; they turn back at dead ends only."""
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


def instructions_of(examples, data_set, arguments):
    """The words of instructions, as inputs."""
    texts = data_set.encode(each.instruction for each in examples)
    return {name: value[:, : arguments.max_words] for name, value in texts.items()}


def follow(members, test, world, arguments, strategy):
    """The walks of models that follow the instructions of a test."""
    inputs = instructions_of(test.examples, test, arguments)
    simulator = test.simulator(arguments.sectors, **WORLDS[world])
    return inputs, walk(members, inputs, simulator, MAX_STEPS, strategy=strategy)


def report(name, runs):
    """Prints mean and standard deviation of the scores of one or several runs."""

    def told(figure, scale, unit):
        values = [scale * scores[figure] for scores in runs]
        spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        return f"{np.mean(values):5.1f}{spread} {unit}"

    print(
        f"{name:<34} success {told('success', 100, '%')}  "
        f"SPL {told('spl', 100, '%')}  error {told('navigation_error', 1, 'm')}  "
        f"length {told('path_length', 1, 'm')}",
        flush=True,
    )


def picture_of(model, test, world, arguments, path):
    """Draws one walk along the true path, and its attention."""
    inputs, walked = follow(model, test, world, arguments, Greedy())
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


def train_all(train, shown_test, arguments):
    """Trains the models of every world, kind and seed.

    Args:
        train: The training paths.
        shown_test: A split of which a few walks are drawn after each epoch.
        arguments: Command-line arguments.

    Returns:
        Lists of models, by world and kind.
    """
    shown = shown_test.examples[:SHOWN]
    inputs = instructions_of(shown, shown_test, arguments)
    words = [
        [train.words[number - 2] if number > 1 else "?" for number in row[row > 0]]
        for row in inputs["token_ids"]
    ]
    members = {(world, kind): [] for world in arguments.worlds for kind in KINDS}
    # Seed by seed, so that an interrupted run has models of all kinds.
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        for (world, kind), made in members.items():
            keras.utils.set_random_seed(seed)
            starts = data.WalkSimulator(
                [each.start for each in shown], arguments.sectors, **WORLDS[world]
            )
            model = new_model(train.vocabulary_size, starts, arguments, kind)
            folder = arguments.run_dir / f"{world}_{kind}_{seed}"
            print(f"\n{folder.name}: {model.count_params():,} parameters", flush=True)
            watch = [
                keras.callbacks.TensorBoard(folder, write_graph=False),
                viz.callbacks.WalkAttentionMaps(
                    folder,
                    inputs,
                    words,
                    shown,
                    lambda model, starts=starts: walk(model, inputs, starts, MAX_STEPS),
                ),
            ]
            seconds = fit(model, train, world, arguments, seed, folder, watch)
            print(f"{seconds:.0f} seconds of CPU time", flush=True)
            made.append(model)
    return members


def main():
    """Trains with and without attention, and follows the instructions of two splits."""
    arguments = parse_arguments()
    train, tests = read_splits(arguments.data_dir, arguments.min_count)
    for name, split in {"train": train, **tests}.items():
        buildings = {each.building.name for each in split.examples}
        print(f"{name}: {len(split)} instructions, {len(buildings)} buildings")
    members = train_all(train, tests["unseen"], arguments)
    results = {}
    for name, test in tests.items():
        print(f"\n{name} buildings, {len(test)} instructions")

        def score(label, *all_walks, name=name, test=test):
            runs = [
                metrics.navigation_scores(walks, test.examples) for walks in all_walks
            ]
            report(label, runs)
            results[f"{name}, {label}"] = runs

        score("random walk", random_walks(test, train, arguments.sectors, 0))
        score("standing still", test.simulator(arguments.sectors).start())
        for (world, kind), made in members.items():
            label = f"{world}, {kind}"
            walked = [
                follow(model, test, world, arguments, Greedy())[1].walks
                for model in made
            ]
            score(label, *walked)
            if kind == "attention":
                for strategy in (Greedy(), Beam(arguments.beams)):
                    _, found = follow(made, test, world, arguments, strategy)
                    beam = f", beam of {strategy.num_beams}" * strategy.revises
                    score(f"{label}, {len(made)} models{beam}", found.walks)
    (arguments.run_dir / "scores.json").write_text(json.dumps(results, indent=1))
    picture, world = arguments.run_dir / "walk.png", arguments.worlds[0]
    model = members[world, "attention"][0]
    picture_of(model, tests["unseen"], world, arguments, picture)
    print(f"\nA walk: {picture}; tensorboard --logdir {arguments.run_dir}")


if __name__ == "__main__":
    main()
