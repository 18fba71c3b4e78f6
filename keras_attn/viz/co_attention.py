"""What words look at in an image, and the regions of the image in the words.

Legend: B examples, N heads, T words, R regions, H and W pixels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_attn.checks.arguments import is_whole
from keras_attn.layers.capture import capture_attention
from keras_attn.viz.drawing.labels import drawable
from keras_attn.viz.drawing.overlays import check_image
from keras_attn.viz.drawing.panels import add_frame, class_colors, text_color_on
from keras_attn.viz.drawing.plots import (
    TEXT_COLOR,
    add_color_bar,
    add_title,
    check_labels,
    check_scores,
    draw_panel,
    new_figure,
    text_style,
)

_PANEL_INCHES, _COLUMNS = 1.7, 6
_IMAGE_INCHES, _CELL_INCHES, _MAX_INCHES = 3.6, 0.26, 12.0
_FRAME = "#e8590c"
_FADED = 0.25  # How much of the image remains where nothing is attended to.


@dataclass(frozen=True, eq=False)
class CoAttention:
    """The attention of one block of co-attention in one example, without padding.

    Attributes:
        to_regions: (N, T, R), of each word to each region. What is missing from 1 is
            its attention to the whole image, `to_whole`.
        to_words: (N, R, T), of each region to each word.
        to_whole: (N, T), of each word to the region of the whole image; 0 if the model
            has none.
    """

    to_regions: np.ndarray
    to_words: np.ndarray
    to_whole: np.ndarray


def capture_co_attention(
    model: keras.Model, inputs: Mapping[str, Any]
) -> list[dict[str, CoAttention]]:
    """Runs a model of words and regions, and returns what each attends to in the other.

    Args:
        model: A model from `build_vilbert` or `build_vln_bert`, or one of their heads.
        inputs: Its inputs by name, with `padding_mask` (B, T) and `region_padding_mask`
            (B, R).

    Returns:
        For each example, a dictionary from the name of each block of co-attention, in
        order, to its attention.

    Raises:
        ValueError: If `inputs` lack a mask, or the model has no co-attention; and as
            for `capture_attention`.

    Example:
        ```python
        import numpy as np
        from keras_attn import models, viz

        model = models.build_vilbert(
            hidden_dim=24, region_dim=16, co_attention_dim=16, vocabulary_size=100
        )
        inputs = {x.name: np.ones([n or 3 for n in x.shape]) for x in model.inputs}
        examples = viz.capture_co_attention(model, inputs)
        examples[0]["co_attention_5"].to_regions.shape  # (8, 3, 3): (N, T, R)
        ```

    Reference:
        Lu et al. 2019, section 2.2 and figure 2 (arXiv:1908.02265).
    """
    masks = ("padding_mask", "region_padding_mask")
    if not isinstance(inputs, Mapping) or not set(masks) <= set(inputs):
        received = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs)
        raise ValueError(
            f"`inputs` must be a dictionary with {' and '.join(masks)}. "
            f"Received: {received}"
        )
    is_word, is_region = (np.asarray(inputs[name]).astype(bool) for name in masks)
    blocks: dict[str, dict[str, np.ndarray]] = {}
    for path, scores in capture_attention(model, inputs).items():
        *_, block, kind = ("", *path.split("/"))
        if kind in ("region_attention", "text_attention"):
            blocks.setdefault(block, {})[kind] = scores
    if not blocks:
        raise ValueError(
            "`model` must have blocks of co-attention, as a model from `build_vilbert` "
            f"has. Received: model={model.name!r}"
        )
    return [
        {
            name: _of_example(index, is_word[index], is_region[index], **scores)
            for name, scores in blocks.items()
        }
        for index in range(len(is_word))
    ]


def _of_example(index, is_word, is_region, *, region_attention, text_attention):
    """The attention of one block in one example."""
    of_regions, of_words = region_attention[index], text_attention[index]
    whole = of_regions.shape[1] - len(is_region)  # 1 if the whole image is a region.
    to_whole = of_words[:, is_word, :whole].sum(-1)
    return CoAttention(
        of_words[:, is_word, whole:][:, :, is_region],
        of_regions[:, whole:][:, is_region][:, :, is_word],
        to_whole,
    )


def plot_word_regions(
    image,
    words: Sequence[str],
    boxes,
    scores,
    *,
    chosen: Sequence[int] | None = None,
    title: str | None = None,
) -> Figure:
    """Draws for each word which regions of the image it attends to.

    There is a panel for each word. The region that it attends to most is in full color
    and has the strongest frame, and its share is in the title of the panel; the image
    fades where the word attends to less: a panel compares regions, not words. The rest
    of the attention may be to the region of the whole image, which has no box.

    Args:
        image: (H, W, 1 or 3), of any range.
        words: T words.
        boxes: (R, 4), left, top, right and bottom in pixels of the image.
        scores: Probabilities (T, R), or (N, T, R), whose mean over the heads is drawn:
            `to_regions` of a `CoAttention`, or one of its heads.
        chosen: Numbers of the words to draw. Default: all.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If a shape differs from these, values are not finite, scores are
            outside [0, 1], or a chosen word does not exist.
    """
    image, boxes = check_image(image), _check_boxes(boxes)
    shares = _check_shares(scores, (len(words), len(boxes)), "(words, regions)")
    labels = check_labels("words", words, len(shares), "T")
    numbers = _check_chosen(chosen, len(labels))
    columns = min(len(numbers), _COLUMNS)
    rows = math.ceil(len(numbers) / columns)
    height = _PANEL_INCHES * image.shape[0] / image.shape[1] + 0.3
    figure = new_figure(
        columns * _PANEL_INCHES, rows * height + 0.3 * (title is not None)
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(numbers) :]:
        axis.remove()
    for axis, number in zip(axes, numbers, strict=False):
        share = shares[number]
        _draw_attended(axis, image, boxes, share / max(share.max(), 1e-12))
        axis.set_title(f"{labels[number]} {share.max():.0%}", **text_style(8))
    add_title(figure, title)
    return figure


def plot_region_words(
    image,
    words: Sequence[str],
    boxes,
    scores,
    *,
    names: Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Draws the regions of an image, beside their attention to the words.

    The panel has one row for each region: darker is more attention, from 0 to 1. The
    number of the row is in the upper left corner of the region.

    Args:
        image: (H, W, 1 or 3), of any range.
        words: T words.
        boxes: (R, 4), left, top, right and bottom in pixels of the image.
        scores: Probabilities (R, T), or (N, R, T), whose mean over the heads is drawn:
            `to_words` of a `CoAttention`, or one of its heads.
        names: What the detector saw in each region, R labels.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If a shape differs from these, values are not finite, scores are
            outside [0, 1], or there are not R names.
    """
    image, boxes = check_image(image), _check_boxes(boxes)
    shares = _check_shares(scores, (len(boxes), len(words)), "(regions, words)")
    columns = check_labels("words", words, shares.shape[1], "T")
    if names is not None and (isinstance(names, str) or len(names) != len(boxes)):
        raise ValueError(
            f"`names` must be {len(boxes)}, one for each of `boxes`. "
            f"Received: names={names!r}"
        )
    rows = [
        f"{number} {drawable(names[number])}" if names is not None else str(number)
        for number in range(len(boxes))
    ]
    cell = min(_CELL_INCHES, _MAX_INCHES / max(len(rows), len(columns)))
    height = _IMAGE_INCHES * image.shape[0] / image.shape[1]
    width = max(len(columns) * cell, 1.2)
    labels = 0.08 * max(map(len, columns)), 0.08 * max(map(len, rows))
    figure = new_figure(
        _IMAGE_INCHES + width + labels[1] + 1.4,
        max(height, len(rows) * cell + labels[0]) + 0.4,
        layout="constrained",
    )
    picture, panel = figure.subplots(1, 2, width_ratios=(_IMAGE_INCHES, width))
    picture.imshow(image)
    picture.set_axis_off()
    colors = [tuple(color) for color in class_colors(len(boxes))]
    for number, (box, color) in enumerate(zip(boxes, colors, strict=True)):
        add_frame(picture, box, color=color, lw=1.2)
        picture.annotate(
            str(number),
            (box[0] - 0.5, box[1] - 0.5),
            xytext=(0.8, -0.8),
            textcoords="offset points",
            fontsize=7,
            color=text_color_on(color),
            va="top",
            bbox={"facecolor": color, "edgecolor": "none", "pad": 0.8},
        )
    drawn = draw_panel(panel, shares, columns, rows, cell)
    panel.set_ylabel("region", fontsize=9, color=TEXT_COLOR)
    add_color_bar(figure, drawn, ax=panel, shrink=0.6, aspect=20, pad=0.02)
    add_title(figure, title)
    return figure


