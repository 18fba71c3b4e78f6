"""Position embeddings: each vector, and how far apart the vectors of two positions are.

Legend: T positions, P width of the vectors.
"""

import keras
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from keras_attn.checks.arguments import check_positive, check_several
from keras_attn.layers import LearnedPositionEmbedding, SinusoidalPositionEmbedding
from keras_attn.ops import sinusoids
from keras_attn.viz.drawing.plots import TEXT_COLOR, add_title, new_figure

_LENGTH, _WIDTH = 50, 128  # Of sinusoids, which have no size of their own.
# Negative is blue, positive red, 0 white.
_COLORMAP = "RdBu_r"
_LINE_COLOR = "#1f5fa8"


def plot_positions(
    positions: SinusoidalPositionEmbedding | LearnedPositionEmbedding | np.ndarray,
    *,
    length: int | None = None,
    width: int | None = None,
    title: str | None = None,
) -> Figure:
    """Draws position embeddings, and their distances against the offset.

    On the left a heat map, one row per position and one column per dimension. On the
    right the distance `‖p_t - p_(t+k)‖` against the offset k: the mean over all t, and
    a band from the smallest to the largest. Of sinusoids it depends on k only, so the
    band is a line; of learned vectors it need not.

    Args:
        positions: A position embedding layer, built if it is learned; or its vectors,
            (T, P).
        length: Number of positions drawn, from position 0. Default: all, or 50 of
            sinusoids, which have no limit.
        width: P, for sinusoids whose layer has no `position_dim`: as wide as the inputs
            of the layer. Default: 128.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        TypeError: If `positions` is neither such a layer nor an array of numbers.
        ValueError: If vectors are not (T, P) with at least two positions or not finite,
            a learned layer is not built, there are fewer than `length` positions, or
            `width` is given for vectors that have their own.

    Example:
        ```python
        from keras_attn import layers, viz

        viz.plot_positions(layers.SinusoidalPositionEmbedding(), length=50, width=128)
        ```

    Reference:
        Vaswani et al. 2017, section 3.5 (arXiv:1706.03762).
    """
    vectors = _vectors(positions, length, width)
    count, dimensions = vectors.shape
    figure = new_figure(8.6, 3.6, "constrained")
    grid = {"width_ratios": [1.5, 1]}
    heat_axis, distance_axis = figure.subplots(1, 2, gridspec_kw=grid)
    limit = max(float(np.abs(vectors).max()), 1e-12)
    image = heat_axis.imshow(
        vectors,
        cmap=_COLORMAP,
        vmin=-limit,
        vmax=limit,
        aspect="auto",
        interpolation="nearest",
    )
    heat_axis.set_title(
        f"vectors: {count} positions × {dimensions} dimensions",
        fontsize=9,
        color=TEXT_COLOR,
    )
    heat_axis.set_xlabel("dimension", fontsize=9)
    heat_axis.set_ylabel("position", fontsize=9)
    bar = figure.colorbar(image, ax=heat_axis, pad=0.02)
    bar.set_label("value", fontsize=9, color=TEXT_COLOR)
    bar.outline.set_visible(False)

    offsets = np.arange(count)
    mean, least, most = _distances(vectors)
    distance_axis.fill_between(
        offsets,
        least,
        most,
        color=_LINE_COLOR,
        alpha=0.25,
        linewidth=0,
        label="smallest to largest",
    )
    distance_axis.plot(offsets, mean, color=_LINE_COLOR, label="mean over positions t")
    distance_axis.set_title("distance of two positions", fontsize=9, color=TEXT_COLOR)
    distance_axis.set_xlabel("offset k, in positions", fontsize=9)
    distance_axis.set_ylabel(r"$\Vert p_t - p_{t+k} \Vert$", fontsize=9)
    distance_axis.set(xlim=(0, count - 1), ylim=(0, None))
    distance_axis.legend(frameon=False, fontsize=8, loc="lower right")
    distance_axis.spines[["top", "right"]].set_visible(False)
    for axis in (heat_axis.xaxis, heat_axis.yaxis, distance_axis.xaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    for axis in (heat_axis, distance_axis, bar.ax):
        axis.tick_params(labelsize=8)
    add_title(figure, title)
    return figure


def _vectors(positions, length, width) -> np.ndarray:
    """The vectors to draw, float32 (T, P)."""
    if length is not None:
        check_several("length", length)
    is_sinusoidal = isinstance(positions, SinusoidalPositionEmbedding)
    if width is not None:
        check_positive("width", width)
        if not is_sinusoidal or positions.position_dim is not None:
            raise ValueError(
                "`width` is for sinusoids whose layer has no `position_dim`; other "
                f"vectors have a width of their own. Received: width={width}"
            )
    if is_sinusoidal:
        rows = np.arange(length or _LENGTH)
        columns = width or positions.position_dim or _WIDTH
        table = sinusoids(rows, columns, positions.max_wavelength)
    elif isinstance(positions, LearnedPositionEmbedding):
        if not positions.built:
            raise ValueError(
                "`positions` must be built: call the layer, or its model, once. "
                f"Received: positions={positions!r}"
            )
        # NumPy knows no bfloat16.
        table = keras.ops.cast(positions.embeddings, "float32")[positions.first_row :]
    else:
        table = positions
    try:
        vectors = np.asarray(table, "float32")
    except (TypeError, ValueError):
        raise TypeError(
            "`positions` must be a SinusoidalPositionEmbedding, a "
            "LearnedPositionEmbedding or an array of vectors. "
            f"Received: positions={positions!r}"
        ) from None
    if vectors.ndim != 2 or len(vectors) < 2 or not vectors.size:
        raise ValueError(
            "`positions` must be vectors (T, P) of at least two positions. "
            f"Received: positions of shape {vectors.shape}"
        )
    if not np.isfinite(vectors).all():
        raise ValueError(
            "`positions` must be finite. Received: positions with "
            f"{np.count_nonzero(~np.isfinite(vectors))} of {vectors.size} not finite"
        )
    if length is not None and length > len(vectors):
        raise ValueError(
            f"`length` must be at most {len(vectors)}, the number of positions. "
            f"Received: length={length}"
        )
    return vectors[:length]


def _distances(vectors):
    """Mean, smallest and largest distance at each offset, three arrays (T,)."""
    norms = [
        np.linalg.norm(vectors[offset:] - vectors[: len(vectors) - offset], axis=1)
        for offset in range(len(vectors))
    ]
    return [np.array([f(each) for each in norms]) for f in (np.mean, np.min, np.max)]
