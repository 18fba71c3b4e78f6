"""Predictions drawn over their images, at the size of the file.

Legend: h and w pixels of a file, C channels.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from keras_attn.cli.terminal import in_one_line
from keras_attn.data.images.instance_masks import decode_mask
from keras_attn.files.writing import write_atomically
from keras_attn.viz.drawing.labels import drawable, font_families
from keras_attn.viz.drawing.panels import add_frame, class_colors, text_color_on
from keras_attn.viz.drawing.plots import figure_to_array, new_figure, text_style

_SOFTWARE = "keras-attn predict"  # In each file, so that no other is replaced.
_OPACITY = 0.45
_DOTS_PER_INCH = 100
# Lines and letters grow with the image: in an image of 640 pixels, 2 and 12 pixels.
_USUAL_PIXELS, _LINE_PIXELS, _FONT_PIXELS = 640, 2.0, 12.0
_LEGEND_PIXELS = 96  # A legend would cover a smaller image.
# A grid of small images, and how many letters fit above one.
_GRID_COLUMNS, _GRID_INCHES, _GRID_LINE_INCHES = 4, 2.0, 0.14
_GRID_PIXELS, _GRID_LETTERS = 320, 36
SIDES = ("left", "top", "right", "bottom")


def targets_in(folder: Path, files: Sequence[Path], option: str) -> list[Path]:
    """A PNG file in a folder for each image, by the image's name.

    Args:
        folder: The folder; it need not exist.
        files: The images.
        option: The option of the command that names the folder.

    Raises:
        ValueError: If two images have one name, or a file would be replaced that is an
            image, or that `save_png` did not write.
    """
    targets = [folder / f"{path.stem}.png" for path in files]
    double = next((each for each in targets if targets.count(each) > 1), None)
    if double is not None:
        raise ValueError(
            f"{option} needs images of different names, because it writes files of the "
            f"same names. Received: two images named {double.stem!r}"
        )
    images = {path.resolve() for path in files}
    replaced = next((each for each in targets if each.resolve() in images), None)
    if replaced is not None:
        raise ValueError(
            f"{option} must not be the folder of the images, which would be replaced. "
            f"Received: {option} {str(folder)!r} with {replaced.name}"
        )
    # Perhaps the true masks, painted by hand.
    foreign = next((x for x in targets if x.exists() and not _is_ours(x)), None)
    if foreign is not None:
        raise ValueError(
            f"{option} must not have other files of these names, which would be "
            "replaced: choose a new folder. Received: "
            f"{option} {str(folder)!r} with {foreign.name}, which `keras-attn predict` "
            "did not write"
        )
    return targets


def _is_ours(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            return image.info.get("Software") == _SOFTWARE
    except OSError:
        return False


def save_png(path: Path, pixels: np.ndarray) -> None:
    """Writes a PNG file, which is complete or as it was before, and makes its folder.

    Args:
        path: The file.
        pixels: uint8 (h, w) or (h, w, C).
    """
    content, mark = io.BytesIO(), PngInfo()
    mark.add_text("Software", _SOFTWARE)
    Image.fromarray(pixels).save(content, "PNG", pnginfo=mark)
    write_atomically(path, content.getvalue())


def save_objects(
    path: Path,
    image: np.ndarray,
    objects: Sequence[Mapping[str, Any]],
    names: Sequence[str],
) -> None:
    """Writes an image with the boxes, masks, labels and scores of its objects.

    Args:
        path: The PNG file.
        image: (h, w, C) in 0 to 255.
        objects: As `predict_objects` has them, with `segmentation` as a dictionary.
        names: The classes; each has a color.
    """
    height, width = image.shape[:2]
    colors = dict(zip(names, class_colors(len(names)), strict=True))
    painted = _as_color(image)
    # The most certain objects are drawn last.
    objects = sorted(objects, key=lambda each: each["score"])
    for each in objects:
        if "segmentation" in each:
            mask = decode_mask(each["segmentation"], height, width)[..., None]
            mixed = (1 - _OPACITY) * painted + _OPACITY * colors[each["label"]]
            painted = np.where(mask, mixed, painted)
    figure, axes = _canvas(painted)
    unit = max(height, width) / _USUAL_PIXELS
    for each in objects:
        color = tuple(colors[each["label"]])
        left, top, right, bottom = (each[name] for name in SIDES)
        line = _points(_LINE_PIXELS * unit)
        add_frame(axes, (left, top, right, bottom), color=color, lw=line)
        # Inside the box where there is no room above it.
        is_above = top > 1.6 * _FONT_PIXELS * unit
        axes.text(
            left - 0.5,
            top - 0.5,
            drawable(f"{each['label']} {each['score']:.2f}"),
            va="bottom" if is_above else "top",
            clip_on=True,
            bbox={"facecolor": color, "edgecolor": "none", "pad": line},
            **text_style(_points(_FONT_PIXELS * unit), text_color_on(color)),
        )
    save_png(path, figure_to_array(figure))


def save_classes(
    path: Path, image: np.ndarray, labels: np.ndarray, names: Sequence[str]
) -> None:
    """Writes an image with the class of each pixel as a color, and a legend.

    The first class, which usually is the background, leaves the image as it is.

    Args:
        path: The PNG file.
        image: (h, w, C) in 0 to 255.
        labels: Classes, (h, w).
        names: The classes.
    """
    colors = class_colors(len(names))
    painted = _as_color(image)
    mixed = (1 - _OPACITY) * painted + _OPACITY * colors[labels]
    figure, axes = _canvas(np.where(labels[..., None] > 0, mixed, painted))
    unit = max(image.shape[:2]) / _USUAL_PIXELS
    found = [index for index in np.unique(labels) if index > 0]
    if found and min(image.shape[:2]) >= _LEGEND_PIXELS:
        axes.legend(
            handles=[
                Patch(color=tuple(colors[index]), label=drawable(names[int(index)]))
                for index in found
            ],
            loc="upper right",
            prop={"family": font_families(), "size": _points(_FONT_PIXELS * unit)},
        )
    save_png(path, figure_to_array(figure))


def draw_grid(
    images: Sequence[np.ndarray], captions: Sequence[Sequence[str]]
) -> Figure:
    """Images in rows of four, each under its caption.

    Args:
        images: (h, w, C) in 0 to 255, of any sizes; each keeps its aspect ratio.
        captions: The lines of each caption, as many for each image.
    """
    columns = min(len(images), _GRID_COLUMNS)
    rows = -(-len(images) // columns)
    height = _GRID_INCHES + _GRID_LINE_INCHES * len(captions[0])
    figure = new_figure(columns * _GRID_INCHES, rows * height, "constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, image, lines in zip(axes, images, captions, strict=False):
        small = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        small.thumbnail((_GRID_PIXELS, _GRID_PIXELS))
        axis.imshow(_as_color(np.atleast_3d(np.asarray(small))))
        text = "\n".join(drawable(in_one_line(x, _GRID_LETTERS)) for x in lines)
        axis.set_title(text, **text_style(7))
    return figure


def _as_color(image: np.ndarray) -> np.ndarray:
    """The pixels as red, green and blue in [0, 1]."""
    return np.repeat(image / 255.0, 3 // image.shape[-1], axis=-1)


def _canvas(image: np.ndarray) -> tuple[Figure, Any]:
    """A figure of the pixels of an image, and its axes."""
    height, width = image.shape[:2]
    # A little more: a size just below a whole number would lose a row or column.
    inches = (width + 0.01) / _DOTS_PER_INCH, (height + 0.01) / _DOTS_PER_INCH
    figure = Figure(figsize=inches, dpi=_DOTS_PER_INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.imshow(image, interpolation="nearest", aspect="auto")
    return figure, axes


def _points(pixels: float) -> float:
    return 72 * pixels / _DOTS_PER_INCH
