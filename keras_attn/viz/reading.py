"""Where a reader looks for each character of the word that it writes.

Legend: B batch, T characters, H and W pixels, h and w rows and columns of the map.
"""

import math
from collections.abc import Sequence

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_attn.layers import AdditiveAttention2D
from keras_attn.layers.capture import capture_attention
from keras_attn.viz.drawing.panels import add_frame, check_pixels
from keras_attn.viz.images import plot_image_attention


def reading_attention(model: keras.Model, inputs: dict) -> np.ndarray:
    """Runs a reader and maps where it looks before it writes each character.

    Args:
        model: A model from `build_show_attend_read`, or another functional model with
            one `AdditiveAttention2D`.
        inputs: What the model is called with, by name. `decoder_token_ids` (B, T) are
            the start token and the characters before the last, true or generated ones.

    Returns:
        Probabilities, (B, T, h, w).

    Raises:
        ValueError: If the model has no such layer, or several.
    """
    layers = [each for each in model.layers if isinstance(each, AdditiveAttention2D)]
    if len(layers) != 1:
        raise ValueError(
            "`model` must have one `AdditiveAttention2D`, as `build_show_attend_read` "
            f"has. Received: model={model.name!r} with {len(layers)}"
        )
    (layer,) = layers
    captured = capture_attention(model, inputs)
    (scores,) = (
        each for path, each in captured.items() if path.split("/")[-1] == layer.name
    )
    _, value, *_ = layer.input
    batch, _, length, _ = scores.shape
    # (B, 1, T, h · w) -> (B, T, h, w)
    return scores.reshape(batch, length, value.shape[1], -1)


def plot_reading_attention(
    image: np.ndarray,
    maps: np.ndarray,
    characters: Sequence[str],
    *,
    width: int | None = None,
    boxes: np.ndarray | None = None,
    title: str | None = None,
) -> Figure:
    """Draws where a reader looked for each character: brighter is more attention.

    Args:
        image: (H, W, 1 or 3), of any range.
        maps: (T, h, w), one example of `reading_attention`. The first
            `len(characters)` are drawn.
        characters: Titles of the panels, the characters that were written.
        width: Columns of pixels before the padding, which is not drawn. Default: W.
        boxes: (N, 4), left, top, right and bottom of the characters in pixels; box t
            is drawn on panel t.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If an array has a different shape, characters are missing or more
            than maps, or `width` exceeds the image.
    """
    hint = "pass one example of a batch: `images[0]`"
    image = check_pixels("image", image, ("height", "width"), hint)
    maps = np.asarray(maps, "float32")
    if maps.ndim != 3 or not 0 < len(characters) <= len(maps):
        raise ValueError(
            "`maps` must be (characters, rows, columns) with a map for each of "
            "`characters`; pass one example of a batch: `maps[0]`. Received: "
            f"maps.shape={maps.shape}, {len(characters)} characters"
        )
    if boxes is not None:
        boxes = np.asarray(boxes, "float32")
        if boxes.ndim != 2 or boxes.shape[1] != 4 or not np.isfinite(boxes).all():
            raise ValueError(
                "`boxes` must be finite, (characters, 4). "
                f"Received: boxes.shape={boxes.shape}"
            )
    full = image.shape[1]
    if width is not None and not 0 < width <= full:
        raise ValueError(
            f"`width` must be from 1 to {full}, the columns of the image. "
            f"Received: width={width}"
        )
    # Whole columns of the map, so that both end at the same position.
    columns = math.ceil((width or full) * maps.shape[2] / full)
    shown = round(columns * full / maps.shape[2])
    figure = plot_image_attention(
        image[:, :shown],
        maps[: len(characters), :, :columns],
        labels=list(characters),
        title=title,
    )
    panels = figure.axes[1 : 1 + len(characters)]
    for panel, box in zip(panels, () if boxes is None else boxes, strict=False):
        add_frame(panel, box, edgecolor="cyan", linewidth=0.8)
    return figure
