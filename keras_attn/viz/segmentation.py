"""Segmentation drawn over the image: the truth and the prediction.

Legend: B images, H and W pixels, C classes.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from keras_attn.viz.drawing.panels import (
    add_legend,
    check_colors,
    check_images,
    legend_inches,
    make_panels,
    show_image,
)

_IGNORED = np.array([0.55, 0.55, 0.55], "float32")
_WRONG = np.array([0.86, 0.08, 0.24], "float32")


def plot_segmentation(
    images,
    labels=None,
    predictions=None,
    *,
    class_names: Sequence[str],
    colors: Sequence[Sequence[int]] | None = None,
    ignore_label: int = 255,
    opacity: float = 0.6,
    errors: bool = False,
    title: str | None = None,
) -> Figure:
    """Draws one row per image: the image, the truth and the prediction over it.

    Args:
        images: (B, H, W, 1 or 3), of any range.
        labels: True classes, (B, H, W); None leaves their column out.
        predictions: Predicted classes, (B, H, W), or logits or probabilities,
            (B, H, W, C); None leaves their column out.
        class_names: Names of the C classes; the legend shows those that occur.
        colors: Red, green and blue of each class, from 0 to 255.
        ignore_label: Label that is drawn gray, and never counts as wrong.
        opacity: Opacity of the classes over the image, in [0, 1].
        errors: Whether to add a column where wrong pixels are red.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If shapes do not match, a class is beyond the names, `opacity` is
            out of range, or `errors` is set without labels and predictions.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        images, labels = np.ones((2, 64, 64, 3)), np.zeros((2, 64, 64), "int32")
        logits, names = np.random.normal(size=(2, 64, 64, 2)), ["road", "car"]
        figure = viz.plot_segmentation(images, labels, logits, class_names=names)
        viz.save_figure(figure, "road.png")
        ```
    """
    shown = check_images(images)
    count = len(class_names)
    table = check_colors(colors, count)
    if not 0 <= opacity <= 1:
        raise ValueError(f"`opacity` must be in [0, 1]. Received: opacity={opacity!r}")
    columns: dict[str, np.ndarray] = {}
    if labels is not None:
        columns["truth"] = _check("labels", labels, shown, count, ignore_label)
    if predictions is not None:
        predictions = np.asarray(predictions)
        if predictions.ndim == 4:
            if predictions.shape[-1] != count:
                raise ValueError(
                    f"`predictions` must be logits of {count} classes, as many as "
                    f"`class_names`. Received: shape={predictions.shape}"
                )
            predictions = predictions.argmax(-1)
        columns["prediction"] = _check(
            "predictions", predictions, shown, count, ignore_label
        )
    if errors and len(columns) < 2:
        raise ValueError(
            "`labels` and `predictions` must be given to draw errors. "
            f"Received: {sorted(columns)}"
        )
    found = np.unique(
        np.concatenate([each.ravel() for each in columns.values()] or [[]])
    )
    legend = [(class_names[i], table[i]) for i in range(count) if i in found]
    if ignore_label in found:
        legend.append(("ignored", _IGNORED))
    titles = ["image", *columns, *(["wrong pixels"] if errors else [])]
    figure, axes = make_panels(
        titles,
        len(shown),
        shown.shape[1:],
        title,
        legend_inches(len(legend), len(titles)) if legend else 0.0,
    )
    for row, image in enumerate(shown):
        show_image(axes[row, 0], image)
        for axis, each in zip(axes[row, 1:], columns.values(), strict=False):
            painted = np.where(
                (each[row] == ignore_label)[..., None],
                _IGNORED,
                table[np.where(each[row] == ignore_label, 0, each[row])],
            )
            show_image(axis, (1 - opacity) * image + opacity * painted)
        if errors:
            truth = columns["truth"][row]
            wrong = (truth != columns["prediction"][row]) & (truth != ignore_label)
            gray = np.repeat(image.mean(-1, keepdims=True), 3, -1) * 0.5 + 0.4
            show_image(axes[row, -1], np.where(wrong[..., None], _WRONG, gray))
    if legend:
        add_legend(figure, legend, len(titles))
    return figure


def _check(name: str, values, images, count: int, ignore_label: int) -> np.ndarray:
    values = np.asarray(values)
    if values.shape != images.shape[:3] or values.dtype.kind not in "iub":
        raise ValueError(
            f"`{name}` must be integers of the shape {images.shape[:3]}, one for each "
            f"pixel. Received: {name}.shape={values.shape}, dtype={values.dtype}"
        )
    values = values.astype(int)
    wrong = np.unique(values[(values < 0) | (values >= count)])
    wrong = wrong[wrong != ignore_label]
    if wrong.size:
        raise ValueError(
            f"`{name}` must be below {count}, the number of `class_names`, or "
            f"{ignore_label}. Received: {wrong[:5].tolist()}"
        )
    return values
