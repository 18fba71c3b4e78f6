"""SAGAN on generated shapes: its self-attention on and off, at the same budget.

    python examples/sagan_shapes.py

A generator and a discriminator of 32 × 32 pixels, conditioned on the shape, are trained
by the hinge losses of the paper (Zhang et al. 2019, arXiv:1805.08318, section 4):

    L_D = mean max(0, 1 - D(x, y)) + mean max(0, 1 + D(G(z, y), y))
    L_G = -mean D(G(z, y), y)

    x    images (B, 32, 32, 3) in [-1, 1]     y    shapes (B,)
    z    noise (B, 64), normally distributed  D    scores (B, 1)

Both have one self-attention on the map of 16 × 16, `x + γ attention(x)`, and γ starts
at 0. "Off" freezes these layers, so γ stays 0: the graph, its other initial weights,
the order of the images and the number of steps are those of "on". Whatever differs is
what attention has learned. As in the paper its keys have an eighth of the channels of
their map, of `--width` channels or twice as many.

No network is downloaded to compare images. A judge, a small CNN, learns to tell the
shape, color and size of other images of the same kind, and says two things of images:

    right       share of images whose shape is the one that was asked for
    distance    Fréchet distance of the judge's features, as of Inception's in an FID:
                |m - m'|² + tr(C + C' - 2 (C C')^½), of means and covariances of
                generated and of held-out images; smaller is better

The distance is comparable within a run only, as the features are the judge's own. Two
bounds are measured in the same way: training images, which no generator should beat,
and an untrained generator. `curves.png` has the distance over the epochs, the mean and
the range of the seeds; `samples.png` what was generated, with training images above.

Results of `--seeds 1` on one thread of an AMD EPYC (AVX-512, no AMX) beside other work,
35 minutes of CPU time, after 30 epochs of 6,000 images:

                           right   distance  gamma of generator and discriminator
    training images        87.3%        1.3
    untrained generator    25.6%    3,720
    attention              49.5%      154     -0.03, 0.27
    no attention           41.8%      119

The images are blobs of the right colors and sizes, most of them green or red. One seed,
and two measures that disagree: whether attention helps is open.
"""

import json
import time

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_attn import data, models, training, viz
from keras_attn.files.writing import replacing, write_atomically

IMAGE_SIZE = 32
SHAPES = ("circle", "square", "triangle", "cross")
COLORS = {"red": (220, 50, 47), "green": (60, 160, 60), "blue": (40, 90, 200)}
SIZES = {"small": (0.2, 0.24), "large": (0.32, 0.36)}  # Radii, as shares of the side.
LATENT = 64
NUM_SHOWN = 3  # Images of each shape in the picture.
FIRST_JUDGED = 10_000_000  # The judge's images are counted from here.
PARTS = ("shape", "color", "size")
# What runs of one folder have in common.
SETTINGS = ("images", "held_out", "epochs", "batch_size", "learning_rate")
SETTINGS += ("width", "judge_epochs", "every", "seed")
KINDS = {"attention": True, "no attention": False}


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/sagan-shapes")
    script_arguments.add_image_counts(parser, images=6000, held_out=2000)
    script_arguments.add_training_options(
        parser, epochs=30, batch_size=32, learning_rate=2e-4
    )
    for name, default, text in (
        ("width", 16, "channels of the largest map"),
        ("judge-epochs", 6, "epochs of the judge"),
        ("every", 3, "epochs between two measurements"),
        ("seeds", 3, "seeds of each kind, from --seed on"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    return script_arguments.parse(
        parser,
        images=48,
        held_out=72,
        epochs=2,
        batch_size=24,
        width=8,
        judge_epochs=1,
        every=1,
        seeds=1,
    )


def check_settings(arguments):
    """Refuses a run folder whose runs and judge have other settings."""
    path = arguments.run_dir / "settings.json"
    settings = script_arguments.selected(arguments, *SETTINGS)
    if path.is_file() and json.loads(path.read_text("utf-8")) != settings:
        raise SystemExit(
            f"error: {arguments.run_dir} has runs of other settings, see {path.name}; "
            "pass another --run-dir"
        )
    write_atomically(path, json.dumps(settings, indent=1).encode())


def make_images(shapes, start, count):
    """Images (count, H, W, 3) in [-1, 1], and the number of each part of the object."""
    images = np.empty((count, IMAGE_SIZE, IMAGE_SIZE, 3), "float32")
    labels = {part: np.empty(count, "int32") for part in PARTS}
    names = {"shape": SHAPES, "color": list(COLORS), "size": list(SIZES)}
    for number in range(count):
        example = shapes.example(start + number)
        (shown,) = example.objects
        images[number] = example.image / 127.5 - 1
        for part in PARTS:
            labels[part][number] = names[part].index(getattr(shown, part))
    return images, labels


def train_judge(shapes, arguments):
    """A CNN from images to its features (B, 64) and the logits of each part.

    One that an earlier run has trained is read: distances are of one judge's features.
    """
    path = arguments.run_dir / "judge.keras"
    if path.is_file():
        return keras.saving.load_model(path)
    keras.utils.set_random_seed(arguments.seed)
    images, labels = make_images(shapes, FIRST_JUDGED, arguments.images)
    inputs = hidden = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3))
    for width in (16, 32, 64):
        hidden = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(hidden)
        hidden = keras.layers.ReLU()(keras.layers.BatchNormalization()(hidden))
        hidden = keras.layers.MaxPooling2D()(hidden)
    hidden = keras.layers.Flatten()(hidden)
    features = keras.layers.Dense(64, activation="relu", name="features")(hidden)
    sizes = {"shape": len(SHAPES), "color": len(COLORS), "size": len(SIZES)}
    outputs = {
        part: keras.layers.Dense(size, name=part)(features)
        for part, size in sizes.items()
    }
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", dict.fromkeys(PARTS, loss), jit_compile=False)
    model.fit(images, labels, epochs=arguments.judge_epochs, verbose=0)
    judge = keras.Model(inputs, {"features": features, **outputs})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:  # Not a part of it, if this run is killed.
        judge.save(partial)
    return judge


