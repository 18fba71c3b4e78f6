"""Images that are generated from codes: masks, codes and samples.

Legend: B images, H and W pixels, C channels, h and w rows and columns of codes, L
positions of a caption, S = L + h·w, Q captions, N images of each.
"""

import keras
import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_attn.checks.arguments import check_rank
from keras_attn.layers import TextImageMask
from keras_attn.viz.drawing.labels import drawable
from keras_attn.viz.drawing.panels import (
    check_images,
    check_pixels,
    make_panels,
    show_image,
)
from keras_attn.viz.drawing.plots import TEXT_COLOR, add_title, new_figure, text_style

_PANEL_INCHES = 1.6
_MASK_INCHES = 2.6
_SAMPLE_INCHES = 1.0
# Attended, the query itself, and neither.
_SEEN, _QUERY, _HIDDEN = (66, 133, 196), (220, 110, 30), (238, 241, 245)
_MAX_NUMBERED = 16  # Columns of codes up to which their numbers can be read.
_CODE_COLORS = np.random.default_rng(0).permutation(4096)


def plot_image_masks(
    model: keras.Model, place: tuple[int, int] | None = None, *, title=None
) -> Figure:
    """Draws the masks of DALL·E: a column for each kind, row, column, convolutional.

    Above, the whole mask (S, S), a row per query: first the caption, then the codes of
    the image row by row. Below, the grid of codes: which ones one code attends to. It
    also attends to all of the caption.

    Args:
        model: A model from `build_dalle`, of any size: its weights do not matter.
        place: Row and column of the code, from 0. Default: the middle.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If the model has no layer `TextImageMask`, or `place` is outside of
            the grid.

    Example:
        ```python
        from keras_attn import models, viz

        viz.plot_image_masks(models.create("dalle_small"), place=(5, 3))
        ```

    Reference:
        Ramesh et al. 2021, figure 11 (arXiv:2102.12092).
    """
    layers = [each for each in model.layers if isinstance(each, TextImageMask)]
    if not layers or not hasattr(model, "grid_size"):
        raise ValueError(
            "`model` must be a model from `build_dalle`, with layers `TextImageMask`. "
            f"Received: model={model.name!r}"
        )
    rows, columns = model.grid_size
    place = (rows // 2, columns // 2) if place is None else place
    is_pair = isinstance(place, tuple | list) and len(place) == 2
    if not is_pair or not (0 <= place[0] < rows and 0 <= place[1] < columns):
        raise ValueError(
            f"`place` must be a row below {rows} and a column below {columns}. "
            f"Received: place={place}"
        )
    row, column = place
    text_length = layers[0].text_length
    positions = np.arange(text_length + rows * columns)[None]
    query = text_length + row * columns + column
    titles = [each.kind for each in layers]
    figure, axes = make_panels(titles, 2, (1, 1), title, panel_inches=_MASK_INCHES)
    for (above, below), layer in zip(axes.T, layers, strict=True):
        mask = np.asarray(ops.convert_to_numpy(layer(positions, positions)))[0]
        above.imshow(_colored(mask), interpolation="nearest")
        for draw in (above.axhline, above.axvline):
            draw(text_length - 0.5, color=TEXT_COLOR, linewidth=0.5)
        grid = _colored(mask[query, text_length:].reshape(rows, columns))
        grid[row, column] = _QUERY
        below.imshow(grid, interpolation="nearest")
        _draw_lines(below, rows, columns)
    return figure


def plot_codes(images, codes, reconstructions, *, title=None) -> Figure:
    """Draws one row per image: the image, its grid of codes, what they decode to.

    Equal codes have equal colors, which mean nothing else. Grids of up to 16 columns
    also show the numbers.

    Args:
        images: (B, H, W, 1 or 3), of any range.
        codes: Integers, (B, h, w), from `DVAE.encode_model`.
        reconstructions: (B, H, W, 1 or 3), from `DVAE.decode_model`.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If shapes do not match, or codes are not integers of at least 0.

    Example:
        ```python
        import numpy as np
        from keras_attn import models, viz

        images = np.random.uniform(size=(2, 32, 32, 3))
        dvae = models.build_dvae(image_size=32, base_dim=16, num_blocks=1)
        codes = dvae.encode_model()(images)  # (2, 4, 4)
        viz.plot_codes(images, codes, dvae.decode_model()(codes))
        ```
    """
    pixels = check_images(images)
    check_pixels("reconstructions", reconstructions, ("B", "H", "W"), "decode codes")
    drawn = check_images(reconstructions)
    codes = np.asarray(codes)
    check_rank("codes", codes, 3, "(batch, rows, columns)")
    if not np.issubdtype(codes.dtype, np.integer) or codes.min(initial=0) < 0:
        raise ValueError(
            "`codes` must be integers of at least 0. "
            f"Received: {codes.dtype} from {codes.min(initial=0)}"
        )
    if not len(pixels) == len(codes) == len(drawn) or 0 in codes.shape:
        raise ValueError(
            "`images`, `codes` and `reconstructions` must be of the same images. "
            f"Received: {len(pixels)}, {len(codes)} and {len(drawn)}"
        )
    titles = ["image", "codes", "decoded"]
    figure, axes = make_panels(
        titles, len(pixels), pixels.shape[1:], title, panel_inches=_PANEL_INCHES
    )
    for row, image, grid, reconstruction in zip(
        axes, pixels, codes, drawn, strict=True
    ):
        show_image(row[0], image)
        row[1].imshow(_code_colors(grid), interpolation="nearest", aspect="auto")
        if grid.shape[1] <= _MAX_NUMBERED:
            _draw_numbers(row[1], grid)
        show_image(row[2], reconstruction)
    return figure


def plot_generated_images(images, captions, scores=None, *, title=None) -> Figure:
    """Draws one row per caption, with the images generated for it.

    Args:
        images: (Q, N, H, W, 1 or 3), of any range; the best ones first, as
            `generate_images` returns them.
        captions: Q texts.
        scores: (Q, N), such as the similarity of CLIP, drawn above each image. None =
            no scores.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If shapes do not match.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        images = np.random.uniform(size=(2, 4, 32, 32, 3))  # Four for each caption.
        scores = np.array([[0.9, 0.8, 0.7, 0.7], [0.8, 0.6, 0.5, 0.2]])
        viz.plot_generated_images(images, ["a red heart", "a blue star"], scores)
        ```
    """
    images = np.asarray(images)
    check_rank("images", images, 5, "(captions, images, height, width, channels)")
    texts = [captions] if isinstance(captions, str) else list(captions)
    if len(texts) != len(images):
        raise ValueError(
            f"`captions` must be {len(images)} texts, one for each row of `images`. "
            f"Received: captions={captions!r}"
        )
    if scores is not None and np.shape(scores) != images.shape[:2]:
        raise ValueError(
            f"`scores` must have the shape {images.shape[:2]}, one for each image. "
            f"Received: scores of shape {np.shape(scores)}"
        )
    num_rows, count, height, width, channels = images.shape
    pixels = check_images(images.reshape(-1, height, width, channels))
    inches = _SAMPLE_INCHES * height / width + (0.2 if scores is not None else 0.05)
    figure = new_figure(
        max(3.0, count * (_SAMPLE_INCHES + 0.05)),
        num_rows * (inches + 0.25) + 0.3 * (title is not None),
        layout="constrained",
    )
    add_title(figure, title)
    rows = figure.subfigures(num_rows, 1, squeeze=False)[:, 0]
    for number, (part, text) in enumerate(zip(rows, texts, strict=True)):
        part.suptitle(drawable(text), x=0.01, ha="left", **text_style(8))
        axes = part.subplots(1, count, squeeze=False)[0]
        for column, axis in enumerate(axes):
            show_image(axis, pixels[number * count + column])
            axis.set_axis_off()
            if scores is not None:
                axis.set_title(
                    f"{scores[number][column]:.2f}", fontsize=7, color=TEXT_COLOR, pad=2
                )
    return figure


def _colored(mask):
    """A mask (rows, columns) as pixels, uint8 (rows, columns, 3)."""
    return np.where(mask[..., None], _SEEN, _HIDDEN).astype(np.uint8)


def _draw_lines(axis, rows, columns):
    """White lines between the cells of a grid."""
    for count, draw in ((rows, axis.axhline), (columns, axis.axvline)):
        for line in range(1, count):
            draw(line - 0.5, color="white", linewidth=0.5)


def _code_colors(codes):
    """A light color for each code, float (h, w, 3)."""
    # Three digits of a number that is as good as random, of 16 values each.
    numbers = _CODE_COLORS[codes % len(_CODE_COLORS)]
    digits = np.stack([numbers % 16, numbers // 16 % 16, numbers // 256], axis=-1)
    return 0.45 + 0.5 * digits / 15


def _draw_numbers(axis, codes):
    """The number of each code in its cell."""
    size = min(8.0, 72 * _PANEL_INCHES / (2.4 * codes.shape[1]))
    for (row, column), code in np.ndenumerate(codes):
        axis.text(
            column,
            row,
            str(code),
            fontsize=size,
            color=TEXT_COLOR,
            ha="center",
            va="center",
        )
