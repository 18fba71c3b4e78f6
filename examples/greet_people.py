"""A robot learns to greet people by trial and error, and where it looks meanwhile.

    python examples/greet_people.py

The robot has two cameras, of brightness and of distance, and four actions: to wait, to
look, to wave and to offer a handshake. Only a handshake with an offered hand is worth
something; see `data.SocialScene`. With every seed it plays, learns and is compared with
random actions and with the best, which are known in this scene. So is a "forgetful"
network, the same but for its LSTMs, which start from a zero state at every step. A run
that was killed continues where it was.

Results on an AMD EPYC (AVX-512, no AMX), one thread beside other work: 91,944
parameters, 1,500 updates on 968 episodes, 68 to 75 seconds of CPU time for each network
and seed. The mean sum of rewards of 50 greedy episodes after some epochs, over three
seeds:

            with memory                  forgetful
    epoch   mean  smallest  largest      mean  smallest  largest
        1  -0.01     -0.45     0.28      0.10     -0.21     0.30
        5   1.24      0.81     1.68      0.63      0.32     1.12
       10   1.72      1.57     1.86      1.21      1.14     1.24
       15   1.79      1.65     2.00      1.28      1.19     1.41
       20   1.80      1.65     2.03      1.31      1.25     1.37
       25   1.82      1.68     2.03      1.34      1.26     1.41

and of 300 test episodes: random actions -0.08, the best 2.03, with memory 1.85 (1.80 to
1.92), forgetful 1.39 (1.34 to 1.43). The best action depends on what is seen at the
moment alone, but one frame is not always enough to see it. Where the networks look in
episodes of the best actions, means of the three seeds: the area of a face turned to the
robot, or of an offered hand, as a share of the image, and the share of attention inside
of it; then the same with the 3 pixels around it.

                                               with memory     forgetful
    camera  of    frames  area  area near    inside   near   inside   near
    gray    face    1007  0.01       0.09      0.03   0.27     0.02   0.21
    gray    hand     557  0.01       0.09      0.07   0.35     0.05   0.30
    depth   face    1007  0.01       0.09      0.02   0.14     0.00   0.05
    depth   hand     557  0.01       0.09      0.04   0.24     0.02   0.16

The gray camera of the networks with memory looks near faces and hands three to four
times as much as chance, the depth camera near hands almost three times, and near faces
one and a half times: in depth a face hardly differs from the back of a head. At least
65% of the attention is elsewhere. A location of the map is 4 pixels wide and sees 18,
so one beside the hand sees it as well, and nothing in the rewards prefers the one on
it.
"""

import csv
import math
import time

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np

from keras_attn import data, metrics, models, training
from keras_attn.data.synthetic.social_scene import ACTIONS, FACING, OFFERING
from keras_attn.training.feedback.episodes import as_float
from keras_attn.viz import plot_interaction, save_figure
from keras_attn.viz.callbacks import InteractionMaps

IMAGE_SIZE = 32
CAMERAS = ("gray", "depth")
KINDS = ("memory", "forgetful")  # The latter starts from a zero state at every step.
NEAR = 3  # Pixels around a hand or face that count as near it: half a location.
FIRST_TEST = 1 << 50  # Number of the first test episode, which is never learned from.


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/greet-people")
    parser.add_argument("--steps", type=int, default=60, help="updates per epoch")
    parser.add_argument(
        "--episodes", type=int, default=32, help="episodes played per epoch"
    )
    parser.add_argument(
        "--first-episodes",
        type=int,
        default=200,
        help="episodes played before the first epoch",
    )
    parser.add_argument(
        "--test-episodes", type=int, default=300, help="number of test episodes"
    )
    parser.add_argument("--num-steps", type=int, default=10, help="steps per episode")
    parser.add_argument("--width", type=int, default=32, help="channels of the maps")
    parser.add_argument(
        "--seeds", type=int, default=3, help="number of seeds, counted from --seed"
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=KINDS,
        default=list(KINDS),
        help="networks to train",
    )
    script_arguments.add_training_options(
        parser, epochs=25, batch_size=16, learning_rate=3e-3
    )
    tiny = {"steps": 2, "episodes": 2, "first_episodes": 4, "test_episodes": 24}
    tiny |= {"width": 4, "epochs": 2, "batch_size": 2, "seeds": 1, "num_steps": 4}
    return script_arguments.parse(parser, **tiny)


