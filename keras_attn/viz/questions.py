"""Where a captioner looks for each word, and an answerer for its answer.

Legend: H and W pixels, T words, C glimpses, h and w rows and columns of a map.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from keras_attn.checks.arguments import check_positive, check_same_length
from keras_attn.docstrings.descriptions import described_as
from keras_attn.viz.drawing.labels import drawable
from keras_attn.viz.drawing.overlays import check_image, check_maps, overlay
from keras_attn.viz.drawing.plots import add_title, new_figure, text_style
from keras_attn.viz.images import plot_image_attention

_PANEL_INCHES = 1.9
_BAR, _TRUE_BAR = "#7f9fc2", "#3a7d44"


@described_as(plot_image_attention)
def plot_caption_attention(
    image,
    words: Sequence[str],
    maps,
    *,
    title: str | None = None,
    box: Sequence[float] | None = None,
) -> Figure:
    """Draws an image, and over it where a captioner looked at each word.

    Colors run from 0 to the maximum of each map, so they compare locations, not words.

    Args:
        image: (H, W, 1 or 3), of any range.
        words: The words of the caption, at most T.
        maps: Attention of each word, (T, h, w). Maps after the last word are padding,
            and not drawn.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If a shape differs from these, values are not finite, there are no
            words, or more words than maps.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        image = np.random.uniform(size=(64, 64, 3))
        maps = np.random.uniform(size=(3, 14, 14))  # One for each word.
        viz.plot_caption_attention(image, ["a", "red", "dog"], maps)
        ```

    Reference:
        Xu et al. 2015, "Show, Attend and Tell", figure 2 (arXiv:1502.03044).
    """
    words, maps = check_words(words, maps)
    return plot_image_attention(image, maps, title=title, labels=words, box=box)


def check_words(words: Sequence[str], maps) -> tuple[list[str], np.ndarray]:
    """The words of a caption, and the map of each, float32 (T, h, w).

    Args:
        words: The words.
        maps: The maps of the words, and perhaps of padding.

    Raises:
        ValueError: If there are no words, or more than maps, or maps are not finite.
    """
    maps = check_maps(maps)
    if isinstance(words, str) or not 1 <= len(words) <= len(maps):
        raise ValueError(
            f"`words` must be a list of 1 to {len(maps)} strings, one for each of "
            f"`maps`. Received: words={words!r}"
        )
    return list(words), maps[: len(words)]


def plot_glimpses(
    image,
    question: str,
    maps,
    answers: Sequence[str],
    probabilities,
    *,
    truth: str | None = None,
    labels: Sequence[str] | None = None,
    max_answers: int = 5,
) -> Figure:
    """Draws an image, where a model looked for an answer, and its most likely answers.

    Args:
        image: (H, W, 1 or 3), of any range.
        question: The question, which becomes the title of the figure.
        maps: The attention of each glimpse or hop, (C, h, w).
        answers: The answers that the model chooses from, or some of them.
        probabilities: The probability of each, in [0, 1].
        truth: The true answer, whose bar is green.
        labels: Titles of the C maps. Default: `glimpse 0`, `glimpse 1`, ….
        max_answers: Maximum number of answers shown, the most likely first.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If a shape differs from these, values are not finite, probabilities
            are outside [0, 1], or the number of probabilities or labels does not match.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        image = np.random.uniform(size=(64, 64, 3))
        maps, chances = np.random.uniform(size=(2, 14, 14)), np.array([0.9, 0.1])
        viz.plot_glimpses(image, "is it red ?", maps, ["yes", "no"], chances)
        ```
    """
    image, maps = check_image(image), check_maps(maps)
    values = _check_probabilities(answers, probabilities)
    check_positive("max_answers", max_answers)
    if labels is None:
        labels = [f"glimpse {number}" for number in range(len(maps))]
    if isinstance(labels, str) or len(labels) != len(maps):
        raise ValueError(
            f"`labels` must be {len(maps)}, one per map. Received: labels={labels!r}"
        )
    columns = 1 + len(maps)
    height = _PANEL_INCHES * image.shape[0] / image.shape[1]
    figure = new_figure((columns + 1.4) * _PANEL_INCHES, max(height, 1.2) + 0.7)
    axes = figure.subplots(1, columns + 1, width_ratios=[*[1] * columns, 1.0])
    style = text_style(8)
    for axis, heat, label in zip(
        axes[:-1], [None, *maps], ["image", *labels], strict=True
    ):
        overlay(axis, image, heat)
        axis.set_title(drawable(label), **style)
    best = np.argsort(-values, kind="stable")[:max_answers]
    shown = [answers[index] for index in best]
    colors = [_TRUE_BAR if text == truth else _BAR for text in shown]
    _draw_bars(axes[-1], shown, values[best], colors, style)
    add_title(figure, question)
    return figure


def _draw_bars(axis, answers, values, colors, style) -> None:
    """Horizontal bars from the top, each with its answer and its percentage."""
    rows = range(len(answers))
    axis.barh(rows, values, color=colors, height=0.7)
    axis.set_yticks(rows, [drawable(answer) for answer in answers], **style)
    for row, value in zip(rows, values, strict=True):
        axis.text(min(value, 1) + 0.03, row, f"{value:.0%}", va="center", **style)
    # Room for the last percentage, and for five rows if there are fewer.
    axis.set_xlim(0, 1.35)
    axis.set_ylim(max(len(answers), 5) - 0.5, -0.5)
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _check_probabilities(answers, probabilities) -> np.ndarray:
    values = np.asarray(probabilities, "float32")
    if isinstance(answers, str) or values.ndim != 1 or not len(values):
        raise ValueError(
            "`answers` must be a list of strings and `probabilities` one number for "
            "each; pass one example of a batch. "
            f"Received: probabilities.shape={values.shape}"
        )
    check_same_length(answers=answers, probabilities=values)
    # In half precision, a probability may be slightly above 1.
    if not (np.isfinite(values).all() and -0.01 <= values.min() <= values.max() < 1.01):
        raise ValueError(
            "`probabilities` must be in [0, 1], after the softmax. "
            f"Received: values from {values.min():.4g} to {values.max():.4g}"
        )
    return values