def frechet_distance(features, others):
    """The Fréchet distance of two sets of features, (N, F) and (M, F), as Gaussians."""
    means = features.mean(0), others.mean(0)
    covariances = [np.cov(each, rowvar=False) for each in (features, others)]
    # tr (C C')^½ = tr (C^½ C' C^½)^½, of a symmetric matrix.
    values, vectors = np.linalg.eigh(covariances[0])
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    shared = np.linalg.eigvalsh(root @ covariances[1] @ root).clip(0)
    traces = sum(np.trace(each) for each in covariances)
    difference = np.square(means[0] - means[1]).sum()
    return float(difference + traces - 2 * np.sqrt(shared).sum())


class Measure:
    """Compares images with held-out ones.

    Args:
        judge: The judge.
        images: Held-out images (N, H, W, 3).
        labels: Their shapes (N,), which are asked of a generator, too.
    """

    def __init__(self, judge, images, labels):
        self.judge, self.labels = judge, labels
        self.features = self._judge(images)["features"]
        self.noise = np.random.default_rng(7).normal(size=(len(labels), LATENT))

    def _judge(self, images):
        return self.judge.predict(images, batch_size=100, verbose=0)

    def of_images(self, images, labels):
        """The share that is right and the distance, of images of these shapes."""
        found = self._judge(images)
        return {
            "right": float(np.mean(found["shape"].argmax(-1) == labels)),
            "distance": frechet_distance(found["features"], self.features),
        }

    def of_generator(self, generator):
        """The same of what a generator makes for the held-out shapes."""
        inputs = {"noise": self.noise.astype("float32"), "labels": self.labels}
        images = generator.predict(inputs, batch_size=100, verbose=0)
        return self.of_images(images, self.labels)


class Curve(keras.callbacks.Callback):
    """Measures the generator after some epochs, and prints it."""

    def __init__(self, name, measure, every):
        super().__init__()
        self.name, self.measure, self.every = name, measure, every
        self.rows = []

    def on_epoch_end(self, epoch, logs=None):
        """Adds a row."""
        if (epoch + 1) % self.every == 0:
            row = self.measure.of_generator(self.model.generator)
            self.rows.append({"epoch": epoch + 1, **row})
            text = f"{row['right']:.1%} right, distance {row['distance']:.3g}"
            print(f"{self.name}, epoch {epoch + 1}: {text}", flush=True)


def new_networks(arguments, seed, has_attention):
    """A generator and a discriminator, with or without attention that learns."""
    keras.utils.set_random_seed(seed)
    sizes = {
        "image_size": IMAGE_SIZE,
        "attention_size": IMAGE_SIZE // 2,
        "base_dim": arguments.width,
        "num_classes": len(SHAPES),
    }
    generator = models.build_sagan_generator(latent_dim=LATENT, **sizes)
    discriminator = models.build_sagan_discriminator(**sizes)
    for network in (generator, discriminator):
        network.get_layer("self_attention").trainable = has_attention
    return generator, discriminator


