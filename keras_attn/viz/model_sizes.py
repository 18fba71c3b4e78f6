"""How large published models are, and how well they do at their size.

Both plots are of the cards of models, which `models.describe` returns. The axis of the
parameters is logarithmic: equal steps are equal factors.
"""

import math
import os
import re
from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from keras_attn.checks.arguments import check_choice
from keras_attn.viz.drawing.panels import class_colors
from keras_attn.viz.drawing.plots import TEXT_COLOR, add_title, new_figure, text_style

_GRID_COLOR = "#e4e7eb"
_ROW_INCHES = 0.2
_LABEL_POINTS = 7.0
_LABEL_INCHES = 0.13  # Between the lines of two labels.
_AXIS_INCHES = 5.0
# From a point to its label, where that had to move.
_LEADER = {"arrowstyle": "-", "color": "#9aa3ad", "lw": 0.6}
_MOST_LABELS = 30
_MOST_COLUMNS = 3  # Of panels, each of this side.
_PANEL_INCHES = 2.6
# Measures that are percentages.
_SHARES = re.compile(r"top-1|accuracy|rate|IoU|\bAP\b|mAP|F1|GLUE")
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def plot_model_sizes(
    cards: Sequence[Any],
    by: Literal["year", "model"] = "year",
    *,
    title: str | None = None,
) -> Figure:
    """Draws the published numbers of parameters, on a logarithmic axis.

    Args:
        cards: Cards, from `models.describe`. Models without a published number are left
            out.
        by: `"year"`: a point for each model above the year of its paper, in the color
            of its series, such as GPT-2. Of more than 30 models, only the largest of
            each series and year is named. `"model"`: a line for each model, the
            smallest at the top.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If `by` is neither, or no card has a number of parameters.

    Example:
        ```python
        from keras_attn import models, viz

        cards = [models.describe(name) for name in models.list_models("gpt*")]
        viz.plot_model_sizes(cards)
        ```
    """
    check_choice("by", by, ("year", "model"))
    known = [card for card in cards if card.parameters is not None]
    if not known:
        raise ValueError(
            "`cards` must have at least one with a published number of parameters. "
            f"Received: {[card.name for card in cards]}"
        )
    known.sort(key=lambda card: (card.parameters, card.name))
    series = _series(known)
    names = sorted(set(series.values()))
    colors = dict(zip(names, class_colors(len(names)), strict=True))
    if by == "model":
        figure = new_figure(6.5, 0.8 + _ROW_INCHES * len(known))
        _draw_rows(figure.subplots(), known, series, colors)
    else:
        years = 1 + max(card.year for card in known) - min(card.year for card in known)
        figure = new_figure(max(4.5, min(19.0, 1.2 + 1.9 * years)), _AXIS_INCHES + 0.7)
        _draw_years(figure.subplots(), known, series, colors)
    add_title(figure, title)
    return figure


