"""Convolution, attention, positions: a signal whose answer is far away.

    python examples/far_positions.py

A signal of 64 samples has four bumps, two triangles and two boxes, two of them in its
left half and two in its right half, each with a random height. The answer is the same
signal, where every bump has the mean height of two:

    shape:    of itself and the bump of the same shape
    half:     of itself and the bump in the same half

    x                                    signal, (B, T, 1)
    h = relu(conv(relu(conv(x))))        (B, T, D), sees 2 samples to each side
    h <- h + middle(h)                   what differs
    y = W relu(conv(h)) + b              answer, (B, T, 1)

    convolution     middle(h) = relu(conv(h)): y sees 4 samples to each side, and the
                    next bump begins at least 6 samples after a bump ends
    + dilation      six times h <- h + middle(h), the kernels' samples 1, 2, 4, …, 32
                    apart: y sees 66 samples to each side, which is everything
    + attention     middle(h) = softmax(q kᵀ / √D) v, of one head, with q and k of
                    LayerNorm(h): sees everything, but not where it is
    + positions     q and k of [LayerNorm(h); sines and cosines of the position]

Without the norm small bumps, whose h are small, look about less sharply.

All kernels are 3 wide. Every model gets the same signals, steps and learning rate. The
error is the root mean square over the centers of all bumps of 500 new signals, whose
heights are from 0.2 to 1. Best possible without seeing another bump: the mean of a
bump's own height and 0.6, an error of 0.115; without knowing which of the three others
counts: their mean, 0.094.

Results on one thread of an AMD EPYC (AVX-512, no AMX), errors of three seeds:

                    weights   CPU    shape            half
    convolution       5,377    6 s   0.116 ± 0.000    0.116 ± 0.000
    + dilation       14,137   16 s   0.036 ± 0.005    0.010 ± 0.000
    + attention       6,073   10 s   0.005 ± 0.001    0.092 ± 0.000
    + positions       6,841   11 s   0.006 ± 0.002    0.005 ± 0.000

By half, attention without positions gives the mean of the others. A convolution that
sees everything can do it, too, with twice the weights and more time; by shape it is
less exact in as many steps. Of the learning rates 0.0013, 0.004, 0.012 and 0.024 the
default was its best by shape with one seed. Before the norm and at 0.004, the error of
attention by shape was 0.083, hardly better than the mean of the others.

The picture has for each task one new signal, whose bumps change much, its answer and
what each model of the last seed makes of it; and what the centers of the bumps attend
to in the last model.

Legend: B batch, T samples, D units.
"""

import time

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
from keras.layers import Add, Conv1D, LayerNormalization
from matplotlib.figure import Figure

from keras_attn.layers import MultiHeadAttention, SinusoidalPositionEmbedding
from keras_attn.training import AdamW, CosineWarmup
from keras_attn.viz import capture_attention, save_figure

LENGTH = 64
SLOT = LENGTH // 4  # One bump in each quarter, at most 3 samples from its middle.
JITTER, RADIUS = 3, 2
HEIGHTS = (0.2, 1.0)
# Of a bump's own height and the mean of `HEIGHTS`, or of the three others.
ALONE = (HEIGHTS[1] - HEIGHTS[0]) / 48**0.5
UNKNOWN = (HEIGHTS[1] - HEIGHTS[0]) / 72**0.5
NUM_NEW = 500
POSITION_DIM = 16
DILATIONS = {"convolution": (1,), "+ dilation": (1, 2, 4, 8, 16, 32)}
TASKS = ("shape", "half")
MODELS = ("convolution", "+ dilation", "+ attention", "+ positions")
COLORS = {"signal": "#b8bec6", "answer": "#22262b", "model": "#c44e3b"}


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/far-positions")
    parser.add_argument("--signals", type=int, default=4000, help="training signals")
    parser.add_argument("--units", type=int, default=24, help="D")
    parser.add_argument(
        "--seeds", type=int, default=3, help="number of seeds, counted from --seed"
    )
    script_arguments.add_training_options(
        parser, epochs=15, batch_size=50, learning_rate=1.2e-2
    )
    return script_arguments.parse(parser, signals=100, units=8, seeds=1, epochs=1)


def bump(is_box, height):
    """The samples of one bump, (2 · RADIUS + 1,)."""
    offsets = np.abs(np.arange(-RADIUS, RADIUS + 1))
    triangle = 1 - offsets / (RADIUS + 1)
    return height * (np.ones_like(triangle) if is_box else triangle)


