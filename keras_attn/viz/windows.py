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
from keras_attn.ops.windows import cyclic_shift, shifted_window_mask, window_partition
from keras_attn.viz.drawing.panels import check_images, class_colors
from keras_attn.viz.drawing.plots import (
    TEXT_COLOR,
    add_title,
    draw_panel,
    new_figure,
    text_style,
)

_PANEL_INCHES = 3.2
_MAX_SIDE = 64
_LIGHT = 0.45  # Share of a window's color over white, or over the photo.


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

    All of it is computed by the functions of `keras_attn.ops.windows` that
    `WindowAttention` calls.

    Args:
        size: R and S, tokens of the map, multiples of `window_size`, at most 64.
        window_size: w.
        shift: s, from 0 to less than w. Default: ⌊w/2⌋, as in Swin.
        image: A photo (H, W, 1 or 3) of any range, drawn below the windows. Default:
            none.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If `size` is not two multiples of `window_size`, or `shift` is out
            of range.

    Example:
        ```python
        save_figure(plot_windows((8, 8), window_size=4), "windows.png")
        ```

    Reference:
        Liu et al. 2021, figures 2 and 4 (arXiv:2103.14030).
    """
    window = check_positive("window_size", window_size)
    rows, columns = _check_size(size, window)
    step = window // 2 if shift is None else shift
    if not is_whole(step) or not 0 <= step < window:
        raise ValueError(
            f"`shift` must be an integer from 0 to less than `window_size`, {window}. "
            f"Received: shift={shift!r}"
        )
    photo = None if image is None else check_images(np.asarray(image)[None])[0]
    plain = _window_numbers((rows, columns), window)
    # After the shift, location (i, j) has the token of (i + s, j + s).
    rolled_from = _rolled(np.arange(rows * columns).reshape(rows, columns), step)
    place = np.argsort(rolled_from.ravel())
    shifted = plain.ravel()[place].reshape(rows, columns)
    pieces = _pieces((rows, columns), step)
    masks = _unlike_masks(shifted_window_mask((rows, columns), window, step), plain)

    across = max(3, len(masks))
    height = _PANEL_INCHES * rows / columns
    figure = new_figure(
        3 * _PANEL_INCHES,
        height + 3 * _PANEL_INCHES / across + 1.3 + 0.3 * (title is not None),
        layout="constrained",
    )
    above, below = figure.subfigures(
        2, 1, height_ratios=(height + 0.5, 3 * _PANEL_INCHES / across + 0.6)
    )
    maps = above.subplots(1, 3)
    _draw_map(maps[0], plain, np.zeros_like(plain), photo)
    in_place = pieces.ravel()[place].reshape(rows, columns)
    _draw_map(maps[1], shifted, in_place, photo)
    _draw_map(maps[2], plain, pieces, _rolled_photo(photo, step, (rows, columns)))
    count = plain.max() + 1
    for axis, name in zip(
        maps,
        (
            f"windows of one block:\n{count} of {window} x {window} tokens",
            f"the next block: shifted by {step},\nin place",
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
        labels = _token_labels(window)
        cell = 0.6 * 3 * _PANEL_INCHES / across / len(mask)
        shown = labels if cell >= 0.09 else []
        draw_panel(axis, mask.astype("float32"), shown, shown, cell)
        axis.set_title(f"mask of window {number}", **text_style(9))
        axis.set_xlabel("key: row, column in the window", fontsize=7, color=TEXT_COLOR)
    axes[0].set_ylabel("query", fontsize=8, color=TEXT_COLOR)
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
        is_whole(n) and 0 < n <= _MAX_SIDE and n % window == 0 for n in pair
    ):
        raise ValueError(
            f"`size` must be rows and columns, multiples of `window_size`, {window}, "
            f"and at most {_MAX_SIDE}. Received: size={size!r}"
        )
    return pair


def _window_numbers(size: tuple[int, int], window: int) -> np.ndarray:
    """The number of the window of each token, (R, S)."""
    tokens = np.arange(size[0] * size[1], dtype="float32").reshape(1, *size, 1)
    windows = ops.convert_to_numpy(window_partition(tokens, window))[..., 0]
    numbers = np.empty(tokens.size, int)
    for number, members in enumerate(windows.astype(int)):
        numbers[members] = number
    return numbers.reshape(size)


def _rolled(values: np.ndarray, shift: int) -> np.ndarray:
    """A map (R, S) of whole numbers after the cyclic shift."""
    moved = cyclic_shift(values[None, ..., None].astype("float32"), shift)
    return ops.convert_to_numpy(moved)[0, ..., 0].astype(int)


def _pieces(size: tuple[int, int], shift: int) -> np.ndarray:
    """After the shift: which part of the map was rolled around which edge, (R, S)."""
    rows, columns = size
    wrapped = np.arange(rows) >= rows - shift, np.arange(columns) >= columns - shift
    return 2 * wrapped[0][:, None] + wrapped[1]


def _unlike_masks(masks: np.ndarray, numbers: np.ndarray) -> dict[int, np.ndarray]:
    """The masks (T, T) that differ, by the number of their first window."""
    found: dict[int, np.ndarray] = {}
    for number in range(numbers.max() + 1):
        if not any(np.array_equal(masks[number], mask) for mask in found.values()):
            found[number] = masks[number]
    return found


def _rolled_photo(photo, shift: int, size: tuple[int, int]):
    """The photo, rolled as far as its tokens are."""
    if photo is None:
        return None
    pixels = [round(shift * n / m) for n, m in zip(photo.shape[:2], size, strict=True)]
    return np.roll(photo, [-n for n in pixels], axis=(0, 1))


def _draw_map(ax: Axes, numbers: np.ndarray, pieces: np.ndarray, photo) -> None:
    """Draws a map of tokens: a color and a number for each window."""
    rows, columns = numbers.shape
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    colors = class_colors(numbers.max() + 1)
    alpha = 1.0
    if photo is None:
        colors = 1 - _LIGHT * (1 - colors)
    else:
        ax.imshow(photo.clip(0, 1), extent=extent)
        alpha = _LIGHT
    ax.imshow(
        numbers,
        cmap=ListedColormap(colors),
        vmin=-0.5,
        vmax=numbers.max() + 0.5,
        alpha=alpha,
        interpolation="nearest",
    )
    whole = numbers * 4 + pieces
    every = np.arange(rows * columns).reshape(rows, columns)
    for values, style in (
        (every, {"colors": "white", "linewidths": 0.4}),
        (whole, {"colors": TEXT_COLOR, "linewidths": 1.2, "linestyles": "dashed"}),
        (numbers, {"colors": TEXT_COLOR, "linewidths": 1.8}),
    ):
        ax.add_collection(LineCollection(_borders(values), **style), autolim=False)
    for value in np.unique(whole):
        row, column = np.argwhere(whole == value).mean(0)
        ax.text(
            column,
            row,
            str(value // 4),
            ha="center",
            va="center",
            fontsize=11,
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


def _token_labels(window: int) -> list[str]:
    return [f"{row},{column}" for row, column in np.ndindex(window, window)]
