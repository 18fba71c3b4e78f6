"""Plots of attention, using only matplotlib's objects.

No `pyplot`: no global state changes, no display is needed, and a figure may be drawn
during training or in another thread.

Legend: T targets (rows), S sources (columns).
"""

import io
import itertools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from keras_attn.files.writing import write_atomically
from keras_attn.viz.drawing.labels import drawable, font_families, readable

# White, the page itself, means no attention: weak attention is visible against it. A
# single darkening hue reads the same in print and for color-blind readers.
_COLORMAP = "Blues"
_GRID_COLOR = "#e4e7eb"
TEXT_COLOR = "#22262b"
_DOTS_PER_INCH = 144
_CELL_INCHES = (0.09, 0.26)
_PANEL_INCHES = 11.0  # Cells shrink to keep a panel within this size.
_FONT_POINTS = (4.0, 10.0)
_POINTS_PER_CELL_INCH = 43.0  # Letters 0.6 of a cell high; an inch is 72 points.
_LETTER_WIDTH = 0.42  # Mean width of a letter, in cells.
_TITLE_LETTER_INCHES = 0.1


def plot_alignment(
    scores: np.ndarray,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    title: str | None = None,
    ax: Axes | None = None,
    wrap: bool = False,
) -> Figure:
    """Draws how much each target token attends to each source token.

    Like figure 3 of Bahdanau et al.: one row per target token, one column per source
    token; darker is more attention (in the paper: lighter). The color scale always runs
    from 0 to 1, so that figures of different heads, sentences and epochs can be
    compared.

    Args:
        scores: Probabilities in [0, 1], (T, S), or (heads, T, S) for one panel per
            head. Positions after the tokens are padding, and not drawn.
        source_tokens: At most S labels, of the columns.
        target_tokens: At most T labels, of the rows.
        title: Title of the figure.
        ax: Axes to draw a single panel on, without a color bar, such as axes of
            `pyplot`. None creates a figure.
        wrap: Whether the panels are laid out to be readable in a small square, such as
            a card of TensorBoard: a source much longer than the target continues below,
            like the lines of a text.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If `scores` have a different shape or are outside [0, 1], or there
            are more tokens than scores.

    Reference:
        Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and
        Translate", 2015, figure 3, arXiv:1409.0473.
    """
    panels = check_scores(scores)
    columns = check_labels("source_tokens", source_tokens, panels.shape[2], "S")
    rows = check_labels("target_tokens", target_tokens, panels.shape[1], "T")
    panels = panels[:, : len(rows), : len(columns)]
    cell = _cell_inches(len(rows), len(columns))
    if ax is not None:
        if len(panels) != 1:
            raise ValueError(
                "`scores` must be of one head if `ax` is given: an axes holds one "
                f"panel. Received: scores of {len(panels)} heads"
            )
        draw_panel(ax, panels[0], columns, rows, cell)
        if title is not None:
            ax.set_title(drawable(title), parse_math=False, family=font_families())
        return cast(Figure, ax.get_figure(root=True))

    num_lines, num_columns = 1, panel_columns(len(panels))
    if wrap:
        num_lines, num_columns = _square_grid(len(panels), len(rows), len(columns))
    width = math.ceil(len(columns) / num_lines)
    # Nothing is drawn where a score is not a number.
    missing = num_lines * width - len(columns)
    padded = np.pad(panels, ((0, 0), (0, 0), (0, missing)), constant_values=np.nan)
    labels = [*columns, *[""] * missing]
    cell = _cell_inches(num_lines * len(rows), width)
    starts = range(0, num_lines * width, width)
    figure, axes = _grid_of_axes(
        len(panels) * num_lines, num_columns, columns[:width], rows, cell, title or ""
    )
    images = [
        draw_panel(
            axis,
            padded[head, :, start : start + width],
            labels[start : start + width],
            rows,
            cell,
        )
        for axis, (head, start) in zip(
            axes, itertools.product(range(len(panels)), starts), strict=True
        )
    ]
    if len(panels) > 1:
        for head, axis in enumerate(axes[num_lines - 1 :: num_lines]):
            axis.set_xlabel(f"head {head}", fontsize=9, color=TEXT_COLOR)
    add_color_bar(figure, images[0], ax=axes, aspect=24, pad=0.02)
    add_title(figure, title, fontsize=11)
    return figure


