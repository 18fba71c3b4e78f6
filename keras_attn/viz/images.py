"""What an image model looks at, on the image.

Legend: B batch, N heads, P tokens in front of the patches, T patches or places, R rows
and S columns of them, L windows on a map.
"""

import math
from collections.abc import Mapping, Sequence

import keras
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_attn.layers import SelfAttention2D, WindowAttention
from keras_attn.viz.capture import capture_attention
from keras_attn.viz.plots import DOTS_PER_INCH, TEXT_COLOR

_HEAT = "inferno"
_PANEL_INCHES = 1.7


def image_attention(
    model: keras.Model, images, query: tuple[int, int] | None = None
) -> dict[str, np.ndarray]:
    """Runs a model on images and says for each place how much it is looked at.

    Args:
        model: Of `build_vit`, `build_deit3`, `build_swin`, `build_cnn_self_attention`,
            or any functional model of such layers.
        images: What the model is called with, (B, H, W, channels).
        query: The row and column of the patch that looks, of those of the layer.
            Default: the class token, or where there is none the mean of all that
            look.

    Returns:
        The path of each attention layer to its map, (B, N, R, S), probabilities: of a
        ViT those of the class token; of windows the mean over the places of each, put
        back where the window was before it was shifted. Layers that see no whole map,
        such as an MAE's encoder, are left out.

    Raises:
        ValueError: where no layer is left, or for a query outside of a map.
    """
    maps = {}
    for path, scores in capture_attention(model, images).items():
        grid = _grid_of(model, path, scores)
        if grid is not None:
            maps[path] = _map(model, path, scores, grid, query)
    if not maps:
        raise ValueError(
            "`model` must have an attention layer that sees a whole image, of "
            "`build_vit`, `build_swin` or `SelfAttention2D`. "
            f"Received: model={model.name!r}"
        )
    return maps


def attention_rollout(scores: Mapping[str, np.ndarray] | Sequence[np.ndarray]):
    """Follows attention through the layers, residuals and all.

    `A_l` is the mean of the heads of layer l; what a place draws from each input is
    `Π_l ½ (A_l + 1)`, the last layer first.

    Args:
        scores: Of each layer in order, (B, N, T, T), as `capture_attention` returns
            them.

    Returns:
        (B, T, T), in rows that sum to one: where the information of each token of the
        last layer comes from, among the tokens of the first.

    Raises:
        ValueError: for scores of other shapes, or of different lengths.

    Reference:
        Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3
        (arXiv:2005.00928).
    """
    layers = list(scores.values()) if isinstance(scores, Mapping) else list(scores)
    shapes = [np.shape(layer) for layer in layers]
    of_tokens = {
        (shape[0], *shape[2:]) for shape in shapes if len(shape) == 4
    }  # Batch, and the two lengths.
    is_square = len(of_tokens) == 1 and len(set(min(of_tokens)[1:])) == 1
    if not is_square or any(len(shape) != 4 for shape in shapes):
        raise ValueError(
            "`scores` must be those of layers over the same tokens, (batch, heads, "
            f"length, length) each. Received: shapes {shapes}"
        )
    one = np.eye(min(of_tokens)[1], dtype="float32")
    total = one
    for layer in layers:
        total = 0.5 * (layer.mean(axis=1) + one) @ total
    return total


