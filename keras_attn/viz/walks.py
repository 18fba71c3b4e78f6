"""Where a walker went on the floor plan, and which words it attended to.

Legend: T viewpoints of the walk, S words.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from keras_attn.checks.arguments import is_whole
from keras_attn.data.navigation.buildings import Building
from keras_attn.viz.drawing.labels import font_families
from keras_attn.viz.drawing.plots import (
    TEXT_COLOR,
    add_color_bar,
    add_title,
    check_labels,
    check_scores,
    draw_panel,
    new_figure,
)

_WAY, _TRUE, _TAKEN = "#d5d9de", "#3a7d44", "#1f5fa8"
_PLAN_INCHES, _CELL_INCHES, _MAX_WIDTH = 4.2, 0.24, 11.0
# Viewpoints this far above or below the paths, in meters, are on other floors.
_FLOOR_MARGIN = 1.5


def plot_walk(
    building: Building,
    true_path: Sequence[int],
    taken_path: Sequence[int],
    words: Sequence[str],
    scores: np.ndarray,
    *,
    title: str | None = None,
) -> Figure:
    """Draws a walk on the floor plan, beside its attention to the words.

    The plan shows the viewpoints and the ways between them on the floors of the two
    paths, from above, in meters; the true path is green, the one taken blue, with the
    number of each step. The panel has one row for each of these numbers, like figure 4
    of Mei et al. for each action: darker is more attention, from 0 to 1.

    Args:
        building: Where the walk is.
        true_path: Numbers of the viewpoints of the path that the instruction describes.
        taken_path: Numbers of the viewpoints of the walk, including the start.
        words: At most S words of the instruction.
        scores: Probabilities in [0, 1], (T, S), or (heads, T, S), whose mean is drawn:
            the attention at each viewpoint of `taken_path`. Additional rows are not
            drawn; the last viewpoint of a walk that did not stop has none.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If `scores` have a different shape or are outside [0, 1], there are
            more words or viewpoints than scores, or a path is empty or not in the
            building.

    Reference:
        Mei et al. 2016, figure 4 (arXiv:1506.04089).
    """
    panels = check_scores(scores)
    columns = check_labels("words", words, panels.shape[2], "S")
    taken = _check_path("taken_path", taken_path, building)
    true = _check_path("true_path", true_path, building)
    limit = panels.shape[1] + 1
    if len(taken) > limit:
        raise ValueError(
            f"`taken_path` must have at most {limit} viewpoints, one more than the T "
            f"of `scores`. Received: {len(taken)} viewpoints"
        )
    rows = [str(step) for step in range(min(len(taken), panels.shape[1]))]
    panel = panels.mean(0)[: len(rows), : len(columns)]

    cell = min(_CELL_INCHES, _MAX_WIDTH / len(columns))
    width = max(len(columns) * cell, 2.0)
    figure = new_figure(
        _PLAN_INCHES + width + 1.4, _PLAN_INCHES + 0.4, layout="constrained"
    )
    plan, words_axis = figure.subplots(1, 2, width_ratios=(_PLAN_INCHES, width))
    _draw_plan(plan, building, true, taken)
    image = draw_panel(words_axis, panel, columns, rows, cell)
    words_axis.set_ylabel("step", fontsize=9, color=TEXT_COLOR)
    add_color_bar(figure, image, ax=words_axis, shrink=0.6, aspect=20, pad=0.02)
    add_title(figure, title)
    return figure


def _draw_plan(axis, building, true, taken) -> None:
    """The viewpoints and ways of the floors of two paths, and the paths."""
    positions = building.positions
    heights = positions[[*true, *taken], 2]
    is_shown = (positions[:, 2] > heights.min() - _FLOOR_MARGIN) & (
        positions[:, 2] < heights.max() + _FLOOR_MARGIN
    )
    ways = [
        positions[[one, other], :2]
        for one, neighbors in enumerate(building.neighbors)
        for other in neighbors
        if one < other and is_shown[one] and is_shown[other]
    ]
    axis.add_collection(LineCollection(ways, colors=_WAY, linewidths=0.7, zorder=1))
    shown = positions[is_shown]
    axis.scatter(shown[:, 0], shown[:, 1], s=7, color="#aab2bb", zorder=2)
    style: dict[str, Any] = {"solid_capstyle": "round", "zorder": 3}
    for path, color, thickness, label in (
        (true, _TRUE, 4.5, "true path"),
        (taken, _TAKEN, 1.6, "taken"),
    ):
        x, y = positions[path, :2].T
        axis.plot(x, y, color=color, linewidth=thickness, label=label, **style)
        axis.plot(x[-1], y[-1], "o", color=color, markersize=thickness + 4, zorder=3)
    for step, viewpoint in enumerate(taken):
        axis.annotate(
            str(step),
            positions[viewpoint, :2],
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=7,
            color=TEXT_COLOR,
            family=font_families(),
            zorder=4,
        )
    axis.set_aspect("equal", adjustable="datalim")
    axis.set_xlabel("x (m)", fontsize=9, color=TEXT_COLOR)
    axis.set_ylabel("y (m)", fontsize=9, color=TEXT_COLOR)
    axis.tick_params(labelsize=8, length=2, labelcolor=TEXT_COLOR)
    axis.spines[:].set_color(_WAY)
    axis.legend(fontsize=8, frameon=False, loc="best")


def _check_path(name: str, path, building: Building) -> list[int]:
    count = len(building.viewpoints)
    numbers = np.asarray(list(path)).tolist()
    if not numbers or not all(is_whole(each) and 0 <= each < count for each in numbers):
        raise ValueError(
            f"`{name}` must be numbers of viewpoints of building {building.name!r}, at "
            f"least one, each below {count}. Received: {name}={path!r}"
        )
    return numbers
