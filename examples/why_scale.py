"""Why attention divides by √D: softmax of q · k over the width, with it and without.

    python examples/why_scale.py

    q, k_1, …, k_S ~ N(0, 1), D numbers each         queries and keys
    plain:   e_s = q · k_s                           variance D: a sum of D products
    scaled:  e_s = q · k_s / √D                      variance 1
    a = softmax(e)                                   weights of the S keys
    H = -Σ_s a_s ln a_s                              ln S if all keys count alike
    G = ‖∂a/∂e‖ = ‖diag(a) - a aᵀ‖                   Frobenius norm, for each query
    Q = ‖∂a/∂q‖ = ‖∂a/∂e ∂e/∂q‖                      ∂e/∂q = k, or k / √D

e is `scores` of `DotProductAttention`, with `score="dot"` and `"scaled_dot"`. For many
keys and scores of variance 1, H is about ln S - 1/2 and G about √(2.718 / S), at any D:
the dashed lines of the picture (Vaswani et al. 2017, section 3.2.1, footnote 4,
arXiv:1706.03762).

Results for 64 keys and 1,000 queries with seed 0, 9 s of CPU time on one thread of an
AMD EPYC (AVX-512, no AMX): the mean of H, and medians of G and Q with their means in
brackets.

              H              G                        Q
    D         plain  scaled  plain            scaled  plain            scaled
    4          2.82   3.70   0.26    (0.26)    0.17   0.48    (0.50)    0.17
    64         0.59   3.68   0.21    (0.21)    0.18   1.6     (1.7)     0.18
    1024       0.13   3.68   3.9e-04 (0.073)   0.18   0.013   (2.3)     0.18
    4096       0.06   3.68   1.3e-08 (0.035)   0.18   8.1e-07 (2.2)     0.18

The means of scaled scores are nearly their medians. With seeds 1 and 2, plain H is 0.13
at D = 1024, too, and the medians of G are 2.1e-04 and 1.8e-04.

Without the factor nearly every query attends to one key, and half of them have next to
no gradient: what the paper suspects holds for most queries. It does not for the mean: a
few queries, whose two best keys are almost equal, keep all of their G, and ∂e/∂q is √D
times as large without the factor. So the mean of Q is above that of scaled scores at
every D: most queries learn nothing, and a few take leaps. At the usual width of a head,
64, gradients do not vanish yet.

Legend: S keys, D width of queries and keys.
"""

import math

from keras_attn import script_arguments  # isort: split

import numpy as np
from matplotlib.figure import Figure

from keras_attn.layers import DotProductAttention
from keras_attn.viz import save_figure

LAYERS = {
    "plain": DotProductAttention("dot"),
    "scaled": DotProductAttention("scaled_dot"),
}
LABELS = {"plain": "q · k, median query", "scaled": "q · k / √D, median query"}
COLORS = {"plain": "#c44e3b", "scaled": "#2f6fab"}
QUERIES_PER_DRAW = 25  # Queries that share their keys.
QUARTERS = (25, 50, 75)
# At the left of the gradient's axis. A quarter of the queries have far less.
SMALLEST = 1e-12


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/why-scale")
    parser.add_argument(
        "--widths",
        type=int,
        nargs="+",
        default=[4**power for power in range(1, 7)],
        help="D, the widths of queries and keys",
    )
    parser.add_argument("--keys", type=int, default=64, help="S")
    parser.add_argument("--queries", type=int, default=1000, help="number of queries")
    parser.add_argument("--seed", type=int, default=0, help="seed of the vectors")
    return script_arguments.parse(parser, widths=[4, 16], queries=50)