def new_figure(
    width: float,
    height: float,
    layout: Literal["constrained", "compressed"] | None = "compressed",
) -> Figure:
    """An empty figure of a given size in inches, at the resolution of all plots."""
    return _ShownFigure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout=layout)


class _ShownFigure(Figure):
    """A figure that a notebook shows, whatever the backend of `pyplot` is."""

    def _repr_png_(self) -> bytes:
        return _file_of(self, "png")


def text_style(points: float, color: str = TEXT_COLOR) -> dict[str, Any]:
    """The style of text of a size, for labels that may have any character."""
    return {
        "fontsize": points,
        "color": color,
        "family": font_families(),
        # "$" does not start a formula.
        "parse_math": False,
    }


def add_title(figure: Figure, title: str | None, **options) -> None:
    """Adds a title, if there is one; `options` go to `Figure.suptitle`."""
    if title is None:
        return
    figure.suptitle(drawable(title), **(text_style(10) | options))


def add_color_bar(figure: Figure, image, **options) -> None:
    """Adds the color bar of attention; `options` go to `Figure.colorbar`."""
    bar = figure.colorbar(image, **options)
    bar.set_label("attention weight (probability)", fontsize=9, color=TEXT_COLOR)
    bar.ax.tick_params(labelsize=8, length=2, color=_GRID_COLOR, labelcolor=TEXT_COLOR)
    bar.outline.set_visible(False)


def save_figure(figure: Figure, path: str | os.PathLike) -> None:
    """Writes a figure, in the format of its suffix: `.png`, `.pdf`, `.svg`.

    The file is written under a temporary name and renamed, so it is never incomplete.

    Args:
        figure: A matplotlib figure.
        path: The file to write. Missing folders are created.
    """
    suffix = Path(path).suffix.lower().removeprefix(".")
    formats = figure.canvas.get_supported_filetypes()
    if suffix not in formats:
        raise ValueError(
            f"`path` must end in one of {sorted(formats)}. Received: path={str(path)!r}"
        )
    write_atomically(path, _file_of(figure, suffix))


def figure_to_array(figure: Figure) -> np.ndarray:
    """Renders a figure and returns its pixels.

    Args:
        figure: A figure of matplotlib.

    Returns:
        uint8 (height, width, 3), red, green and blue in 0 to 255.
    """
    pixels = np.frombuffer(_file_of(figure, "rgba"), np.uint8)
    # 488 pixels may be 487.9999999 here.
    width, height = (int(size + 1e-6) for size in figure.bbox.size)
    return pixels.reshape(height, width, 4)[:, :, :3].copy()


def _file_of(figure: Figure, file_format: str) -> bytes:
    content = io.BytesIO()
    # `savefig` does not replace the canvas of the figure.
    figure.savefig(content, format=file_format, dpi="figure")
    return content.getvalue()


def check_scores(scores) -> np.ndarray:
    """The scores as float32 (heads, T, S), after a check of shape and range."""
    scores = np.asarray(scores, np.float32)
    if scores.ndim not in (2, 3) or 0 in scores.shape:
        raise ValueError(
            "`scores` must have the shape (T, S) or (heads, T, S), none of them 0; "
            "pass one example of a batch: `scores[0]`. "
            f"Received: scores of shape {scores.shape}"
        )
    if not np.isfinite(scores).all():
        raise ValueError(
            "`scores` must be finite. Received: scores with "
            f"{np.count_nonzero(~np.isfinite(scores))} of {scores.size} not finite"
        )
    # In half precision, probabilities may sum to slightly more than 1.
    if scores.min() < -0.01 or scores.max() > 1.01:
        raise ValueError(
            "`scores` must be probabilities in [0, 1], after the softmax. "
            f"Received: scores from {scores.min():.4g} to {scores.max():.4g}"
        )
    return scores.reshape(-1, *scores.shape[-2:])


def check_tokens(name: str, tokens: Sequence[str], limit: int, axis: str) -> list[str]:
    """Checks the number of labels of an axis."""
    if isinstance(tokens, str) or not 1 <= len(tokens) <= limit:
        raise ValueError(
            f"`{name}` must be a list of 1 to {limit} strings, the {axis} of `scores`. "
            f"Received: {name}={tokens!r}"
        )
    return list(tokens)