def make_signals(count, seed):
    """Signals and the answers of both tasks.

    Args:
        count: Number of signals, B.
        seed: Seed.

    Returns:
        Signals (B, T, 1); for each task the answers (B, T, 1); the centers of the bumps
        (B, 4), and for each task their heights in the answers, (B, 4).
    """
    random = np.random.default_rng(seed)
    middles = SLOT // 2 + SLOT * np.arange(4)
    centers = middles + random.integers(-JITTER, JITTER + 1, (count, 4))
    heights = random.uniform(*HEIGHTS, (count, 4))
    is_box = random.permuted(np.tile([False, False, True, True], (count, 1)), axis=1)
    halves = np.array([0, 0, 1, 1])
    groups = {"shape": is_box, "half": np.broadcast_to(halves, is_box.shape)}
    answers = {
        task: (heights[:, None] * (each[:, None] == each[..., None])).sum(-1) / 2
        for task, each in groups.items()
    }
    tables = {"signal": heights, **answers}
    drawn = {name: np.zeros((count, LENGTH, 1), "float32") for name in tables}
    for name, table in tables.items():
        for row in range(count):
            for center, box, height in zip(
                centers[row], is_box[row], table[row], strict=True
            ):
                span = slice(center - RADIUS, center + RADIUS + 1)
                drawn[name][row, span, 0] = bump(box, height)
    return drawn.pop("signal"), drawn, centers, answers


def build(kind, units):
    """One of `MODELS`, from signals (B, T, 1) to answers (B, T, 1)."""

    def convolution(hidden, dilation=1):
        layer = Conv1D(
            units, 3, padding="same", activation="relu", dilation_rate=dilation
        )
        return layer(hidden)

    signal = keras.Input((LENGTH, 1))
    hidden = convolution(convolution(signal))
    if kind in DILATIONS:
        for dilation in DILATIONS[kind]:
            hidden = Add()([hidden, convolution(hidden, dilation)])
    else:
        place = LayerNormalization()(hidden)
        if kind == "+ positions":
            place = SinusoidalPositionEmbedding(
                "concatenate", position_dim=POSITION_DIM
            )(place)
        attention = MultiHeadAttention(1, units, output_shape=units)
        hidden = Add()([hidden, attention(place, hidden, place)])
    return keras.Model(signal, Conv1D(1, 1)(convolution(hidden)))


