"""What an image model attends to, drawn over the image.

Legend: B batch, N heads, P tokens before the patches, T patches or positions, in R rows
and S columns, L windows of a map.
"""

import math
from collections.abc import Mapping, Sequence

import keras
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import AttentionPooling, SelfAttention2D, WindowAttention
from keras_attn.layers.capture import capture_attention
from keras_attn.viz.drawing.labels import drawable
from keras_attn.viz.drawing.overlays import (
    add_heat_bar,
    check_image,
    check_maps,
    map_labels,
    overlay,
)
from keras_attn.viz.drawing.plots import TEXT_COLOR, add_title, new_figure, text_style

_PANEL_INCHES = 1.7
_BAR_INCHES = 0.8  # With its labels.


def image_attention(
    model: keras.Model, images, query: tuple[int, int] | None = None
) -> dict[str, np.ndarray]:
    """Runs a model on images and maps how much each position is attended to.

    Args:
        model: A model from `build_vit`, `build_deit3`, `build_swin`,
            `build_cnn_self_attention` or `build_clip_image_encoder`, or any functional
            model of their layers.
        images: What the model is called with, (B, H, W, channels).
        query: Row and column of the patch that attends, on the grid of the layer.
            Default: the class token, or if there is none, the mean over all patches. A
            pooling by attention has a query of its own.

    Returns:
        A dictionary from the path of each attention layer to its map of probabilities,
        (B, N, R, S): for a ViT the attention of the class token; for windows the mean
        over the positions of each window, shifted back to its position on the map.
        Layers that do not see a whole map, such as in an MAE's encoder, are left out.

    Raises:
        ValueError: If no layer is left, or `query` is outside a map.
    """
    maps = {}
    for path, scores in capture_attention(model, images).items():
        grid = _find_grid(model, path, scores)
        if grid is not None:
            maps[path] = _map(model, path, scores, grid, query)
    if not maps:
        raise ValueError(
            "`model` must have an attention layer that sees a whole image, as "
            "`build_vit`, `build_swin` or `SelfAttention2D` have. "
            f"Received: model={model.name!r}"
        )
    return maps


@described_as(image_attention)
def image_rollout(
    model: keras.Model, images, query: tuple[int, int] | None = None
) -> np.ndarray:
    """Runs a model on images and maps its attention rollout onto the patches.

    Args:
        model: A model whose layers all attend over all patches, such as a ViT.

    Returns:
        (B, R, S): how much the last layer's class token, or the patch `query`, depends
        on each patch; without a class token, the mean over all patches, or what the
        query of SigLIP's pooling attends to.

    Raises:
        ValueError: If a layer does not attend over all patches, such as in Swin's
            shifted windows, or `query` is outside the map.

    Reference:
        Abnar and Zuidema 2020 (arXiv:2005.00928).
    """
    scores = capture_attention(model, images)
    grids = {}
    for path in scores:
        kinds = _find_layer(model, path)
        is_map = any(
            isinstance(kind, WindowAttention | SelfAttention2D | AttentionPooling)
            for kind in kinds
        )
        grids[path] = None if is_map else _find_grid(model, path, scores[path])
    if None in grids.values():
        raise ValueError(
            "`model` must attend over all patches in every layer, as a ViT does, for a "
            "rollout; use `image_attention` for windows or for attention on maps. "
            f"Received: model={model.name!r}"
        )
    path = list(grids)[-1]
    last = scores[path].mean(axis=1)
    if last.shape[1] == 1:  # A pooling, which has no residual connection.
        del scores[path]
        rollout = last @ attention_rollout(scores)
    else:
        rollout = attention_rollout(scores)
    return _map(model, path, rollout[:, None], grids[path], query)[:, 0]