def check_labels(name: str, tokens: Sequence[str], limit: int, axis: str) -> list[str]:
    """The labels of an axis as drawn, after `check_tokens`."""
    return list(map(readable, check_tokens(name, tokens, limit, axis)))


def _cell_inches(num_rows: int, num_columns: int) -> float:
    smallest, largest = _CELL_INCHES
    return min(largest, max(smallest, _PANEL_INCHES / max(num_rows, num_columns)))


def panel_columns(panels: int) -> int:
    """Columns of a grid of panels: one row of up to 4, else 3 or 4 with fewest gaps."""
    if panels <= 4:
        return panels
    return min((4, 3), key=lambda width: -panels % width)


def _square_grid(panels: int, num_rows: int, num_columns: int) -> tuple[int, int]:
    """How many lines a panel has, and panels a row, for the smallest square.

    A panel of several lines is alone in its rows.
    """

    def side(shape: tuple[int, int]) -> int:
        lines, count = shape
        # With the labels of the columns, about as high as three cells.
        height = math.ceil(panels * lines / count) * (num_rows + 3)
        return max(height, math.ceil(num_columns / lines) * count)

    shapes = [(1, count) for count in range(1, panels + 1)]
    return min(shapes + [(lines, 1) for lines in range(2, num_columns)], key=side)


def _grid_of_axes(
    panels: int,
    num_columns: int,
    columns: list[str],
    rows: list[str],
    cell: float,
    title: str,
) -> tuple[Figure, list[Axes]]:
    """A figure with one axes per panel, large enough for cells of `cell` inches."""
    num_rows = math.ceil(panels / num_columns)
    letter = cell * _LETTER_WIDTH
    width = len(columns) * cell + 0.3
    height = len(rows) * cell + 0.4
    height += cell if is_upright(columns) else letter * max(map(len, columns))
    figure = new_figure(
        max(
            num_columns * width + letter * max(map(len, rows)) + 0.8,
            len(title) * _TITLE_LETTER_INCHES,
        ),
        # The label of the color bar is two inches long.
        max(num_rows * height + 0.3, 2.4),
    )
    axes = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axis in axes[panels:]:
        axis.remove()
    for index, axis in enumerate(axes):
        # All panels have the same rows, which are labelled once, at the left.
        axis.tick_params(labelleft=index % num_columns == 0)
    return figure, axes[:panels].tolist()


def draw_panel(ax: Axes, panel: np.ndarray, columns, rows, cell: float):
    """Draws one panel, (T, S), and returns its image, for the color bar.

    Args:
        ax: The axes.
        panel: Probabilities, (T, S).
        columns: S labels, or none.
        rows: T labels, or none.
        cell: Side of a cell in inches, for the size of the labels.
    """
    image = ax.imshow(
        panel,
        cmap=_COLORMAP,
        vmin=0.0,
        vmax=1.0,
        aspect="equal",
        interpolation="nearest",
    )
    size = min(_FONT_POINTS[1], max(_FONT_POINTS[0], cell * _POINTS_PER_CELL_INCH))
    style = text_style(size)
    rotation = 0 if is_upright(columns) else 90
    ax.set_xticks(range(len(columns)), columns, rotation=rotation, **style)
    ax.set_yticks(range(len(rows)), rows, **style)
    # The source is labelled along the top, as in the paper.
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    if cell >= _CELL_INCHES[0]:
        # Lines between the cells. The grid of minor ticks draws the same, but slowly.
        bottom, right = (size - 0.5 for size in panel.shape)
        lines = [[(x, -0.5), (x, bottom)] for x in np.arange(0.5, right)]
        lines += [[(-0.5, y), (right, y)] for y in np.arange(0.5, bottom)]
        width = min(0.6, 2.4 * cell)
        ax.add_collection(
            LineCollection(lines, colors=_GRID_COLOR, linewidths=width), autolim=False
        )
    ax.spines[:].set_color(_GRID_COLOR)
    return image


def is_upright(labels: list[str]) -> bool:
    """Whether labels fit above their columns without rotation."""
    return all(len(label) <= 1 for label in labels)
