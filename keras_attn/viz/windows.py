"""Swin's windows, their shift, and the masks of the shifted windows.

Legend: R rows, S columns, w window size, s shift, T = w² tokens of a window, L windows.
"""

from typing import Any

import numpy as np
from keras import ops
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from keras_attn.checks.arguments import as_pair, check_positive, is_whole
from keras_attn.ops.windows import cyclic_shift, shifted_window_mask, window_merge
from keras_attn.viz.drawing.overlays import check_image
from keras_attn.viz.drawing.panels import class_colors
from keras_attn.viz.drawing.plots import (
    TEXT_COLOR,
    add_title,
    draw_panel,
    new_figure,
    text_style,
)

_PANEL_INCHES = 3.2
_MAX_TOKENS, _MAX_WINDOWS = 64, 10  # On a side: lines and numbers can be read.
# Shares of a window's color: over white, and over a photo, which is to be recognized.
_TINT, _TINT_OF_PHOTO = 0.45, 0.25


def plot_windows(
    size: tuple[int, int] = (8, 8),
    window_size: int = 4,
    shift: int | None = None,
    image: Any = None,
    *,
    title: str | None = None,
) -> Figure:
    """Draws the windows in which Swin attends, shifted, rolled, and their masks.

    Above, three maps of tokens; a color and a number is a window. First the windows of
    one block. Then those of the next block, shifted down and right by s tokens, in
    place: what is left at the edges joins the opposite edge in one window. Then the map
    after the cyclic shift, where the same windows are a grid again; dashed lines part
    what was not adjacent before. Below, the masks of the shifted windows, one for each
    that is unlike the others: a token attends only to what was adjacent.

    Windows, shift and masks are of the functions of `keras_attn.ops.windows` that
    `WindowAttention` calls.

    Args:
        size: R and S, tokens of the map, multiples of `window_size`, at most 64 tokens
            and 10 windows each.
        window_size: w.
        shift: s, from 0 to less than w. Default: ⌊w/2⌋, or 0 if a window is as large as
            the map's smaller side, as in Swin.
        image: A photo (H, W, 1 or 3) of any range, drawn below the windows; what is
            left of its center in the map's aspect. Default: none.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If `size` is not two multiples of `window_size`, `shift` is out of
            range, or `image` is not of this shape.

    Example:
        ```python
        from keras_attn import viz

        viz.save_figure(viz.plot_windows((8, 8), window_size=4), "windows.png")
        ```

    Reference:
        Liu et al. 2021, figures 2 and 4 (arXiv:2103.14030).
    """
    window = check_positive("window_size", window_size)
    size = rows, columns = _check_size(size, window)
    if shift is None:
        shift = window // 2 if min(size) > window else 0
    if not is_whole(shift) or not 0 <= shift < window:
        raise ValueError(
            f"`shift` must be an integer from 0 to less than `window_size`, {window}. "
            f"Received: shift={shift!r}"
        )
    photo = None if image is None else _cropped(image, size)
    numbers = _window_numbers(size, window)
    in_place = _rolled(numbers, -shift)
    # Which tokens the shift rolls around an edge, and around which.
    around = [np.arange(length) < shift for length in size]
    pieces = 2 * around[0][:, None] + around[1]
    masks = _unlike_masks(shifted_window_mask(size, window, shift))

    across = max(3, len(masks))
    height = _PANEL_INCHES * rows / columns
    below_height = 3 * _PANEL_INCHES / across
    figure = new_figure(
        3 * _PANEL_INCHES,
        height + below_height + 1.1 + 0.3 * (title is not None),
        layout="constrained",
    )
    ratios = height + 0.5, below_height + 0.4
    parts: Any = figure.subfigures(2, 1, height_ratios=ratios)
    above, below = parts
    maps = above.subplots(1, 3)
    _draw_map(maps[0], numbers, np.zeros_like(pieces), photo, window)
    _draw_map(maps[1], in_place, pieces, photo, window)
    rolled_photo = _rolled_photo(photo, shift, size)
    _draw_map(maps[2], numbers, _rolled(pieces, shift), rolled_photo, window)
    if shift:
        style = {"color": TEXT_COLOR, "linewidth": 1.2, "linestyle": "dashed"}
        maps[2].axhline(rows - shift - 0.5, **style)
        maps[2].axvline(columns - shift - 0.5, **style)
    for axis, name in zip(
        maps,
        (
            f"windows of one block:\n{numbers.max() + 1} of {window} x {window} tokens",
            f"the next block: shifted by {shift},\nin place",
            "the same after the cyclic shift:\ndashed, not adjacent before",
        ),
        strict=True,
    ):
        axis.set_title(name, **text_style(9))
        axis.set_xlabel("column of tokens", fontsize=8, color=TEXT_COLOR)
    maps[0].set_ylabel("row of tokens", fontsize=8, color=TEXT_COLOR)
    axes = below.subplots(1, across, squeeze=False)[0]
    for axis in axes[len(masks) :]:
        axis.remove()
    for axis, (number, mask) in zip(axes, masks.items(), strict=False):
        _draw_mask(axis, mask, window)
        axis.set_title(f"mask of window {number}", **text_style(9))
    axes[0].set_ylabel(f"query: row of {window} tokens", fontsize=8, color=TEXT_COLOR)
    below.supxlabel(
        "blue: the query attends to the key; both are in the same piece of the window",
        fontsize=8,
        color=TEXT_COLOR,
    )
    add_title(figure, title, fontsize=12)
    return figure