def attention_rollout(scores: Mapping[str, np.ndarray] | Sequence[np.ndarray]):
    """Propagates attention through the layers, residual connections included.

    If `A_l` is the attention of layer l averaged over its heads, the rollout is
    `Π_l ½ (A_l + I)`, the last layer first.

    Args:
        scores: (B, N, T, T) for each layer in order, as `capture_attention` returns
            them.

    Returns:
        (B, T, T), with rows that sum to one: how much each token of the last layer
        (row) depends on each token of the first layer (column).

    Raises:
        ValueError: If `scores` have other shapes, or different lengths.

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
            "`scores` must come from layers over the same tokens, (batch, heads, "
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
    labels: Sequence[str] | None = None,
    box: Sequence[float] | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draws maps of attention over an image: brighter is more attention.

    Colors run from 0 to the maximum of each map, so they compare positions, not heads.

    Args:
        image: (H, W, 1 or 3), of any range: it is rescaled to [0, 1].
        maps: (R, S), or (N, R, S) for one panel per head, from `image_attention` or
            `image_rollout`.
        title: Title of the figure.
        labels: Titles of the N panels. Default: `head 0`, `head 1`, ….
        box: Left, top, right and bottom of the part of the image that the maps cover,
            in pixels: the `visible_box` of an `ImagePreprocessing` that cropped it.
            Default: all of it.
        ax: Axes to draw a single map on. None creates a figure, with the image beside
            the maps.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If `image` or `maps` have a different shape or are not finite, the
            numbers of labels and maps differ, or `box` is empty.
    """
    image, maps = check_image(image), check_maps(maps)
    labels = map_labels(labels, len(maps), alone="")
    if ax is not None:
        if len(maps) != 1:
            raise ValueError(
                "`maps` must be one if `ax` is given: an axes holds one panel. "
                f"Received: {len(maps)} maps"
            )
        overlay(ax, image, maps[0], box)
        if title is not None:
            ax.set_title(title, parse_math=False)
        return ax.get_figure(root=True)  # pyright: ignore[reportReturnType]
    count = 1 + len(maps)
    columns = min(count, 7)
    rows = math.ceil(count / columns)
    shape = image.shape[0] / image.shape[1]
    figure = new_figure(
        columns * _PANEL_INCHES + _BAR_INCHES,
        rows * (_PANEL_INCHES * shape + 0.3) + 0.3,
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.remove()
    overlay(axes[0], image, None)
    axes[0].set_title("image", fontsize=8, color=TEXT_COLOR)
    for axis, heat, label in zip(axes[1:count], maps, labels, strict=True):
        overlay(axis, image, heat, box)
        axis.set_title(drawable(label), **text_style(8))
    add_heat_bar(figure, axes[:count].tolist())
    add_title(figure, title)
    return figure


def plot_position_similarity(
    table: np.ndarray, grid: tuple[int, int], *, title: str | None = None
) -> Figure:
    """Draws the similarity of the learned position embeddings of all patches.

    There is one panel per patch, laid out like the patches. It shows the cosine
    similarity between the embedding of its patch and the embedding of every patch, from
    -1 (dark) to 1 (bright).

    Args:
        table: (P + R·S, D), the `embeddings` of a model's `position_embedding`, with
            the tokens before the patches first.
        grid: R and S.
        title: Title of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: If `table` has fewer rows than the grid has patches.

    Reference:
        Dosovitskiy et al. 2021, figure 7 (arXiv:2010.11929).
    """
    table = np.asarray(table, "float32")
    rows, columns = grid
    if table.ndim != 2 or len(table) < rows * columns:
        raise ValueError(
            "`table` must have a row for each patch of `grid`. Received: "
            f"table.shape={table.shape}, grid={tuple(grid)}"
        )
    patches = table[len(table) - rows * columns :]
    unit = patches / np.maximum(np.linalg.norm(patches, axis=1, keepdims=True), 1e-12)
    similar = (unit @ unit.T).reshape(rows, columns, rows, columns)
    side = 6.0 / max(rows, columns)
    figure = new_figure(columns * side + 1.0, rows * side + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, panel in zip(axes.ravel(), similar.reshape(-1, *grid), strict=True):
        axis.imshow(panel, vmin=-1, vmax=1, cmap="viridis")
        axis.set_xticks([])
        axis.set_yticks([])
    bar = figure.colorbar(axes[0, 0].images[0], ax=axes, aspect=24, pad=0.02)
    bar.set_label("cosine similarity", fontsize=9, color=TEXT_COLOR)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
    add_title(figure, title)
    return figure


def _find_layer(model, path):
    """The attention layer at a path, and the layer of the model that contains it."""
    names = path.partition(":")[0].split("/")
    if names[0] not in {layer.name for layer in model.layers}:
        names = names[1:]  # The model's own name comes first.
    outer = layer = model.get_layer(names[0])
    for name in names[1:]:
        layer = getattr(layer, name)
    return layer, outer


def _find_grid(model, path, scores):
    """Rows and columns of the map a layer attends over; None if it sees no map."""
    layer, outer = _find_layer(model, path)
    if isinstance(layer, WindowAttention | SelfAttention2D):
        return tuple(outer.output.shape[1:3])
    if isinstance(outer, AttentionPooling):
        return tuple(outer.input.shape[1:3])
    if "patch_embedding" not in {each.name for each in model.layers}:
        return None
    grid = patch_grid(model)
    prefix = scores.shape[-1] - grid[0] * grid[1]
    return grid if 0 <= prefix <= 2 else None


def patch_grid(model) -> tuple[int, int]:
    """Rows and columns of the patches of a ViT."""
    patches = model.get_layer("patch_embedding")
    sizes = zip(patches.input.shape[1:3], patches.patch_size, strict=True)
    rows, columns = (size // side for size, side in sizes)
    return rows, columns


def _map(model, path, scores, grid, query):
    """(B, N, R, S) from the scores of one layer."""
    if query is not None and not all(
        0 <= index < size for index, size in zip(query, grid, strict=True)
    ):
        raise ValueError(
            f"`query` must be the row and column of a position on the map of {path}, "
            f"{grid}. Received: query={query}"
        )
    layer, _ = _find_layer(model, path)
    if isinstance(layer, WindowAttention):
        return _unwindow(layer, scores, grid, query)
    prefix = scores.shape[-1] - grid[0] * grid[1]
    if query is not None and scores.shape[2] > 1:
        weights = scores[:, :, prefix + query[0] * grid[1] + query[1]]
    else:
        weights = scores[:, :, 0] if prefix else scores.mean(axis=2)
    return weights[:, :, prefix:].reshape(*weights.shape[:2], *grid)


def _unwindow(layer, scores, grid, query):
    """Attention in windows, (B, L·N, T, T), as maps (B, N, R, S)."""
    window, (rows, columns), shift = layer.grid(grid)
    batch, heads = len(scores), layer.num_heads
    across = columns // window
    scores = scores.reshape(batch, -1, heads, *scores.shape[2:])
    if query is None:
        weights = scores.mean(axis=3)  # (B, L, N, T)
    else:
        row, column = (query[0] - shift) % rows, (query[1] - shift) % columns
        own = row // window * across + column // window
        position = row % window * window + column % window
        weights = np.zeros_like(scores[:, :, :, 0])
        weights[:, own] = scores[:, own, :, position]
    tiles = weights.transpose(0, 2, 1, 3)
    tiles = tiles.reshape(batch, heads, rows // window, across, window, window)
    maps = tiles.transpose(0, 1, 2, 4, 3, 5).reshape(batch, heads, rows, columns)
    maps = np.roll(maps, (shift, shift), axis=(2, 3))
    return maps[:, :, : grid[0], : grid[1]]
