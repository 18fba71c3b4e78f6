"""An attention layer step by step: a row of heat maps, from the inputs to the output.

    X → Q, K → E → A → V → A V → Y      as given, a row for each head
    X' → …                → Y'          the same with the inputs in another order

Legend: N heads, T queries, S keys.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_attn.docstrings.descriptions import described_as
from keras_attn.viz.drawing.labels import readable
from keras_attn.viz.drawing.panels import text_color_on
from keras_attn.viz.drawing.plots import add_title, new_figure, text_style
from keras_attn.viz.layer_steps import (
    Explained,
    Panel,
    attention_steps,
    call_arguments,
    explain_orders,
)

NUMBERED = 8  # Rows and columns up to which each cell shows its number.
MOST_LABELLED = 32  # Tokens up to which each has its label.
_SIGNED, _SHARES = "RdBu_r", "Blues"
_HIDDEN = "#c9ced6"
# Everything is placed by hand, in inches.
_CELL, _PANEL = 0.33, 2.3
_GAP, _MARGIN, _LETTER = 0.24, 0.15, 0.068
_TITLE, _ORDER, _BAR = 0.5, 0.35, 0.6
_BAR_WIDTH = 0.9
_SMALLEST_LABELLED = 0.1
_LONGEST = 12
# Before these panels an arrow shows that they follow from the ones on their left.
_FOLLOWING = ("Q", "E", "A", "A V", "Y")


class _Column(NamedTuple):
    """One step: its panel in each order, and its place."""

    panels: list[Panel]
    rows: list[list[str]]
    columns: list[list[str]]
    left: float
    width: float
    height: float
    left_labels: float
    top_labels: float
    largest: float


@described_as(attention_steps)
def plot_attention_layer(
    layer: keras.layers.Layer,
    query,
    value=None,
    mask=None,
    permutation: Sequence[int] | None = None,
    *,
    key=None,
    labels: Sequence[str] | None = None,
    value_labels: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    title: str | None = None,
    **call: Any,
) -> Figure:
    """Draws each step of an attention layer as a heat map: X → Q, K → E → A → V → Y.

    Each title has the shape. Arrays of up to 8 × 8 show their numbers. Red is positive,
    blue negative, each step on a scale of its own; probabilities are on one from 0 to
    1; gray is masked. If a score has several terms, each has a heat map before E.

    Args:
        permutation: A second row below is of the inputs in this order: row
            `permutation[i]` of the query becomes row i; of `GlimpseAttention` of the
            value; of maps of their positions, row after row. A mask of padding goes
            with its rows. The row says what this does to the output.
        labels: A text for each query, or position. None = numbers.
        value_labels: A text for each key. None = numbers, or in self-attention
            `labels`.
        heads: Numbers of the heads to draw. None = all; windows have heads of their
            own.
        title: Title of the figure.
        **call: Further arguments of the layer's call, with a batch of one, such as
            `attention_bias`, `memory` or `same_segment`.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: As for `attention_steps`; or if `permutation` is none of the rows, a
            head does not exist or there is another number of labels.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers, viz

        layer = layers.MultiHeadAttention(num_heads=2, key_dim=4)
        vectors = np.random.normal(size=(3, 8))
        order = [2, 0, 1]  # The same inputs in another order, below.
        viz.plot_attention_layer(layer, vectors, mask="causal", permutation=order)
        ```
    """
    arguments = call_arguments(layer, query, value, key, mask, call)
    explained = explain_orders(layer, arguments, permutation, labels, value_labels)
    return plot_steps(explained, heads, title)


def plot_steps(
    explained: Explained,
    heads: Sequence[int] | None = None,
    title: str | None = None,
) -> Figure:
    """The figure of `plot_attention_layer`, from the steps.

    Args:
        explained: The steps.
        heads: Numbers of heads, or None.
        title: Title, or None.
    """
    orders = explained.orders(heads)
    steps, labels = zip(*orders, strict=True)
    names = steps[0].heads
    columns = _columns([each.panels() for each in steps], labels, names)
    gaps = (len(names) - 1) * _GAP
    # Of one head, or a part of what is as high as all heads together.
    row = max(
        column.height
        if column.panels[0].array.ndim == 3
        else (column.height - gaps) / len(names)
        for column in columns
    )
    top = _TITLE + max(column.top_labels for column in columns)
    block = _ORDER * (len(steps) > 1) + top + len(names) * row + gaps
    last = columns[-1]
    width = last.left + last.width + _MARGIN + 0.2
    title_height = 0.45 if title else 0.0
    height = title_height + len(steps) * (block + _GAP) + _BAR
    page = _Page(new_figure(width, height, layout=None), width, height)
    y = title_height
    for number in range(len(steps)):
        if len(steps) > 1:
            text = "inputs as given"
            if number:
                text = f"inputs in another order. {explained.effect}"
            page.write(_MARGIN, y + 0.2, text, 10, ha="left")
            y += _ORDER
        for column in columns:
            _draw_column(page, column, number, y, top, row, names)
        for head, name in enumerate(names if len(names) > 1 else []):
            middle = y + top + head * (row + _GAP) + row / 2
            page.write(_MARGIN, middle, name, 9, ha="left")
        y += block - _ORDER * (len(steps) > 1) + _GAP
    for column in columns:
        _draw_bar(page, column, y)
    add_title(page.figure, title, fontsize=11, y=1 - 0.17 / height)
    return page.figure


class _Page(NamedTuple):
    """A figure whose parts are placed in inches from its upper left corner."""

    figure: Figure
    width: float
    height: float

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """Axes at a place, of a size."""
        place = (x / self.width, 1 - (y + height) / self.height)
        return self.figure.add_axes((*place, width / self.width, height / self.height))

    def write(self, x: float, y: float, text: str, points: float, **style) -> None:
        """A text, whose middle has the height y."""
        style = {"ha": "center", "va": "center", **text_style(points), **style}
        self.figure.text(x / self.width, 1 - y / self.height, text, **style)


def _columns(orders: list[list[Panel]], labels, heads: list[str]) -> list[_Column]:
    """The steps, each with its panel in each order, from left to right."""
    columns = []
    x = _MARGIN
    if len(heads) > 1:
        x += max(map(len, heads)) * _LETTER * 1.3 + _GAP
    for panels in zip(*orders, strict=True):
        first = panels[0]
        rows, units = first.array.shape[-2:]
        names = [_names(panel, *own) for panel, own in zip(panels, labels, strict=True)]
        cells = [
            _cell(size, bool(texts))
            for size, texts in ((units, names[0][1]), (rows, names[0][0]))
        ]
        left = _space([each[0] for each in names], cells[1])
        top = _space([each[1] for each in names], cells[0])
        width = units * cells[0]
        letters = max(len(first.meaning) * 0.8, len(_heading(first)) * 1.2)
        slot = max(width + left, letters * _LETTER)
        largest = max(np.abs(panel.array).max(initial=0) for panel in panels)
        start = x + (slot - width - left) / 2 + left
        columns.append(
            _Column(
                list(panels),
                [each[0] if left else [] for each in names],
                [each[1] if top else [] for each in names],
                start,
                width,
                rows * cells[1],
                left,
                top,
                float(largest) or 1.0,
            )
        )
        x += slot + _GAP
    return columns


def _cell(size: int, is_labelled: bool) -> float:
    """The side of a cell of a panel, in inches: labels of a few tokens can be read."""
    can_be_read = is_labelled and size <= MOST_LABELLED
    return max(min(_CELL, _PANEL / size), _SMALLEST_LABELLED * can_be_read)


def _names(panel: Panel, queries, keys) -> tuple[list[str], list[str]]:
    """The labels of the rows and of the columns of a panel."""
    rows, columns = panel.array.shape[-2:]
    sources = {"query": queries, "key": keys}

    def of(kind, count):
        names = sources.get(kind, [])
        # Windows have other rows than the map that they are cut from.
        return [_short(name) for name in names] if len(names) == count else []

    return of(panel.rows, rows), of(panel.columns, columns)


def _short(label: str) -> str:
    label = readable(label)
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"


def _space(labels: list[list[str]], cell: float) -> float:
    """Inches that the longest label takes, 0 if cells are too small for labels."""
    if cell < _SMALLEST_LABELLED:
        return 0.0
    longest = max((len(name) for each in labels for name in each), default=0)
    return longest * _LETTER + 0.06 if longest else 0.0


def _heading(panel: Panel) -> str:
    shape = " × ".join(map(str, panel.array.shape[-2:]))
    return f"{panel.name}   {shape}"


def _draw_column(page, column: _Column, number, y, top, row, names) -> None:
    """One step of one order: its title, and a panel for each head."""
    panel = column.panels[number]
    middle = column.left + column.width / 2
    page.write(middle, y + 0.12, _heading(panel), 9.5)
    page.write(middle, y + 0.31, panel.meaning, 7)
    height = len(names) * row + (len(names) - 1) * _GAP
    if panel.name in _FOLLOWING:
        x = column.left - column.left_labels - _GAP / 2
        page.write(x, y + top + height / 2, "→", 12)
    heads = panel.array if panel.array.ndim == 3 else panel.array[None]
    for head, values in enumerate(heads):
        if panel.hidden is not None:
            values = np.where(panel.hidden[head], np.nan, values)
        start = y + top + head * (row + _GAP) + (row - column.height) / 2
        if panel.array.ndim == 2:  # One for all heads.
            start = y + top + (height - column.height) / 2
        axes = page.axes(column.left, start, column.width, column.height)
        columns = column.columns[number] if head == 0 else []
        _draw_values(axes, panel, values, column, column.rows[number], columns)


def _draw_values(axes: Axes, panel: Panel, values, column, rows, columns) -> None:
    colors, low, high = _scale(panel, column.largest)
    image = axes.imshow(
        values,
        cmap=colormaps[colors].with_extremes(bad=_HIDDEN),
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
    )
    style = text_style(7)
    axes.set_xticks(range(len(columns)), columns, rotation=90, **style)
    axes.set_yticks(range(len(rows)), rows, **style)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_color("#d5d9de")
    if max(values.shape) > NUMBERED:
        return
    for (row, unit), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        color = text_color_on(np.array(image.cmap(image.norm(value)))[:3].tolist())
        axes.text(
            unit, row, _figure(value), ha="center", va="center", fontsize=6, color=color
        )


def _scale(panel: Panel, largest: float) -> tuple[str, float, float]:
    if panel.name == "A":
        return _SHARES, 0.0, 1.0
    return _SIGNED, -largest, largest


def _figure(value: float) -> str:
    """A number in four letters or few more."""
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.3g}"
    return text.removeprefix("-") if float(text) == 0 else text


def _draw_bar(page, column: _Column, y: float) -> None:
    """The scale of a step, below its panels."""
    panel = column.panels[0]
    colors, low, high = _scale(panel, column.largest)
    width = min(_BAR_WIDTH, max(column.width, 0.5))
    left = column.left + (column.width - width) / 2
    axes = page.axes(left, y + 0.05, width, 0.09)
    steps = np.linspace(low, high, 64)[None]
    axes.imshow(steps, cmap=colors, aspect="auto", extent=(low, high, 0, 1))
    axes.set_yticks([])
    axes.set_xticks([low, high], [_figure(low), _figure(high)], **text_style(6))
    axes.tick_params(length=0, pad=1)
    axes.spines[:].set_visible(False)
    if panel.name == "A":
        text = "probability; gray: masked"
        page.write(left + width / 2, y + 0.42, text, 6.5)
