"""Detected objects drawn over the image: boxes, scores and masks.

Legend: B images, M ground-truth objects with padding, K detections with padding, H and
W pixels.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_attn.ops.boxes import convert_boxes
from keras_attn.ops.instance_masks import masks_in_image
from keras_attn.viz.drawing.labels import drawable
from keras_attn.viz.drawing.panels import (
    add_frame,
    check_colors,
    check_images,
    make_panels,
    show_image,
    text_color_on,
)
from keras_attn.viz.drawing.plots import text_style

_MASK_OPACITY = 0.45
_FONT_POINTS = 6.0
_CROWDED = 12  # From this many objects in an image on, labels are smaller.
_PANEL_INCHES = 3.2


def plot_detections(
    images,
    detections: Mapping | None = None,
    truth: Mapping | None = None,
    *,
    class_names: Sequence[str],
    colors: Sequence[Sequence[int]] | None = None,
    min_score: float = 0.5,
    bounding_box_format: str = "xyxy",
    aligned_masks: bool = True,
    title: str | None = None,
) -> Figure:
    """Draws one row per image: the ground-truth objects beside the detected ones.

    Args:
        images: (B, H, W, 1 or 3), of any range.
        detections: Output of a detector: `boxes` (B, K, 4); `classes` (B, K), -1 in
            padding; `scores` (B, K); optionally `masks`, (B, K, h, w) probabilities
            stretched over the boxes, or bool (B, K, H, W). None leaves their column
            out.
        truth: `boxes` (B, M, 4), `classes` (B, M), -1 in padding, and optionally
            `masks` (B, M, H, W). None leaves their column out.
        class_names: Names of the classes.
        colors: Red, green and blue of each class, from 0 to 255.
        min_score: Detections with a lower score are not drawn.
        bounding_box_format: Format of all boxes, as in the model: one of
            `ops.boxes.BOX_FORMATS`.
        aligned_masks: How masks are pasted, as in the model; see `ops.paste_masks`.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If shapes do not match, an entry is missing, or a class is beyond
            the names.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        images = np.random.uniform(size=(1, 64, 64, 3))
        truth = {"boxes": np.array([[[8.0, 8, 40, 48]]]), "classes": np.array([[1]])}
        found = {**truth, "scores": np.array([[0.9]])}
        viz.plot_detections(images, found, truth, class_names=["cat", "dog"])
        ```
    """
    shown = check_images(images)
    table = check_colors(colors, len(class_names))
    columns = {}
    if truth is not None:
        columns["truth"] = _check("truth", truth, shown, class_names)
    if detections is not None:
        found = _check("detections", detections, shown, class_names, "scores")
        is_kept = np.nan_to_num(found["scores"], nan=-np.inf) >= min_score
        found["classes"] = np.where(is_kept, found["classes"], -1)
        columns[f"detections, score ≥ {min_score:g}"] = found
    if not columns:
        raise ValueError(
            "`detections` or `truth` must be given. Received: neither of them"
        )
    if bounding_box_format != "xyxy":
        for values in columns.values():
            values["boxes"] = np.asarray(
                convert_boxes(
                    values["boxes"], bounding_box_format, "xyxy", shown.shape[1:3]
                )
            )
    figure, axes = make_panels(
        list(columns), len(shown), shown.shape[1:], title, panel_inches=_PANEL_INCHES
    )
    for row, image in enumerate(shown):
        for axis, values in zip(axes[row], columns.values(), strict=True):
            _draw(axis, image, values, row, class_names, table, aligned_masks)
    return figure


def _draw(ax: Axes, image, values, row: int, class_names, colors, aligned) -> None:
    """Draws the objects of one image, the least certain first."""
    classes, boxes = values["classes"][row], values["boxes"][row]
    drawn = np.flatnonzero((classes >= 0) & np.isfinite(boxes).all(-1))
    if "scores" in values:
        drawn = drawn[np.argsort(values["scores"][row][drawn], kind="stable")]
    size = image.shape[:2]
    points = _FONT_POINTS if len(drawn) < _CROWDED else 0.75 * _FONT_POINTS
    painted = image.copy()
    outlines = []
    if "masks" in values:
        given = values["masks"][row, drawn]
        masks = masks_in_image(given, boxes[drawn], size, aligned)
        for index, mask in zip(drawn, masks, strict=True):
            color = colors[classes[index]]
            mixed = (1 - _MASK_OPACITY) * painted + _MASK_OPACITY * color
            painted = np.where(mask[..., None], mixed, painted)
            outlines.append((mask, color))
    show_image(ax, painted)
    for mask, color in outlines:
        if mask.any() and not mask.all():
            ax.contour(mask, [0.5], colors=[color], linewidths=0.8)
    for index in drawn:
        left, top, _, _ = boxes[index]
        color = tuple(colors[classes[index]])
        # A pixel's center has whole coordinates on the axes, its corner in boxes.
        add_frame(ax, boxes[index], color=color, lw=1.0)
        text = drawable(class_names[classes[index]])
        if "scores" in values:
            text += f" {values['scores'][row, index]:.2f}"
        # Inside the box if it does not fit above it.
        is_above = top > points * 2 / 72 * size[1] / _PANEL_INCHES
        ax.annotate(
            text,
            (max(left, 0) - 0.5, max(top, 0) - 0.5),
            xytext=(0.8, 0.8 if is_above else -0.8),
            textcoords="offset points",
            va="bottom" if is_above else "top",
            clip_on=True,
            bbox={"facecolor": color, "edgecolor": "none", "pad": 0.8},
            **text_style(points, text_color_on(color)),
        )
    ax.set_xlim(-0.5, size[1] - 0.5)
    ax.set_ylim(size[0] - 0.5, -0.5)


def _check(name, values, images, class_names, *more) -> dict[str, np.ndarray]:
    missing = [key for key in ("boxes", "classes", *more) if key not in values]
    if missing:
        raise ValueError(f"`{name}` must have {missing}. Received: {sorted(values)}")
    keys = ("boxes", "classes", "masks", *more)
    arrays = {key: np.asarray(values[key]) for key in keys if key in values}
    shape = arrays["classes"].shape
    ranks = {"boxes": 3, "masks": 4}
    if shape[:1] != images.shape[:1] or any(
        array.ndim != ranks.get(key, 2) or array.shape[:2] != shape
        for key, array in arrays.items()
    ):
        shapes = {key: array.shape for key, array in arrays.items()}
        raise ValueError(
            f"`{name}` must have boxes (B, M, 4), classes (B, M) and masks "
            f"(B, M, height, width), of {len(images)} images. Received: {shapes}"
        )
    highest = int(arrays["classes"].max(initial=-1))
    if highest >= len(class_names):
        raise ValueError(
            f"Classes of `{name}` must be below {len(class_names)}, the number of "
            f"`class_names`. Received: class {highest}"
        )
    return arrays
