"""How similar images and texts are to a model such as CLIP.

Legend: P images, Q texts, H and W pixels, T tokens.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from keras_attn.checks.arguments import is_whole
from keras_attn.layers import SimilarityLogits
from keras_attn.viz.drawing.labels import drawable
from keras_attn.viz.drawing.panels import check_images
from keras_attn.viz.drawing.plots import TEXT_COLOR, add_title, new_figure, text_style

_TITLES = {
    "cosine": "cosine similarity",
    "text_given_image": "probability of each text\n(a column sums to 1)",
    "image_given_text": "probability of each image\n(a row sums to 1)",
    "match": "probability that the two belong together",
}
_COLORMAP, _TRUE = "Blues", "#2e9e4f"
_CELL_INCHES = (0.12, 0.62)
_TOTAL_INCHES = 16.0  # Cells shrink to keep all panels within this size.
_NUMBER_INCHES = 0.4  # In smaller cells, numbers are left out.
_LETTER_INCHES = 0.075
_LINE_INCHES = 0.15
_MAX_LETTERS = 40  # In a line.


def image_text_similarity(model: Any, images, token_ids) -> dict[str, np.ndarray]:
    """Compares every image with every text.

    Args:
        model: A model from `build_clip` or `build_siglip`.
        images: (P, H, W, channels), inputs of the image tower.
        token_ids: (Q, T), inputs of the text tower.

    Returns:
        A dictionary of matrices (P, Q): `cosine`, the similarity of the embeddings, in
        [-1, 1]; and after multiplication by the learned scale, `text_given_image`, the
        softmax over the texts of each image, and `image_given_text`, the softmax over
        the images of each text. SigLIP compares each pair for itself: in place of the
        two it has `match`, the sigmoid.

    Raises:
        TypeError: If `model` is not such a model.
    """
    check_dual_encoder(model)
    of_images = model.image_encoder()(images, training=False)
    of_texts = model.text_encoder()(token_ids, training=False)
    logits = model.logits(of_images, of_texts)
    cosines = ops.matmul(of_images, ops.transpose(of_texts))
    matrices = {"cosine": ops.convert_to_numpy(cosines)}
    if model.similarity.logit_bias is not None:
        matrices["match"] = ops.convert_to_numpy(ops.sigmoid(logits))
        return matrices
    logits = ops.convert_to_numpy(logits)
    for name, axis in (("text_given_image", 1), ("image_given_text", 0)):
        powers = np.exp(logits - logits.max(axis, keepdims=True))
        matrices[name] = powers / powers.sum(axis, keepdims=True)
    return matrices


def check_dual_encoder(model: Any) -> None:
    """Raises a `TypeError` unless the model has two towers."""
    layers = getattr(model, "layers", ())
    has_similarity = any(isinstance(layer, SimilarityLogits) for layer in layers)
    if not (isinstance(model, keras.Model) and has_similarity):
        raise TypeError(
            "`model` must be a model from `build_clip` or `build_siglip`. "
            f"Received: model={model!r}"
        )


def plot_similarity(
    images,
    texts: Sequence[str],
    matrices: Mapping[str, np.ndarray],
    *,
    pairs: Sequence[tuple[int, int]] | None = None,
    title: str | None = None,
) -> Figure:
    """Draws a matrix of images and texts: a column per image, a row per text.

    There is a panel for each matrix; darker is more similar. A green frame marks the
    pairs that belong together: a good model is darkest there. Probabilities are drawn
    from 0 to 1. Cosines are drawn from their minimum to their maximum, because they
    differ less.

    Args:
        images: (P, H, W, 1 or 3), of any range.
        texts: Q texts.
        matrices: (P, Q) each, from `image_text_similarity`, or some of them.
        pairs: The image and the text, by number, of each pair that belongs together.
            Default: text i belongs to image i, if there are as many texts as images.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If a shape differs from these, values are not finite, probabilities
            are outside [0, 1], matrices are missing, or a pair does not exist.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        images, texts = np.random.uniform(size=(2, 64, 64, 3)), ["a dog", "a ball"]
        matrices = {"cosine": np.array([[0.3, 0.1], [0.2, 0.4]])}
        viz.plot_similarity(images, texts, matrices)  # As of `image_text_similarity`.
        ```

    Reference:
        Radford et al. 2021, figures 1 and 3 (arXiv:2103.00020).
    """
    shown = check_images(images)
    values = _check(matrices, len(shown), texts)
    marked = _check_pairs(pairs, len(shown), len(texts))
    smallest, largest = _CELL_INCHES
    across = len(values) * len(shown)
    cell = max(smallest, min(largest, _TOTAL_INCHES / max(across, len(texts))))
    labels = [_wrapped(text, max(1, int(cell / _LINE_INCHES))) for text in texts]
    letters = max(len(line) for label in labels for line in label.split("\n"))
    left = _LETTER_INCHES * letters + 0.2
    picture = cell * shown.shape[1] / shown.shape[2]
    width = max(cell * len(shown), 1.6)
    figure = new_figure(
        left + len(values) * (width + 0.15),
        cell * len(texts) + picture + 0.8 + 0.3 * (title is not None),
    )
    axes = figure.subplots(1, len(values), squeeze=False)[0]
    for number, (axis, (name, matrix)) in enumerate(
        zip(axes, values.items(), strict=True)
    ):
        _draw(axis, matrix.T, name, shown, picture / cell, cell >= _NUMBER_INCHES)
        for image, text in marked:
            corner = (image - 0.46, text - 0.46)
            axis.add_patch(
                Rectangle(corner, 0.92, 0.92, fill=False, color=_TRUE, lw=1.6)
            )
        axis.set_yticks(
            range(len(texts)),
            labels if number == 0 else [""] * len(texts),
            **text_style(max(4.0, min(8.0, 40 * cell))),
        )
    if marked:
        note = "green frame: image and text belong together"
        axes[0].set_xlabel(note, fontsize=8, color=_TRUE)
    add_title(figure, title)
    return figure


def _draw(ax: Axes, matrix, name, images, height, has_numbers) -> None:
    """One panel, (Q, P), with the images above their columns.

    Args:
        ax: The axes.
        matrix: (Q, P).
        name: Name of the matrix.
        images: (P, H, W, 3), in [0, 1].
        height: Height of an image, in cells.
        has_numbers: Whether the values are written into the cells.
    """
    low, high = 0.0, 1.0
    title = _TITLES[name] if name in _TITLES else name
    if name == "cosine":
        low, high = float(matrix.min()), float(matrix.max())
        title += f"\n(from {low:.2f} to {high:.2f})"
    ax.imshow(matrix, cmap=_COLORMAP, vmin=low, vmax=max(high, low + 1e-6))
    for column, image in enumerate(images):
        extent = (column - 0.45, column + 0.45, -0.6, -0.6 - 0.9 * height)
        ax.imshow(image.clip(0, 1), extent=extent)
    if has_numbers:
        middle = (low + high) / 2
        for (row, column), value in np.ndenumerate(matrix):
            ax.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if value > middle else TEXT_COLOR,
            )
    ax.set_xlim(-0.5, matrix.shape[1] - 0.5)
    ax.set_ylim(matrix.shape[0] - 0.5, -0.65 - 0.9 * height)
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(_drawable_lines(title), fontsize=8, color=TEXT_COLOR, parse_math=False)


def _drawable_lines(text: str) -> str:
    """`drawable` for each line."""
    return "\n".join(map(drawable, text.split("\n")))


def _wrapped(text: str, max_lines: int) -> str:
    """A text in lines, cut where it does not fit."""
    return "\n".join(
        textwrap.TextWrapper(_MAX_LETTERS, max_lines=max_lines, placeholder=" …").wrap(
            drawable(text)
        )
    )


def _check(matrices, num_images, texts) -> dict[str, np.ndarray]:
    """The matrices as float32, after a check of shapes and ranges."""
    if isinstance(texts, str) or not len(texts):
        raise ValueError(
            f"`texts` must be a list of strings, at least one. Received: {texts!r}"
        )
    if not isinstance(matrices, Mapping) or not matrices:
        raise ValueError(
            "`matrices` must be a dictionary, at least one matrix by its name, as "
            f"`image_text_similarity` returns them. Received: {matrices!r}"
        )
    values = {name: np.asarray(matrix, "float32") for name, matrix in matrices.items()}
    for name, matrix in values.items():
        if matrix.shape != (num_images, len(texts)) or not np.isfinite(matrix).all():
            raise ValueError(
                f"`matrices` must be finite, ({num_images}, {len(texts)}), the numbers "
                f"of images and texts. Received: {name!r} of shape {matrix.shape}"
            )
        is_probable = -0.01 <= matrix.min() <= matrix.max() <= 1.01
        if name != "cosine" and not is_probable:
            raise ValueError(
                "`matrices` other than `cosine` must be probabilities in [0, 1]. "
                f"Received: {name!r} from {matrix.min():.4g} to {matrix.max():.4g}"
            )
    return values


def _check_pairs(pairs, num_images, num_texts) -> list[tuple[int, int]]:
    if pairs is None:
        equal = num_images == num_texts
        return [(index, index) for index in range(num_images)] if equal else []
    checked = [tuple(pair) for pair in pairs]
    sizes = (num_images, num_texts)
    for pair in checked:
        if len(pair) != 2 or not all(
            is_whole(n) and 0 <= n < size for n, size in zip(pair, sizes, strict=True)
        ):
            raise ValueError(
                f"`pairs` must be numbers of an image, below {num_images}, and of a "
                f"text, below {num_texts}. Received: {pair}"
            )
    return checked
