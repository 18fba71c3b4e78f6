"""Scores of several models as curves, with the spread of their runs.

Legend: R runs (seeds), L lengths.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from keras_attn.viz.drawing.plots import TEXT_COLOR, add_title, new_figure, text_style

# Okabe and Ito's, told apart by color-blind readers; the markers differ, too.
_STYLES = (
    ("#0072b2", "o"),
    ("#d55e00", "s"),
    ("#009e73", "^"),
    ("#cc79a7", "D"),
    ("#e69f00", "v"),
    ("#56b4e9", "P"),
)
_NOTE_LETTERS = 96  # In a line.


def plot_scores_by_length(
    lengths: Sequence[float],
    scores: Mapping[str, Any],
    *,
    score_name: str = "score",
    length_name: str = "length",
    trained_length: float | None = None,
    chance: float | None = None,
    note: str | None = None,
    title: str | None = None,
) -> Figure:
    """Draws scores against the length of the input, one curve per model.

    A curve is the mean over the runs of a model, its band goes from their smallest
    score to their largest. What is longer than anything in training is shaded.

    Args:
        lengths: L lengths, increasing.
        scores: For each model by name (R, L), a row for each run (seed); at most six
            models.
        score_name: Name and unit of the scores, for the vertical axis.
        length_name: Name and unit of the lengths, for the horizontal axis.
        trained_length: Largest length in training, which is marked.
        chance: Score of guessing, which is marked.
        note: Text under the figure.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If `lengths` are not two or more increasing numbers, or `scores` are
            of no model or of more than six, are not (R, L) or are not finite.

    Example:
        ```python
        from keras_attn import viz

        runs = {"attention": [[99, 96], [98, 95]], "one vector": [[80, 30], [83, 33]]}
        viz.plot_scores_by_length([8, 20], runs, score_name="digits right (%)")
        ```

    Reference:
        The figure is that of Bahdanau et al. 2015, figure 2 (arXiv:1409.0473).
    """
    places = _as_floats(lengths)
    is_finite = places.ndim == 1 and np.isfinite(places).all()
    if not is_finite or len(places) < 2 or not (np.diff(places) > 0).all():
        raise ValueError(
            "`lengths` must be two or more increasing numbers. "
            f"Received: lengths={lengths!r}"
        )
    runs = _check_scores(scores, len(places))
    figure = new_figure(6.4, 4.2, "constrained")
    axis = figure.subplots()
    ends = [float(places[0]), float(places[-1])]
    if trained_length is not None:
        ends.append(trained_length)
    edge = 0.02 * (max(ends) - min(ends))
    left, right = min(ends) - edge, max(ends) + edge
    if trained_length is not None:
        axis.axvline(trained_length, color=TEXT_COLOR, linestyle="--", linewidth=1)
        axis.axvspan(trained_length, right, color="0.5", alpha=0.12, linewidth=0)
        axis.text(
            trained_length,
            1.01,
            f"longest in training: {trained_length:g}",
            transform=axis.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=8,
            color=TEXT_COLOR,
        )
    for (name, rows), (color, marker) in zip(runs.items(), _STYLES, strict=False):
        axis.fill_between(
            places, rows.min(0), rows.max(0), color=color, alpha=0.22, linewidth=0
        )
        axis.plot(places, rows.mean(0), marker, ls="-", color=color, ms=5, label=name)
    if chance is not None:
        label = f"chance: {chance:g}"
        axis.axhline(chance, color=TEXT_COLOR, linestyle=":", linewidth=1, label=label)
    drawn = np.concatenate([rows.ravel() for rows in runs.values()])
    low = 1.05 * min(0, chance or 0, float(drawn.min()))
    high = 1.05 * max(0, chance or 0, float(drawn.max()))
    axis.set(xlim=(left, right), ylim=(low, high if high > low else 1))
    axis.set_xlabel(length_name, **text_style(9))
    axis.set_ylabel(score_name, **text_style(9))
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="#e4e7eb")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    counts = [len(rows) for rows in runs.values()]
    least, most = min(counts), max(counts)
    number = most if least == most else f"{least} to {most}"
    of_runs = "one run" if most == 1 else f"{number} runs: mean, min–max"
    legend = axis.legend(title=of_runs, fontsize=8, title_fontsize=8, framealpha=0.9)
    for label in legend.get_texts():
        label.set_parse_math(False)
    if note is not None:
        text = "\n".join(textwrap.wrap(note, _NOTE_LETTERS))
        figure.supxlabel(text, **text_style(8))
    add_title(figure, title)
    return figure


def _check_scores(scores, num_lengths) -> dict[str, np.ndarray]:
    """The scores as float32 arrays (R, L) by name."""
    if not isinstance(scores, Mapping) or not 1 <= len(scores) <= len(_STYLES):
        raise ValueError(
            f"`scores` must be a dictionary of 1 to {len(_STYLES)} models. "
            f"Received: scores={scores!r}"
        )
    runs = {}
    for name, rows in scores.items():
        rows = _as_floats(rows)
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != num_lengths:
            raise ValueError(
                f"`scores` must be (runs, {num_lengths}) numbers of each model, a "
                f"column for each of `lengths`. Received: {name!r} of shape "
                f"{rows.shape}"
            )
        if not np.isfinite(rows).all():
            raise ValueError(
                f"`scores` must be finite. Received: {name!r} with "
                f"{np.count_nonzero(~np.isfinite(rows))} of {rows.size} not finite"
            )
        runs[name] = rows
    return runs


def _as_floats(values) -> np.ndarray:
    """Numbers as float32; without axes if they are none, or rows of unequal lengths."""
    try:
        return np.asarray(values, "float32")
    except (TypeError, ValueError):
        return np.zeros(())