def new_network(width):
    """The model with three small convolutions, and its attention among the outputs."""
    return models.build_show_attend_interact(
        image_size=IMAGE_SIZE,
        hidden_dims=(width // 2, width, width),
        kernel_sizes=(4, 4, 3),
        strides=(2, 2, 1),
        attention_dim=width,
        hidden_dim=2 * width,
        return_attention_scores=True,
    )


def forgetful(network, num_steps):
    """The same network, in which each of T steps is the first of an episode.

    Everything else is equal: layers, parameters, attention and batches.
    """
    size = network.input[CAMERAS[0]].shape[2:]
    inputs = {
        camera: keras.Input((num_steps, *size), name=camera) for camera in CAMERAS
    }
    # (B, T, H, W, 1) -> (B T, 1, H, W, 1)
    steps = {name: keras.ops.reshape(x, (-1, 1, *size)) for name, x in inputs.items()}
    outputs = dict(network(steps))
    scores = outputs.pop("attention_scores")  # (B T, 2, 1, P)
    outputs = {
        name: keras.ops.reshape(x, (-1, num_steps, x.shape[-1]))
        for name, x in outputs.items()
    }
    scores = keras.ops.reshape(scores, (-1, num_steps, len(CAMERAS), scores.shape[-1]))
    outputs["attention_scores"] = keras.ops.transpose(scores, (0, 2, 1, 3))
    return keras.Model(inputs, outputs)


def grid_size_of(network):
    """Rows and columns of the map of a network of either kind."""
    side = math.isqrt(network.output["attention_scores"].shape[-1])
    return side, side


def new_scene(num_steps, seed=0):
    """The scene; its episodes depend on the seed."""
    return data.SocialScene(image_size=IMAGE_SIZE, num_steps=num_steps, seed=seed)


def learn(kind, seed, arguments, folder, examples):
    """Plays and learns, or resumes; returns the network and the logs of all epochs.

    Args:
        kind: One of `KINDS`.
        seed: Seed of the weights, the people, the exploration and the batches.
        arguments: Command-line arguments.
        folder: Folder for the backup and TensorBoard.
        examples: Episodes that are drawn every ten epochs.
    """
    keras.utils.set_random_seed(seed)
    network = new_network(arguments.width)
    if kind == "forgetful":
        network = forgetful(network, arguments.num_steps)
    agent = training.DeepQ(network, discount=0.9, double=True, target_every=60)
    steps = arguments.epochs * arguments.steps
    rate = training.CosineWarmup(arguments.learning_rate, max(1, steps // 20), steps)
    agent.compile(
        keras.optimizers.Adam(rate, global_clipnorm=10.0),
        keras.losses.Huber(),
        jit_compile=False,
    )
    player = training.PlayEpisodes(
        new_scene(arguments.num_steps, seed),
        capacity=1000,
        episodes=arguments.episodes,
        first_episodes=arguments.first_episodes,
        epsilon_epochs=max(1, arguments.epochs // 3),
        validation_episodes=arguments.test_episodes // 6,
        seed=seed,
    )
    inputs = {camera: as_float(examples[camera]) for camera in CAMERAS}
    history = agent.fit(
        player.dataset(arguments.batch_size, arguments.steps),
        epochs=arguments.epochs,
        shuffle=False,
        verbose=2,
        callbacks=[
            player,
            InteractionMaps(
                folder,
                network,
                inputs,
                ACTIONS,
                grid_size_of(network),
                every=10,
                max_examples=1,
            ),
            keras.callbacks.TensorBoard(folder, write_graph=False),
            training.BackupAndResume(
                folder / "backup", callbacks=[player], delete_checkpoint=False
            ),
        ],
    )
    network.save(folder / "model.keras")
    return network, history.history


def test_episodes(policy, scene, count):
    """Plays test episodes; records the phase of each person, and hand and face."""

    def watch():
        return {"phase": scene.phase, **scene.masks}

    numbers = range(FIRST_TEST, FIRST_TEST + count)
    return training.play_episodes(scene, policy, numbers, watch=watch)


def mean_reward(played):
    """The mean sum of rewards of an episode."""
    return float(played["rewards"].sum(1).mean())


def looks(network, played):
    """Where the robot looks: rows of a table.

    Yields:
        Camera; face or hand; its area as a share of the image, and the share of
        attention inside it; the same two with the pixels near it; number of frames.
    """
    inputs = {camera: as_float(played[camera]) for camera in CAMERAS}
    outputs = network.predict(inputs, batch_size=50, verbose=0)
    scores = outputs["attention_scores"]
    for index, camera in enumerate(CAMERAS):
        for what, phase in (("face", FACING), ("hand", OFFERING)):
            chosen = played["phase"] == phase
            maps, masks = scores[:, index][chosen], played[what][chosen]
            near = keras.ops.max_pool(
                masks[..., None].astype("float32"), 2 * NEAR + 1, 1, "same"
            )
            figures = []
            for each in (masks, np.array(near)[..., 0]):
                metric = metrics.AttentionInside(grid_size_of(network))
                metric.update_state(each, maps)
                found = metric.result()
                figures += [
                    float(found["object_area"]),
                    float(found["attention_inside"]),
                ]
            yield camera, what, *figures, int(masks.any((1, 2)).sum())


def print_looks(networks, played):
    """Prints the table of `looks`, with means over the networks."""
    tables = [list(looks(network, played)) for network in networks]
    print("| camera | of | frames | area | attention | area near | attention near |")
    for rows in zip(*tables, strict=True):
        camera, what, *_, count = rows[0]
        numbers = np.mean([row[2:6] for row in rows], axis=0)
        line = " | ".join(f"{number:.2f}" for number in numbers)
        print(f"| {camera} | {what} | {count} | {line} |", flush=True)


def print_curve(histories):
    """Prints mean, minimum and maximum of the greedy rewards of all seeds."""
    rewards = np.array([history["val_reward"] for history in histories])
    epochs = rewards.shape[1]
    print("| epoch | " + " | ".join(["mean", "smallest", "largest"]), "|")
    for epoch in sorted({0, *range(4, epochs, 5), epochs - 1}):
        values = rewards[:, epoch]
        numbers = values.mean(), values.min(), values.max()
        print(f"| {epoch + 1} | " + " | ".join(f"{n:.2f}" for n in numbers), "|")


def save_curves(histories, path):
    """Writes all logs of all kinds and seeds as CSV, one row per epoch."""
    names = ["epsilon", "loss", "q_value", "reward", "td_error", "val_reward"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["kind", "run", "epoch", *names])
        for kind, runs in histories.items():
            for run, history in enumerate(runs):
                for epoch in range(len(history["loss"])):
                    values = [history[name][epoch] for name in names]
                    writer.writerow([kind, run, epoch, *values])


def draw_episode(network, played, path):
    """Draws the first of these episodes, the robot's attention, and its Q-values."""
    outputs = network.predict(
        {camera: as_float(played[camera][:1]) for camera in CAMERAS}, verbose=0
    )
    scores = outputs["attention_scores"][0]
    scores = scores.reshape(*scores.shape[:2], *grid_size_of(network))
    figure = plot_interaction(
        {camera: played[camera][0] for camera in CAMERAS},
        dict(zip(CAMERAS, scores, strict=True)),
        outputs["q_values"][0],
        ACTIONS,
        taken=played["actions"][0],
    )
    save_figure(figure, path)


def main():
    """Trains with and without memory; compares with random and with best actions."""
    arguments = parse_arguments()
    run_dir = arguments.run_dir
    scene, count = new_scene(arguments.num_steps), arguments.test_episodes
    rng = np.random.default_rng(0)
    baselines = {
        "random": lambda _, step: rng.integers(0, len(ACTIONS), count),
        "best": lambda _, step: scene.best_actions(),
    }
    played = {
        name: test_episodes(policy, scene, count) for name, policy in baselines.items()
    }
    networks, histories, rewards = (
        {kind: [] for kind in arguments.kinds} for _ in range(3)
    )
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        for kind in arguments.kinds:
            start = time.process_time()
            folder = run_dir / f"{kind}_{seed}"
            network, history = learn(kind, seed, arguments, folder, played["best"])
            seconds = time.process_time() - start
            networks[kind].append(network)
            histories[kind].append(history)
            policy = training.GreedyPolicy(network, arguments.num_steps)
            test = test_episodes(policy, scene, count)
            reward = mean_reward(test)
            rewards[kind].append(reward)
            print(f"{kind}, seed {seed}: reward {reward:.2f}, {seconds:.0f} s of CPU")
            draw_episode(network, test, folder / "interaction.png")
    for kind in arguments.kinds:
        parameters = networks[kind][0].count_params()
        print(f"\n{kind}: {parameters:,} parameters", flush=True)
        print_curve(histories[kind])
    save_curves(histories, run_dir / "curves.csv")
    print(f"\nMean reward of {count} test episodes")
    for name in played:
        print(f"| {name} | {mean_reward(played[name]):.2f} |")
    for kind, values in rewards.items():
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"| {kind} | {np.mean(values):.2f}, {spread} |")
    for kind in arguments.kinds:
        print(f"\n{kind}")
        print_looks(networks[kind], played["best"])
    print(f"\nPictures: {run_dir}; tensorboard --logdir {run_dir}")


if __name__ == "__main__":
    main()