def plot_model_scores(
    cards: Sequence[Any], measure: str = "ImageNet top-1", *, title: str | None = None
) -> Figure:
    """Draws published scores against published numbers of parameters.

    Each setting, such as images of 384 pixels after pre-training on ImageNet-21k, has
    its own panel: only scores of one setting can be compared. A line joins the models
    of a series, such as Swin. Models with patches of different sizes are different
    series.

    Args:
        cards: Cards, from `models.describe`. Models without the number or the score are
            left out.
        measure: The measure of the scores, as the cards spell it.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If no card with a number of parameters has such a score.

    Example:
        ```python
        from keras_attn import models, viz

        families = ["vit_*", "deit3_*", "swin_*", "convnext_*"]
        names = [name for family in families for name in models.list_models(family)]
        viz.plot_model_scores([models.describe(name) for name in names])
        ```
    """
    known = [card for card in cards if card.parameters is not None]
    series = _by_patch(_series(known))
    # Setting, then series: parameters and scores.
    lines: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for card in known:
        for score in card.scores:
            if score.measure == measure:
                line = lines.setdefault(score.setting, {})
                points = line.setdefault(series[card.name], [])
                points.append((card.parameters, score.value))
    if not lines:
        measures = sorted({score.measure for card in known for score in card.scores})
        raise ValueError(
            "`measure` must be one of the measures of the models with a published "
            f"number of parameters: {', '.join(measures) or 'none'}. "
            f"Received: measure={measure!r}"
        )
    names = sorted({name for line in lines.values() for name in line})
    colors = dict(zip(names, class_colors(len(names)), strict=True))
    columns = min(_MOST_COLUMNS, len(lines))
    rows = math.ceil(len(lines) / columns)
    size = 1.7 + _PANEL_INCHES * columns, 0.5 + _PANEL_INCHES * rows
    figure = new_figure(*size, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for ax in grid.flat[len(lines) :]:
        ax.set_axis_off()
    for ax, setting in zip(grid.flat, sorted(lines), strict=False):
        for name, points in sorted(lines[setting].items()):
            sizes, values = zip(*sorted(points), strict=True)
            ax.plot(sizes, values, "-o", color=colors[name], lw=1.4, ms=5, alpha=0.9)
        _style(ax, "x")
        # Also above an empty place of the last row.
        ax.tick_params(labelbottom=True)
        ax.set_title(setting or "as published", **text_style(9))
    unit = " (%)" if _SHARES.search(measure) else ""
    figure.supxlabel("parameters", **text_style(9))
    figure.supylabel(measure + unit, **text_style(9))
    handles = [
        Line2D([], [], color=colors[name], marker="o", label=name) for name in names
    ]
    figure.legend(
        handles=handles,
        loc="outside right upper",
        frameon=False,
        fontsize=8,
        labelcolor=TEXT_COLOR,
    )
    add_title(figure, title)
    return figure


def _series(cards: Sequence[Any]) -> dict[str, str]:
    """The name of a model's series: what the names of one paper begin with.

    So "gpt2" for `gpt2_small` and `gpt2_xl`, and "resnet" for `resnet50`.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for card in cards:
        groups.setdefault((card.family, card.paper), []).append(card.name)
    series = {}
    for names in groups.values():
        prefix = os.path.commonprefix(names)
        if len(names) > 1 and "_" in prefix:
            prefix = prefix.rpartition("_")[0]
        series.update(dict.fromkeys(names, prefix or names[0].partition("_")[0]))
    return series


def _by_patch(series: dict[str, str]) -> dict[str, str]:
    """The series, divided by the size of the patches if a series has several."""
    found = {name: re.search(r"patch\d+", name) for name in series}
    patches = {name: "" if match is None else match[0] for name, match in found.items()}
    several = {
        each
        for each in series.values()
        if len({patches[name] for name in series if series[name] == each}) > 1
    }
    return {
        name: f"{each} {patches[name]}".strip() if each in several else each
        for name, each in series.items()
    }


def _draw_rows(ax: Axes, cards, series, colors) -> None:
    """A line for each model, from the left edge to its number of parameters."""
    left = cards[0].parameters / 2
    for row, card in enumerate(cards):
        color = colors[series[card.name]]
        ax.hlines(row, left, card.parameters, color=color, lw=2)
        ax.plot(card.parameters, row, "o", color=color, ms=5)
        ax.annotate(
            _short(card.parameters),
            (card.parameters, row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            **text_style(_LABEL_POINTS),
        )
    ax.set_yticks(
        range(len(cards)), [f"{card.name}, {card.year}" for card in cards], fontsize=7
    )
    ax.set_xlim(left, cards[-1].parameters * 4)
    ax.set_ylim(len(cards) - 0.4, -0.6)
    _style(ax, "x")
    ax.set_xlabel("parameters", **text_style(9))


def _draw_years(ax: Axes, cards, series, colors) -> None:
    """A point for each model above its year; labels that would overlap move up."""
    years: dict[int, list[Any]] = {}
    for card in cards:
        years.setdefault(card.year, []).append(card)
    smallest, largest = cards[0].parameters / 2, cards[-1].parameters * 2
    inches_per_decade = _AXIS_INCHES / math.log10(largest / smallest)
    # The last of a series is its largest.
    last = {(card.year, series[card.name]): card.name for card in cards}
    for year, group in years.items():
        for card in group:
            color = colors[series[card.name]]
            ax.plot(year, card.parameters, "o", color=color, ms=6, zorder=3)
        lowest = -math.inf
        for card in group:
            if len(cards) > _MOST_LABELS and card.name not in last.values():
                continue
            height = math.log10(card.parameters / smallest) * inches_per_decade
            lowest = max(height, lowest + _LABEL_INCHES)
            ax.annotate(
                f"{card.name}  {_short(card.parameters)}",
                (year, card.parameters),
                xytext=(8, (lowest - height) * 72),
                textcoords="offset points",
                va="center",
                arrowprops=_LEADER if lowest > height else None,
                **text_style(_LABEL_POINTS),
            )
    ax.set_xticks(range(min(years), max(years) + 1))
    # Room for the labels of the last year.
    ax.set_xlim(min(years) - 0.2, max(years) + 1)
    _style(ax, "y")
    ax.set_ylim(smallest, largest)
    ax.set_ylabel("parameters", **text_style(9))
    ax.set_xlabel("year of the paper", **text_style(9))


def _style(ax: Axes, axis: Literal["x", "y"]) -> None:
    """A logarithmic axis of parameters, with a grid and few lines."""
    if axis == "x":
        ax.set_xscale("log")
    else:
        ax.set_yscale("log")
    scale = ax.xaxis if axis == "x" else ax.yaxis
    low, high = ax.get_xlim() if axis == "x" else ax.get_ylim()
    scale.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    scale.set_minor_formatter(NullFormatter())
    # Within a decade or so, powers of ten are too few to read.
    if high / low < 30:
        scale.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.grid(color=_GRID_COLOR, lw=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(colors=TEXT_COLOR, labelsize=8, length=2)
    ax.spines[["top", "right"]].set_visible(False)


def _short(number: float) -> str:
    """Such as 110M or 1.3B."""
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"