def run(train, measure, arguments, seed, has_attention):
    """Trains one pair of networks; returns its curve, and saves the generator."""
    name = f"{'with' if has_attention else 'without'}_{seed}"
    folder = arguments.run_dir / name
    if (folder / "result.json").is_file():  # A killed run goes on with the next pair.
        return json.loads((folder / "result.json").read_text("utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    generator, discriminator = new_networks(arguments, seed, has_attention)
    trainer = training.AdversarialTrainer(generator, discriminator, seed=seed)
    rate = arguments.learning_rate
    trainer.compile(
        keras.optimizers.Adam(rate, beta_1=0.0, beta_2=0.9),
        # The "two time-scale update rule".
        keras.optimizers.Adam(4 * rate, beta_1=0.0, beta_2=0.9),
        jit_compile=False,
    )
    curve, start = Curve(name, measure, arguments.every), time.process_time()
    images, labels = train
    trainer.fit(
        images,
        labels,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        verbose=0,
        callbacks=[curve],
    )
    gammas = {
        network.name: float(network.get_layer("self_attention").gamma.numpy())
        for network in (generator, discriminator)
    }
    generator.save(folder / "generator.keras")
    result = {
        "curve": curve.rows,
        "gamma": gammas,
        "cpu_seconds": time.process_time() - start,
    }
    write_atomically(folder / "result.json", json.dumps(result, indent=1).encode())
    return result


def spread(values):
    """Mean and standard deviation, as text."""
    return f"{np.mean(values):.3g} ± {np.std(values):.2g}"


def report(results, bounds):
    """Prints the table: the last measurement of each kind, over the seeds."""
    print("| images | right % | distance | gamma of generator, discriminator |")
    print("|---|---|---|---|")
    for name, bound in bounds.items():
        print(f"| {name} | {100 * bound['right']:.1f} | {bound['distance']:.3g} | - |")
    for name, runs in results.items():
        last = [each["curve"][-1] for each in runs]
        gammas = [
            spread([each["gamma"][network] for each in runs])
            for network in ("sagan_generator", "sagan_discriminator")
        ]
        print(
            f"| {name} | {spread([100 * each['right'] for each in last])} | "
            f"{spread([each['distance'] for each in last])} | {', '.join(gammas)} |"
        )
    seconds = [each["cpu_seconds"] for runs in results.values() for each in runs]
    print(f"\n{np.mean(seconds):.0f} s of CPU time for a pair of networks")


def plot_curves(results, bounds):
    """The distance over the epochs: mean and range of the seeds, and the bounds."""
    figure = Figure(figsize=(6, 3.6), dpi=150, layout="compressed")
    axis = figure.subplots()
    num_seeds = min(map(len, results.values()))
    title = "one seed" if num_seeds == 1 else f"{num_seeds} seeds: mean and range"
    for name, runs in results.items():
        epochs = [row["epoch"] for row in runs[0]["curve"]]
        values = np.array([[row["distance"] for row in each["curve"]] for each in runs])
        (line,) = axis.plot(epochs, values.mean(0), "o-", markersize=3, label=name)
        axis.fill_between(
            epochs, values.min(0), values.max(0), alpha=0.2, color=line.get_color()
        )
    for (name, bound), style in zip(bounds.items(), ("--", ":"), strict=True):
        axis.axhline(bound["distance"], color="gray", linestyle=style, label=name)
    axis.set(
        yscale="log",
        xlabel="epoch",
        ylabel="Fréchet distance to held-out images\n(smaller is better)",
        title=f"SAGAN on shapes, {title}",
    )
    axis.legend(frameon=False, fontsize=8)
    return figure


def plot_samples(train, arguments):
    """Rows of images: from training, and from a generator of each kind."""
    images, labels = train
    shown = np.repeat(np.arange(len(SHAPES), dtype="int32"), NUM_SHOWN)
    noise = np.random.default_rng(11).normal(size=(len(shown), LATENT))
    inputs = {"noise": noise.astype("float32"), "labels": shown}
    chosen = [
        np.flatnonzero(labels == label)[:NUM_SHOWN] for label in range(len(SHAPES))
    ]
    order = f"{NUM_SHOWN} each: {', '.join(SHAPES)}"
    rows = {f"training images; {order}": images[np.concatenate(chosen)]}
    for name, folder in (("attention", "with"), ("no attention", "without")):
        path = arguments.run_dir / f"{folder}_{arguments.seed}" / "generator.keras"
        generator = keras.saving.load_model(path)
        rows[f"generated, {name}"] = generator.predict(inputs, verbose=0)
    # From [-1, 1].
    return viz.plot_generated_images(
        (np.stack(list(rows.values())).clip(-1, 1) + 1) / 2, list(rows)
    )


def main():
    """Trains the judge and every pair of networks; prints the table, draws."""
    arguments = parse_arguments()
    check_settings(arguments)
    shapes = data.Shapes(
        image_size=IMAGE_SIZE,
        num_objects=(1, 1),
        shapes=SHAPES,
        colors=COLORS,
        sizes=SIZES,
        seed=arguments.seed,
    )
    images, parts = make_images(shapes, 0, arguments.images)
    train = images, parts["shape"]
    held_out, labels = make_images(shapes, arguments.images, arguments.held_out)
    judge = train_judge(shapes, arguments)
    measure = Measure(judge, held_out, labels["shape"])
    right = measure.of_images(held_out, labels["shape"])["right"]
    print(f"The judge is right about the shape of {right:.1%} of held-out images.")
    untrained, _ = new_networks(arguments, arguments.seed, True)
    count = arguments.held_out
    bounds = {
        "training images": measure.of_images(images[:count], train[1][:count]),
        "untrained generator": measure.of_generator(untrained),
    }
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    results = {
        name: [run(train, measure, arguments, seed, learns) for seed in seeds]
        for name, learns in KINDS.items()
    }
    report(results, bounds)
    viz.save_figure(plot_curves(results, bounds), arguments.run_dir / "curves.png")
    viz.save_figure(plot_samples(train, arguments), arguments.run_dir / "samples.png")
    print(f"Pictures: {arguments.run_dir}/curves.png, samples.png")


if __name__ == "__main__":
    main()