def _check_size(size: Any, window: int) -> tuple[int, int]:
    """Rows and columns, after a check."""
    pair = as_pair(size)
    if pair is None or not all(
        is_whole(n)
        and n % window == 0
        and 0 < n <= min(_MAX_TOKENS, _MAX_WINDOWS * window)
        for n in pair
    ):
        raise ValueError(
            f"`size` must be rows and columns, multiples of `window_size`, {window}, "
            f"at most {_MAX_TOKENS} tokens and {_MAX_WINDOWS} windows each. "
            f"Received: size={size!r}"
        )
    return pair


def _cropped(image: Any, size: tuple[int, int]) -> np.ndarray:
    """The center of a photo, as much as has the map's aspect, (H, W, 3) in [0, 1]."""
    photo = check_image(image)
    token = min(n / m for n, m in zip(photo.shape, size, strict=False))
    kept = [round(token * m) for m in size]
    top, left = ((n - m) // 2 for n, m in zip(photo.shape, kept, strict=False))
    return photo[top : top + kept[0], left : left + kept[1]]


def _rolled_photo(photo, shift: int, size: tuple[int, int]):
    """The photo, rolled as far as its tokens are."""
    if photo is None:
        return None
    pixels = [round(shift * n / m) for n, m in zip(photo.shape, size, strict=False)]
    return np.roll(photo, [-n for n in pixels], axis=(0, 1))


def _window_numbers(size: tuple[int, int], window: int) -> np.ndarray:
    """The number of the window of each token, (R, S)."""
    count = size[0] * size[1] // window**2
    numbers = np.arange(count)[:, None, None].repeat(window**2, axis=1)  # (L, T, 1)
    merged = window_merge(ops.convert_to_tensor(numbers), window, size)
    return ops.convert_to_numpy(merged)[0, ..., 0]


def _rolled(values: np.ndarray, shift: int) -> np.ndarray:
    """A map (R, S) after the cyclic shift."""
    return ops.convert_to_numpy(cyclic_shift(values[None, ..., None], shift))[0, ..., 0]


def _unlike_masks(masks: np.ndarray) -> dict[int, np.ndarray]:
    """The masks (T, T) that differ, by the number of their first window."""
    first: dict[bytes, int] = {}
    for number, mask in enumerate(masks):
        first.setdefault(mask.tobytes(), number)
    return {number: masks[number] for number in first.values()}


def _draw_map(
    ax: Axes, numbers: np.ndarray, pieces: np.ndarray, photo, window: int
) -> None:
    """Draws a map of tokens: a color and a number for each window."""
    rows, columns = numbers.shape
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    if photo is not None:
        ax.imshow(photo, extent=extent)
    ax.imshow(
        numbers,
        cmap=ListedColormap(class_colors(numbers.max() + 1)),
        alpha=_TINT if photo is None else _TINT_OF_PHOTO,
        interpolation="nearest",
    )
    every = np.arange(rows * columns).reshape(rows, columns)
    for values, color, width in ((every, "white", 0.4), (numbers, TEXT_COLOR, 1.8)):
        lines = LineCollection(_borders(values), colors=color, linewidths=width)
        ax.add_collection(lines, autolim=False)
    whole = numbers * 4 + pieces
    for value in np.unique(whole):
        row, column = np.argwhere(whole == value).mean(0)
        ax.text(
            column,
            row,
            str(value // 4),
            ha="center",
            va="center",
            fontsize=min(11, 50 * window / max(rows, columns)),
            fontweight="bold",
            color=TEXT_COLOR,
            bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"},
        )
    ax.set_xlim(*extent[:2])
    ax.set_ylim(*extent[2:])
    for axis, count in ((ax.xaxis, columns), (ax.yaxis, rows)):
        axis.set_ticks(range(0, count, max(1, count // 8)))
    ax.tick_params(length=0, labelsize=7, labelcolor=TEXT_COLOR)


def _borders(values: np.ndarray) -> list[list[tuple[float, float]]]:
    """Lines between neighbors of unlike values, as pairs of points (x, y)."""
    lines = []
    for row, column in np.argwhere(values[:, 1:] != values[:, :-1]):
        lines.append([(column + 0.5, row - 0.5), (column + 0.5, row + 0.5)])
    for row, column in np.argwhere(values[1:] != values[:-1]):
        lines.append([(column - 0.5, row + 0.5), (column + 0.5, row + 0.5)])
    return lines


def _draw_mask(ax: Axes, mask: np.ndarray, window: int) -> None:
    """Draws the mask of a window, a tick for each of its rows of tokens."""
    # Lines between tokens if there is room, and darker ones between rows.
    draw_panel(ax, mask.astype("float32"), [], [], 0.09 if window <= 4 else 0.0)
    for row in range(1, window):
        for draw in (ax.axhline, ax.axvline):
            draw(row * window - 0.5, color="#9aa3ad", linewidth=0.8)
    shown = np.arange(0, window, max(1, window // 8))
    middles = shown * window + (window - 1) / 2
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(middles, map(str, shown), fontsize=8, color=TEXT_COLOR)
    ax.set_xlabel(f"key: row of {window} tokens", fontsize=8, color=TEXT_COLOR)