def softmax(scores):
    """The weights of the keys, (…, S), float64: some gaps between scores are large."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def entropy(weights):
    """H of each query, in nats, (…,)."""
    return -(weights * np.log(np.maximum(weights, 1e-300))).sum(-1)


def gradient_norm(weights):
    """G of each query, (…,).

    `Σ_s a_s² (Σ_r≠s a_r)² + Σ_s a_s² Σ_r≠s a_r²`: 1 - a_s would round to 0 where it
    matters.
    """
    others = 1.0 - np.eye(weights.shape[-1])
    squares = weights**2
    diagonal = squares * (weights @ others) ** 2
    return np.sqrt((diagonal + squares * (squares @ others)).sum(-1))


def query_gradient_norm(weights, keys, scale):
    """Q of each query, (…, T): row s of ∂a/∂q is `scale` a_s (k_s - Σ_r a_r k_r).

    Args:
        weights: (…, T, S).
        keys: (…, S, D).
        scale: 1, or 1 / √D.
    """
    means = weights @ keys
    squares = [
        ((row[..., None, :] - keys) ** 2).sum(-1) for row in np.moveaxis(means, -2, 0)
    ]
    return scale * np.sqrt((weights**2 * np.stack(squares, -2)).sum(-1))


def measure(width, num_keys, num_queries, seed):
    """Variance, entropies and gradients at one width.

    Args:
        width: D.
        num_keys: S.
        num_queries: Number of queries; every 25 have keys of their own.
        seed: Seed of the vectors.

    Returns:
        The `variance` of q · k; and for each of `LAYERS` H, G and Q of each query.
    """
    random = np.random.default_rng([seed, width])
    draws = math.ceil(num_queries / QUERIES_PER_DRAW)
    queries, keys = (
        random.standard_normal((draws, count, width), dtype="float32")
        for count in (QUERIES_PER_DRAW, num_keys)
    )
    found = {}
    for kind, layer in LAYERS.items():
        scores = np.asarray(layer.scores(queries, keys), "float64")
        if kind == "plain":
            found["variance"] = scores.var()
        weights = softmax(scores)
        scale = width**-0.5 if kind == "scaled" else 1.0
        found[kind] = [
            values.ravel()[:num_queries]
            for values in (
                entropy(weights),
                gradient_norm(weights),
                query_gradient_norm(weights, keys.astype("float64"), scale),
            )
        ]
    return found


def print_table(results):
    """Prints the figures of the header, one row for each width."""
    heads = ("D", "variance of q · k", "variance / D")
    for name in ("mean H", "median G", "mean G", "median Q", "mean Q"):
        heads += tuple(f"{name}, {kind}" for kind in LAYERS)
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for width, found in results.items():
        cells = [f"{width}", f"{found['variance']:.4g}"]
        cells += [f"{found['variance'] / width:.3f}"]
        cells += [f"{found[kind][0].mean():.3f}" for kind in LAYERS]
        for number in (1, 2):
            for middle in (np.median, np.mean):
                cells += [f"{middle(found[kind][number]):.2g}" for kind in LAYERS]
        print(f"| {' | '.join(cells)} |")


def plot_scale(results, num_keys):
    """Entropy and gradient over the width: medians, and the middle half of queries."""
    figure = Figure(figsize=(8.4, 3.5), dpi=150, layout="compressed")
    widths = list(results)
    axes = figure.subplots(1, 2)
    for number, axis in enumerate(axes):
        for kind, color in COLORS.items():
            low, middle, high = (
                np.maximum(
                    [np.percentile(results[x][kind][number], share) for x in widths],
                    SMALLEST,
                )
                for share in QUARTERS
            )
            axis.plot(widths, middle, "o-", color=color, ms=4, label=LABELS[kind])
            band = {"label": "middle half of the queries"} if kind == "plain" else {}
            axis.fill_between(widths, low, high, color=color, alpha=0.18, lw=0, **band)
        axis.set_xscale("log", base=2)
        axis.set_xticks(widths, map(str, widths), minor=False)
        axis.set_xlabel("D, width of queries and keys")
        axis.spines[["top", "right"]].set_visible(False)
    lines = (math.log(num_keys) - 0.5, math.sqrt(math.e / num_keys))
    for axis, line in zip(axes, lines, strict=True):
        axis.axhline(line, color="#444", lw=0.9, ls="--", label="theory, variance 1")
    axes[0].axhline(
        math.log(num_keys), color="#999", lw=0.9, ls=":", label="all keys alike, ln S"
    )
    axes[0].set(ylabel="entropy of the weights (nats)", ylim=(0, None))
    axes[0].set_title(f"How many of {num_keys} keys count", fontsize=10)
    axes[1].set(ylabel="‖∂a/∂e‖ of a query", yscale="log", ylim=(SMALLEST, 2))
    axes[1].set_title("How much gradient passes the softmax", fontsize=10)
    axes[0].legend(frameon=False, fontsize=8, loc="center right")
    axes[1].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def main():
    """Measures all widths, prints the table and draws the picture."""
    arguments = parse_arguments()
    if arguments.keys < 2 or arguments.queries < 1 or min(arguments.widths) < 1:
        raise SystemExit(
            "error: --keys must be at least 2, --queries and --widths at least 1"
        )
    sizes = (arguments.keys, arguments.queries, arguments.seed)
    results = {width: measure(width, *sizes) for width in sorted(set(arguments.widths))}
    print_table(results)
    path = arguments.run_dir / "why_scale.png"
    save_figure(plot_scale(results, arguments.keys), path)
    print(f"Picture: {path}")


if __name__ == "__main__":
    main()