def _draw_attended(ax: Axes, image, boxes, shares) -> None:
    """The image, faded outside of the regions with large shares, which have frames."""
    opacity = np.zeros(image.shape[:2], "float32")
    for box, share in zip(boxes, shares, strict=True):
        left, top, right, bottom = np.maximum(np.rint(box), 0).astype(int)
        part = opacity[top:bottom, left:right]
        np.maximum(part, share, out=part)
    opacity = _FADED + (1 - _FADED) * opacity[..., None]
    ax.imshow(opacity * image + (1 - opacity))
    ax.set_axis_off()
    for box, share in zip(boxes, shares, strict=True):
        add_frame(ax, box, color=(_FRAME, share), lw=2.0 * share)


def _check_boxes(boxes) -> np.ndarray:
    boxes = np.asarray(boxes, "float32")
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not len(boxes):
        raise ValueError(
            "`boxes` must be (regions, 4), at least one; pass one example of a batch. "
            f"Received: boxes.shape={boxes.shape}"
        )
    is_box = (boxes[:, 2:] >= boxes[:, :2]).all() and np.isfinite(boxes).all()
    if not is_box:
        raise ValueError(
            "`boxes` must be finite: left, top, right and bottom in pixels, the left "
            f"and upper sides first. Received: boxes={boxes.tolist()}"
        )
    return boxes


def _check_shares(scores, shape, meaning: str) -> np.ndarray:
    """The mean over the heads."""
    panels = check_scores(scores)
    if panels.shape[1:] != shape:
        raise ValueError(
            f"`scores` must be {meaning}, {shape}, or several heads of them. "
            f"Received: scores of shape {np.shape(scores)}"
        )
    return panels.mean(0)


def _check_chosen(chosen, count: int) -> list[int]:
    if chosen is None:
        return list(range(count))
    numbers = list(chosen)
    if not numbers or not all(is_whole(n) and 0 <= n < count for n in numbers):
        raise ValueError(
            f"`chosen` must be numbers of words, from 0 to {count - 1}. "
            f"Received: chosen={numbers}"
        )
    return numbers
