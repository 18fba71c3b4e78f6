"""Maps drawn over an image.

Legend: H and W pixels, N maps of R rows and S columns.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from keras_attn.viz.drawing.panels import check_pixels
from keras_attn.viz.drawing.plots import TEXT_COLOR

_HEAT = "inferno"


def check_image(image) -> np.ndarray:
    """An image as float32 (H, W, 3), rescaled so that its values span 0 to 1."""
    hint = "pass one example of a batch: `images[0]`"
    image = check_pixels("image", image, ("height", "width"), hint)
    low, high = image.min(), image.max()
    image = (image - low) / max(high - low, 1e-12)
    return np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image


def check_maps(maps) -> np.ndarray:
    """Maps as float32 (N, R, S), at least one."""
    maps = np.asarray(maps, "float32")
    if maps.ndim not in (2, 3) or 0 in maps.shape or not np.isfinite(maps).all():
        raise ValueError(
            "`maps` must be finite, (rows, columns) or (heads, rows, columns); pass "
            f"one example of a batch: `maps[0]`. Received: maps.shape={maps.shape}"
        )
    return maps.reshape(-1, *maps.shape[-2:])


def map_labels(labels: Sequence[str] | None, count: int, alone: str) -> list[str]:
    """The labels of `count` maps, by default their numbers, or `alone` if it is one."""
    if labels is None:
        return [f"head {head}" for head in range(count)] if count > 1 else [alone]
    if len(labels) != count:
        raise ValueError(
            f"`labels` must be {count}, one per map. Received: labels={labels!r}"
        )
    return list(labels)


def overlay(
    ax: Axes,
    image: np.ndarray,
    heat: np.ndarray | None,
    box: Sequence[float] | None = None,
) -> None:
    """Draws a map over an image in gray; None draws only the image.

    Args:
        ax: The axes.
        image: (H, W, 3), in [0, 1].
        heat: (R, S). Colors run from 0 to its maximum.
        box: Left, top, right and bottom of the part of the image that the map covers,
            in pixels. Default: all of it.
    """
    if heat is None:
        ax.imshow(image)
    else:
        height, width = image.shape[:2]
        left, top, right, bottom = check_box(box, width, height)
        ax.imshow(image.mean(-1), cmap="gray", vmin=0, vmax=1)
        ax.imshow(
            heat,
            cmap=_HEAT,
            vmin=0,
            vmax=max(heat.max(), 1e-12),
            alpha=0.6,
            interpolation="bilinear",
            extent=(left - 0.5, right - 0.5, bottom - 0.5, top - 0.5),
        )
        # Not of the map, which may cover less or, with padding, more.
        ax.set_xlim(-0.5, width - 0.5)
        ax.set_ylim(height - 0.5, -0.5)
    ax.set_axis_off()


def add_heat_bar(figure: Figure, axes: Sequence[Axes]) -> None:
    """Adds the color bar of `overlay`, of which each map has its own maximum."""
    heat = ScalarMappable(Normalize(0, 1), _HEAT)
    bar = figure.colorbar(heat, ax=axes, aspect=24, pad=0.02)
    bar.set_ticks([0, 1], labels=["0", "the map's\nlargest"])
    bar.set_label("attention weight", fontsize=8, color=TEXT_COLOR)
    bar.ax.tick_params(labelsize=7, length=2, labelcolor=TEXT_COLOR)
    bar.outline.set_visible(False)


def check_box(box, width: int, height: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a part of an image, by default all of it."""
    if box is None:
        return 0, 0, width, height
    left, top, right, bottom = map(float, box)
    if not (max(left, 0) < min(right, width) and max(top, 0) < min(bottom, height)):
        raise ValueError(
            "`box` must be left, top, right and bottom of a part of the image of "
            f"{width} × {height} pixels. Received: box={tuple(box)}"
        )
    return left, top, right, bottom