def plot_image_attention(
    image: np.ndarray,
    maps: np.ndarray,
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Lays maps of attention over an image: bright is looked at.

    Colours run from 0 to the largest value of each map, so they compare places, not
    heads.

    Args:
        image: (H, W, 1 or 3), of any range: it is stretched to black and white.
        maps: (R, S), or (N, R, S) for a panel a head, of `image_attention` or a row of
            `attention_rollout`.
        title: Above the picture.
        ax: Where to draw a single map. None makes a figure of its own, with the image
            beside the maps.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: for an image or maps of another shape, or values that are not
            finite.
    """
    image, maps = _check_image(image), _check_maps(maps)
    if ax is not None:
        if len(maps) != 1:
            raise ValueError(
                "`maps` must be one where `ax` is given: an axes holds one panel. "
                f"Received: {len(maps)} maps"
            )
        _overlay(ax, image, maps[0])
        if title is not None:
            ax.set_title(title, parse_math=False)
        return ax.get_figure(root=True)  # pyright: ignore[reportReturnType]
    count = 1 + len(maps)
    columns = min(count, 7)
    rows = math.ceil(count / columns)
    shape = image.shape[0] / image.shape[1]
    figure = Figure(
        figsize=(columns * _PANEL_INCHES, rows * (_PANEL_INCHES * shape + 0.3) + 0.3),
        dpi=DOTS_PER_INCH,
        layout="compressed",
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.remove()
    _overlay(axes[0], image, None)
    axes[0].set_title("image", fontsize=8, color=TEXT_COLOR)
    for head, (axis, heat) in enumerate(zip(axes[1:], maps, strict=False)):
        _overlay(axis, image, heat)
        if len(maps) > 1:
            axis.set_title(f"head {head}", fontsize=8, color=TEXT_COLOR)
    if title is not None:
        figure.suptitle(title, parse_math=False, fontsize=10, color=TEXT_COLOR)
    return figure


def plot_position_similarity(
    table: np.ndarray, grid: tuple[int, int], *, title: str | None = None
) -> Figure:
    """Draws how alike the learned position of each patch is to those of all others.

    A panel for each patch, laid out as the patches are; in it the cosine of its
    position with every other, from -1 (dark) to 1 (bright).

    Args:
        table: (P + R·S, D), the tokens in front first: the `embeddings` of a model's
            `position_embedding`.
        grid: R and S.
        title: Above the picture.

    Returns:
        The figure.

    Raises:
        ValueError: for a table with fewer rows than the grid has places.

    Reference:
        Dosovitskiy et al. 2021, figure 7 (arXiv:2010.11929).
    """
    table = np.asarray(table, "float32")
    rows, columns = grid
    if table.ndim != 2 or len(table) < rows * columns:
        raise ValueError(
            "`table` must have a row for each place of `grid`. Received: "
            f"table.shape={table.shape}, grid={tuple(grid)}"
        )
    patches = table[len(table) - rows * columns :]
    unit = patches / np.maximum(np.linalg.norm(patches, axis=1, keepdims=True), 1e-12)
    similar = (unit @ unit.T).reshape(rows, columns, rows, columns)
    side = 6.0 / max(rows, columns)
    figure = Figure(
        figsize=(columns * side + 1.0, rows * side + 0.5),
        dpi=DOTS_PER_INCH,
        layout="compressed",
    )
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, panel in zip(axes.ravel(), similar.reshape(-1, *grid), strict=True):
        axis.imshow(panel, vmin=-1, vmax=1, cmap="viridis")
        axis.set_xticks([])
        axis.set_yticks([])
    bar = figure.colorbar(axes[0, 0].images[0], ax=axes, aspect=24, pad=0.02)
    bar.set_label("cosine similarity", fontsize=9, color=TEXT_COLOR)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
    if title is not None:
        figure.suptitle(title, parse_math=False, fontsize=10, color=TEXT_COLOR)
    return figure


def _layer_of(model, path):
    """The attention layer at a path, and the outermost layer that it is part of."""
    names = path.partition(":")[0].split("/")
    if names[0] not in {layer.name for layer in model.layers}:
        names = names[1:]  # The model's own name comes first.
    outer = layer = model.get_layer(names[0])
    for name in names[1:]:
        layer = getattr(layer, name)
    return layer, outer


def _grid_of(model, path, scores):
    """Rows and columns of the map a layer attends over; None where it sees no map."""
    layer, outer = _layer_of(model, path)
    if isinstance(layer, WindowAttention | SelfAttention2D):
        return tuple(outer.output.shape[1:3])
    if "patch_embedding" not in {each.name for each in model.layers}:
        return None
    patches = model.get_layer("patch_embedding")
    sizes = zip(patches.input.shape[1:3], patches.patch_size, strict=True)
    grid = tuple(size // side for size, side in sizes)
    prefix = scores.shape[-1] - grid[0] * grid[1]
    return grid if 0 <= prefix <= 2 else None


def _map(model, path, scores, grid, query):
    """(B, N, R, S) from the scores of one layer."""
    if query is not None and not all(
        0 <= place < size for place, size in zip(query, grid, strict=True)
    ):
        raise ValueError(
            f"`query` must be the row and column of a place of the map of {path}, "
            f"{grid}. Received: query={query}"
        )
    layer, _ = _layer_of(model, path)
    if isinstance(layer, WindowAttention):
        return _unwindow(layer, scores, grid, query)
    prefix = scores.shape[-1] - grid[0] * grid[1]
    if query is not None:
        looks = scores[:, :, prefix + query[0] * grid[1] + query[1]]
    else:
        looks = scores[:, :, 0] if prefix else scores.mean(axis=2)
    return looks[:, :, prefix:].reshape(*looks.shape[:2], *grid)


def _unwindow(layer, scores, grid, query):
    """Attention in windows, (B, L·N, T, T), as maps (B, N, R, S)."""
    window, (rows, columns), shift = layer.grid(grid)
    batch, heads = len(scores), layer.num_heads
    across = columns // window
    scores = scores.reshape(batch, -1, heads, *scores.shape[2:])
    if query is None:
        looks = scores.mean(axis=3)  # (B, L, N, T)
    else:
        row, column = (query[0] - shift) % rows, (query[1] - shift) % columns
        own = row // window * across + column // window
        place = row % window * window + column % window
        looks = np.zeros_like(scores[:, :, :, 0])
        looks[:, own] = scores[:, own, :, place]
    tiles = looks.transpose(0, 2, 1, 3)
    tiles = tiles.reshape(batch, heads, rows // window, across, window, window)
    maps = tiles.transpose(0, 1, 2, 4, 3, 5).reshape(batch, heads, rows, columns)
    maps = np.roll(maps, (shift, shift), axis=(2, 3))
    return maps[:, :, : grid[0], : grid[1]]


def _check_image(image):
    image = np.asarray(image, "float32")
    if image.ndim != 3 or image.shape[-1] not in (1, 3) or 0 in image.shape:
        raise ValueError(
            "`image` must have the shape (height, width, 1 or 3); of a batch, pass one "
            f"example: `images[0]`. Received: image.shape={image.shape}"
        )
    if not np.isfinite(image).all():
        raise ValueError("`image` must be finite. Received: NaN or infinite pixels")
    low, high = image.min(), image.max()
    image = (image - low) / max(high - low, 1e-12)
    return np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image


def _check_maps(maps):
    maps = np.asarray(maps, "float32")
    if maps.ndim not in (2, 3) or 0 in maps.shape or not np.isfinite(maps).all():
        raise ValueError(
            "`maps` must be finite, (rows, columns) or (heads, rows, columns); of a "
            f"batch, pass one example: `maps[0]`. Received: maps.shape={maps.shape}"
        )
    return maps.reshape(-1, *maps.shape[-2:])


def _overlay(ax, image, heat):
    if heat is None:
        ax.imshow(image)
    else:
        height, width = image.shape[:2]
        ax.imshow(image.mean(-1), cmap="gray", vmin=0, vmax=1)
        ax.imshow(
            heat,
            cmap=_HEAT,
            vmin=0,
            vmax=max(heat.max(), 1e-12),
            alpha=0.6,
            interpolation="bilinear",
            extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        )
    ax.set_axis_off()
