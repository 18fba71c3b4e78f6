"""The heads of all layers side by side.

Legend: N heads, T target tokens (rows), S source tokens (columns).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_attn.viz.drawing.labels import drawable, readable
from keras_attn.viz.drawing.plots import (
    TEXT_COLOR,
    add_color_bar,
    add_title,
    check_scores,
    check_tokens,
    draw_panel,
    is_upright,
    new_figure,
    panel_columns,
)

# Everything is placed by hand, in inches: matplotlib's layout engines take minutes for
# the 144 panels of BERT-base.
_CELL_INCHES = (
    0.09,
    0.22,
)  # Below the first size, labels are left out: cells are too small.
_GRID_INCHES = 40.0
_GAP = 0.14
_MARGIN = 0.12
_LINE = 0.2  # Height of a line of text.
_HEAD_INCHES = 0.26  # Height of the number of a head.
_TITLE_INCHES = 0.35
_LETTERS_PER_CELL = 0.44  # Width of a letter, in cells, for most proportional fonts.
_COLOR_BAR_INCHES = (0.85, 2.0)  # With its label.


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """The attention of one layer for one example.

    Attributes:
        index: Position of the layer in the order of calls, from 0.
        path: Path of the layer.
        num_heads: Number of heads of the layer.
        heads: Numbers of the N heads chosen from them.
        scores: (N, T, S) probabilities, cut to the tokens.
        source_tokens: S labels.
        target_tokens: T labels.
    """

    index: int
    path: str
    num_heads: int
    heads: list[int]
    scores: np.ndarray
    source_tokens: list[str]
    target_tokens: list[str]


def plot_attention_heads(
    scores: Mapping[str, np.ndarray],
    source_tokens: Sequence[str],
    target_tokens: Sequence[str] | None = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    title: str | None = None,
) -> Figure:
    """Draws the attention of every head: one row per layer, one column per head.

    In each panel, rows attend and columns are attended to, on the scale of
    `plot_alignment`, 0 to 1. The heads of a single layer are wrapped into several rows.

    Args:
        scores: Path of each layer to its probabilities, (N, T, S) or (1, N, T, S), as
            `capture_attention` returns them for one example.
        source_tokens: Labels of the tokens that the encoder, or the model, reads.
            Positions after them are padding, and not drawn.
        target_tokens: Labels of the tokens of a decoder that attends to an encoder.
            None means that every layer attends from source to source.
        layers: Numbers of the layers to draw, from 0 in the order of `scores`. None =
            all.
        heads: Numbers of the heads to draw. None = all.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If `scores` have a different shape, there are more tokens than
            scores, or a layer or head does not exist.

    Example:
        ```python
        import numpy as np
        from keras_attn import models, viz

        gpt = models.build_gpt(num_layers=2, hidden_dim=32, num_heads=2)
        inputs = {"token_ids": np.array([[5, 6, 7]]), "padding_mask": np.ones((1, 3))}
        scores = viz.capture_attention(gpt, inputs)  # (1, 2, 3, 3) for each layer.
        viz.plot_attention_heads(scores, ["A", "dog", "runs"], layers=[0, 1])
        ```
    """
    rows = _wrap(select_layers(scores, source_tokens, target_tokens, layers, heads))
    layout = _Layout(rows, title)
    figure = new_figure(*layout.size, layout=None)
    y, image = layout.margin, None
    for row, top, height in zip(rows, layout.tops, layout.heights, strict=True):
        y, x = y + top, layout.left
        for column, (layer, panel) in enumerate(row):
            width = layer.scores.shape[2] * layout.cell
            axes = layout.add_axes(figure, x, y, width, height)
            # Each label is drawn once: left of its row, and above its column.
            columns = layer.source_tokens if top > _HEAD_INCHES else []
            lines = layer.target_tokens if column == 0 and layout.has_labels else []
            image = draw_panel(
                axes,
                layer.scores[panel],
                list(map(readable, columns)),
                list(map(readable, lines)),
                layout.cell,
            )
            if layer.num_heads > 1:
                _label_head(axes, layer.heads[panel], top)
            if column == 0:
                _label_layer(axes, layer, layout.left)
            x += width + _GAP
        y += height
    length = min(_COLOR_BAR_INCHES[1], y - layout.margin)
    bar = layout.add_axes(figure, layout.right, y - length, 0.1, length)
    add_color_bar(figure, image, cax=bar)
    add_title(figure, title, fontsize=11, y=1 - 0.2 / layout.size[1])
    return figure


def select_layers(
    scores: Mapping[str, np.ndarray],
    source_tokens: Sequence[str],
    target_tokens: Sequence[str] | None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> list[LayerAttention]:
    """Checks the scores of one example and cuts them to the chosen heads and tokens.

    Args:
        scores: As in `plot_attention_heads`, like the other arguments.
        source_tokens: Labels of the source tokens.
        target_tokens: Labels of the target tokens, or None.
        layers: Numbers of layers, or None.
        heads: Numbers of heads, or None.

    Returns:
        The chosen layers, in the order of `scores`.

    Raises:
        ValueError: As for `plot_attention_heads`.
    """
    paths = list(scores)
    if not paths:
        raise ValueError("`scores` must have at least one layer. Received: scores={}")
    chosen = []
    for index in _check_numbers("layers", layers, len(paths)):
        path = paths[index]
        panels = np.asarray(scores[path])
        if panels.ndim == 4 and len(panels) == 1:
            panels = panels[0]
        panels = check_scores(panels)
        numbers = _check_numbers("heads", heads, len(panels))
        sources, targets = choose_tokens(path, source_tokens, target_tokens)
        columns = check_tokens("source_tokens", sources, panels.shape[2], "S")
        rows = check_tokens("target_tokens", targets, panels.shape[1], "T")
        chosen.append(
            LayerAttention(
                index,
                path,
                len(panels),
                numbers,
                panels[numbers][:, : len(rows), : len(columns)],
                columns,
                rows,
            )
        )
    return chosen


def choose_tokens(path: str, source_tokens, target_tokens) -> tuple:
    """The labels of the columns and the rows of a layer, determined by its path.

    Args:
        path: Path of the layer.
        source_tokens: As in `plot_attention_heads`, like the next one.
        target_tokens: Labels of the target tokens, or None.
    """
    if target_tokens is None or path.startswith("encoder"):
        return source_tokens, source_tokens
    if "self_attention" in path:
        return target_tokens, target_tokens
    return source_tokens, target_tokens


def _check_numbers(name: str, numbers: Sequence[int] | None, count: int) -> list[int]:
    if numbers is None:
        return list(range(count))
    if not numbers or not all(0 <= number < count for number in numbers):
        raise ValueError(
            f"`{name}` must be numbers from 0 to {count - 1}. "
            f"Received: {name}={list(numbers)}"
        )
    return sorted(set(numbers))


Row = list[tuple[LayerAttention, int]]


def _wrap(layers: list[LayerAttention]) -> list[Row]:
    """Rows of panels, each a layer and the position of a head in its scores."""
    rows = [[(layer, head) for head in range(len(layer.heads))] for layer in layers]
    if len(rows) == 1:
        (row,) = rows
        columns = panel_columns(len(row))
        rows = [row[start : start + columns] for start in range(0, len(row), columns)]
    return rows


class _Layout:
    """Positions and sizes in inches; x and y start in the upper left corner.

    Attributes:
        cell: Side of a cell of a panel.
        has_labels: Whether the cells are large enough for token labels.
        margin: Distance of the grid from the upper edge.
        left: x of the first column of panels.
        right: x of the color bar.
        tops: Height of the labels above each row of panels.
        heights: Height of each row of panels.
        size: Width and height of the figure.
    """

    def __init__(self, rows: list[Row], title: str | None):
        columns = [[layer.scores.shape[2] for layer, _ in row] for row in rows]
        lines = [row[0][0].scores.shape[1] for row in rows]
        smallest, largest = _CELL_INCHES
        cell = min(largest, _GRID_INCHES / max(sum(lines), *map(sum, columns)))
        self.cell, self.has_labels = cell, cell >= smallest
        self.heights = [cell * count for count in lines]
        self.tops = [
            _HEAD_INCHES + _label_height(row, cell) * (self.has_labels and is_new)
            for row, is_new in zip(rows, _differ_from_above(rows), strict=True)
        ]
        self.margin = _MARGIN + _TITLE_INCHES * (title is not None)
        self.left = _MARGIN + _LINE
        if self.has_labels:
            self.left += _label_inches(rows, "target_tokens", cell)
        grid = max(cell * sum(widths) + _GAP * len(widths) for widths in columns)
        self.right = self.left + grid + 0.1
        width, height = _COLOR_BAR_INCHES
        self.size = (
            max(self.right + width, 0.1 * len(title or "")),
            self.margin + max(sum(self.tops) + sum(self.heights), height) + _MARGIN,
        )

    def add_axes(
        self, figure: Figure, x: float, y: float, width: float, height: float
    ) -> Axes:
        """Adds axes with their upper left corner at `x`, `y`."""
        across, down = self.size
        return figure.add_axes(
            (x / across, 1 - (y + height) / down, width / across, height / down)
        )


def _label_inches(rows: list[Row], name: str, cell: float) -> float:
    """Length of the longest label."""
    labels = (label for row in rows for label in getattr(row[0][0], name))
    return max(map(len, labels)) * cell * _LETTERS_PER_CELL + 0.05


def _label_height(row: Row, cell: float) -> float:
    """Height of the column labels above a row of panels."""
    if is_upright(row[0][0].source_tokens):
        return cell
    return _label_inches([row], "source_tokens", cell)


def _differ_from_above(rows: list[Row]) -> list[bool]:
    """For each row of panels, whether its columns differ from the row above."""
    columns = [row[0][0].source_tokens for row in rows]
    return [True, *(one != two for one, two in itertools.pairwise(columns))]


def _label_head(axes: Axes, head: int, top: float) -> None:
    """Writes the number of the head above a panel and its column labels."""
    axes.annotate(
        f"head {head}",
        (0.5, 1.0),
        xytext=(0, (top - _HEAD_INCHES / 2) * 72),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=8,
        color=TEXT_COLOR,
    )


def _label_layer(axes: Axes, layer: LayerAttention, left: float) -> None:
    """Writes the path of the layer beside a row of panels and its row labels."""
    axes.annotate(
        drawable(layer.path),
        (0.0, 0.5),
        xytext=((_MARGIN + _LINE / 2 - left) * 72, 0),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
        va="center",
        rotation=90,
        fontsize=8,
        color=TEXT_COLOR,
        parse_math=False,
    )