def fit(model, signals, answers, arguments, seed):
    """Trains a model; returns the seconds of CPU time."""
    steps = arguments.epochs * -(-len(signals) // arguments.batch_size)
    schedule = CosineWarmup(arguments.learning_rate, max(steps // 20, 1), steps)
    model.compile(AdamW(schedule, weight_decay=0.0), "mse", jit_compile=False)
    start = time.process_time()
    keras.utils.set_random_seed(seed)  # Of the order.
    model.fit(
        signals,
        answers,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        verbose=0,
    )
    return time.process_time() - start


def error_of(found, centers, heights):
    """The root mean square error of the heights at the centers of bumps.

    Args:
        found: Answers of a model, (B, T, 1).
        centers: (B, 4).
        heights: The heights in the true answers, (B, 4).
    """
    rows = np.arange(len(found))[:, None]
    return float(np.sqrt(np.mean((found[rows, centers, 0] - heights) ** 2)))


def baselines(signals, centers, heights):
    """The errors of what one can answer without attention, or without positions.

    Args:
        signals: (B, T, 1).
        centers: (B, 4).
        heights: The heights in the true answers, (B, 4).

    Returns:
        The error of the mean of a bump's own height and the mean of `HEIGHTS`, and that
        of its own height and the mean of the three others.
    """
    rows = np.arange(len(signals))[:, None]
    own = signals[rows, centers, 0]
    others = (own.sum(1, keepdims=True) - own) / 3
    guesses = (np.full_like(own, np.mean(HEIGHTS)), others)
    return [float(np.sqrt(np.mean(((own + x) / 2 - heights) ** 2))) for x in guesses]


def mean_and_spread(values):
    """The mean and, of several values, the standard deviation."""
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def plot_models(signal, answers, found, errors, attention, centers):
    """One signal through all models, and what its bumps attend to in the last.

    Args:
        signal: (T, 1).
        answers: For each task (T, 1).
        found: For each task and model (T, 1).
        errors: For each task and model the errors of all seeds.
        attention: For each task (T, T) of the last model.
        centers: The centers of the bumps, (4,).
    """
    figure = Figure(figsize=(13, 5), dpi=110, layout="compressed")
    axes = figure.subplots(len(TASKS), len(MODELS) + 1, sharex=True)
    for row, task in enumerate(TASKS):
        for axis, kind in zip(axes[row], MODELS, strict=False):
            axis.fill_between(
                range(LENGTH), signal[:, 0], color=COLORS["signal"], label="signal"
            )
            axis.plot(answers[task], color=COLORS["answer"], lw=2.2, label="answer")
            axis.plot(
                found[task, kind], color=COLORS["model"], lw=1.4, label="the model's"
            )
            error = f"error {mean_and_spread(errors[task, kind])}"
            axis.set_title(f"{kind}\n{error}" if not row else error, fontsize=10)
            axis.set_ylim(-0.1, 1.1)
            axis.spines[["top", "right"]].set_visible(False)
            if axis is not axes[row, 0]:
                axis.tick_params(labelleft=False)
        axes[row, 0].set_ylabel(f"mean of the same {task}", fontsize=10)
        last = axes[row, -1]
        last.imshow(attention[task][centers], aspect="auto", cmap="Blues", vmin=0)
        last.plot(centers, range(4), "x", color=COLORS["model"], ms=6)
        last.set_yticks(range(4), [f"bump {number}" for number in range(1, 5)])
        if not row:
            last.set_title(
                f"attention of {MODELS[-1]}\nfrom (×) to all samples", fontsize=10
            )
    for axis in axes[-1]:
        axis.set_xlabel("sample")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, ncols=3, frameon=False, fontsize=9, loc="outside lower center"
    )
    figure.suptitle(
        "Each bump gets the mean height of two. Best possible error without seeing "
        f"another bump: {ALONE:.3f}; without knowing which: {UNKNOWN:.3f}",
        fontsize=11,
    )
    return figure


def main():
    """Trains every model on both tasks with every seed, prints and draws them."""
    arguments = parse_arguments()
    if arguments.seeds < 1:
        raise SystemExit("error: --seeds must be at least 1")
    signals, targets, *_ = make_signals(arguments.signals, [arguments.seed, 0])
    new, truths, centers, heights = make_signals(NUM_NEW, [arguments.seed, 1])
    # The signal whose bumps change most in both tasks.
    changes = [np.abs(answers - new).sum((1, 2)) for answers in truths.values()]
    shown = int(np.min(changes, axis=0).argmax())
    errors, found, attention = {}, {}, {}
    print("| task | model | parameters | CPU s | error |\n|---|---|---|---|---|")
    for task in TASKS:
        alone, unknown = baselines(new, centers, heights[task])
        print(f"| {task} | sees no other bump | | | {alone:.3f} |")
        print(f"| {task} | mean of the others | | | {unknown:.3f} |")
        for kind in MODELS:
            runs = []
            for seed in range(arguments.seed, arguments.seed + arguments.seeds):
                keras.utils.set_random_seed(seed)
                model = build(kind, arguments.units)
                seconds = fit(model, signals, targets[task], arguments, seed)
                outputs = model.predict(new, batch_size=100, verbose=0)
                error = error_of(outputs, centers, heights[task])
                runs.append((model, outputs, seconds, error))
            last, outputs, *_ = runs[-1]  # The one that is drawn.
            errors[task, kind] = [error for *_, error in runs]
            found[task, kind] = outputs[shown]
            if kind == MODELS[-1]:
                (scores,) = capture_attention(last, new[shown : shown + 1]).values()
                attention[task] = scores[0, 0]
            seconds = np.mean([seconds for _, _, seconds, _ in runs])
            print(
                f"| {task} | {kind} | {last.count_params():,} | {seconds:.0f} | "
                f"{mean_and_spread(errors[task, kind])} |",
                flush=True,
            )
    answers = {task: every[shown] for task, every in truths.items()}
    example = new[shown], answers, found, errors, attention, centers[shown]
    figure = plot_models(*example)
    path = arguments.run_dir / "far_positions.png"
    save_figure(figure, path)
    print(f"Picture: {path}")


if __name__ == "__main__":
    main()
