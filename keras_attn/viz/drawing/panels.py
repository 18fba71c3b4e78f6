"""What plots of predictions share: images as panels, class colors, a legend.

Legend: B images, H and W pixels, C classes.
"""

import colorsys
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from keras_attn.viz.drawing.labels import drawable, font_families
from keras_attn.viz.drawing.plots import TEXT_COLOR, add_title, new_figure

PANEL_INCHES = 2.2
_LEGEND_COLUMN_INCHES = 1.1
_LEGEND_ROW_INCHES = 0.18


def check_pixels(name: str, pixels, axes: tuple[str, ...], hint: str) -> np.ndarray:
    """An image, or several, as float32.

    Args:
        name: Name of the argument.
        pixels: Its value.
        axes: Names of the axes before the channels.
        hint: How to fix a different shape.

    Raises:
        ValueError: If they are not finite, are empty or do not have shape
            (*axes, 1 or 3).
    """
    pixels = np.asarray(pixels, "float32")
    fits = pixels.ndim == len(axes) + 1 and pixels.shape[-1] in (1, 3)
    if not fits or 0 in pixels.shape:
        raise ValueError(
            f"`{name}` must have the shape ({', '.join(axes)}, 1 or 3), none of them "
            f"0; {hint}. Received: {name}.shape={pixels.shape}"
        )
    if not np.isfinite(pixels).all():
        raise ValueError(f"`{name}` must be finite. Received: NaN or infinite pixels")
    return pixels


def check_images(images) -> np.ndarray:
    """The images as float32 (B, H, W, 3) in [0, 1], for drawing.

    Values from 0 to 1, or from 0 to 255, are scaled as such; any others, such as in
    normalized images, from their minimum to their maximum.

    Raises:
        ValueError: If they are not finite, are empty or do not have shape
            (B, H, W, 1 or 3).
    """
    hint = "pass one image as `image[None]`"
    images = check_pixels("images", images, ("B", "H", "W"), hint)
    low, high = images.min(), images.max()
    # For the usual ranges, scale by the whole range: dark images stay dark.
    if low >= 0 and high <= 256:
        low, high = 0.0, 1.0 if high <= 1.01 else 255.0
    images = (images - low) / max(high - low, 1e-12)
    return np.repeat(images, 3 // images.shape[-1], axis=-1)


def class_colors(count: int) -> np.ndarray:
    """Class colors that are easy to distinguish: (count, 3), in [0, 1]."""
    table = np.array(colormaps["tab20"].colors)  # pyright: ignore[reportAttributeAccessIssue]
    # The ten saturated ones first; gray marks ignored pixels.
    order = [*range(0, 20, 2), *range(1, 20, 2)]
    colors = [tuple(table[index]) for index in order if index not in (14, 15)]
    for index in range(len(colors), count):
        colors.append(colorsys.hsv_to_rgb(index * 0.618 % 1, 0.55, 0.8))
    return np.array(colors[:count], "float32")


def text_color_on(color: Sequence[float]) -> str:
    """The color of letters that can be read on a color."""
    return "black" if np.dot(color, (0.3, 0.59, 0.11)) > 0.55 else "white"


def add_frame(ax: Axes, box: Sequence[float], **style) -> None:
    """Draws the frame of a box in pixels; `style` goes to `Rectangle`."""
    left, top, right, bottom = box
    # A pixel's center has whole coordinates on the axes, its corner in boxes.
    corner = (left - 0.5, top - 0.5)
    ax.add_patch(Rectangle(corner, right - left, bottom - top, fill=False, **style))


def check_colors(colors, count: int) -> np.ndarray:
    """Given colors from 0 to 255 as (C, 3) in [0, 1]; `class_colors` for None."""
    if colors is None:
        return class_colors(count)
    table = np.asarray(colors, "float32")
    if table.shape != (count, 3) or table.min() < 0 or table.max() > 255:
        raise ValueError(
            f"`colors` must be {count} colors, red, green and blue from 0 to 255. "
            f"Received: colors={colors!r}"
        )
    return table / 255


def make_panels(
    titles: Sequence[str],
    num_rows: int,
    image_shape,
    title: str | None,
    extra: float = 0.0,
    panel_inches: float = PANEL_INCHES,
) -> tuple[Figure, np.ndarray]:
    """A figure with a row of panels per image.

    Args:
        titles: Titles of the columns.
        num_rows: Number of images.
        image_shape: Height and width of an image.
        title: Title of the figure.
        extra: Inches below the panels, for a legend.
        panel_inches: Width of a panel.

    Returns:
        The figure, and its axes (num_rows, columns).
    """
    height, width = image_shape[:2]
    inches = panel_inches * height / width
    figure = new_figure(
        len(titles) * panel_inches,
        num_rows * inches + 0.25 * (1 + (title is not None)) + extra,
    )
    axes = figure.subplots(num_rows, len(titles), squeeze=False)
    for axis, name in zip(axes[0], titles, strict=True):
        axis.set_title(name, fontsize=8, color=TEXT_COLOR, parse_math=False)
    for axis in axes.ravel():
        axis.set_axis_off()
    add_title(figure, title)
    return figure, axes


def legend_inches(count: int, num_panels: int) -> float:
    """Height of a legend of `count` entries below `num_panels` panels."""
    return -(-count // _legend_columns(num_panels)) * _LEGEND_ROW_INCHES + 0.15


def add_legend(
    figure: Figure, entries: Iterable[tuple[str, np.ndarray]], num_panels: int
) -> None:
    """Adds names and colors below the panels."""
    handles = [
        Patch(facecolor=to_hex(tuple(color.tolist())), label=drawable(name))
        for name, color in entries
    ]
    legend = figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=_legend_columns(num_panels),
        frameon=False,
        fontsize=7,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.0,
        borderpad=0.1,
        labelcolor=TEXT_COLOR,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
        text.set_family(list(font_families()))


def show_image(ax: Axes, image: np.ndarray) -> None:
    """Draws an image (H, W, 3) in [0, 1]."""
    ax.imshow(image.clip(0, 1), interpolation="nearest")


def _legend_columns(num_panels: int) -> int:
    return max(1, int(num_panels * PANEL_INCHES / _LEGEND_COLUMN_INCHES))
