"""Images as sequences of patches, and position tables of a grid of patches.

Legend: B batch, H × W pixels of an image, C channels, p × q pixels of a patch, T
patches, D width.
"""

import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_pair


def image_to_patches(images, patch_size):
    """Splits images into patches, in row-major order.

    Args:
        images: (B, H, W, C), with known H and W, multiples of p and q.
        patch_size: p and q, one number or two.

    Returns:
        (B, T, p·q·C): the pixels of a patch in row-major order, channels last.

    Raises:
        ValueError: If the image size is not a multiple of `patch_size`.
    """
    height, width = check_pair("patch_size", patch_size)
    _, rows, columns, channels = images.shape
    if rows % height or columns % width:
        raise ValueError(
            "The image size must be a multiple of `patch_size`: resize or crop the "
            f"images. Received: images.shape={tuple(images.shape)}, "
            f"patch_size={patch_size}"
        )
    rows, columns = rows // height, columns // width
    cut = ops.reshape(images, (-1, rows, height, columns, width, channels))
    patches = ops.transpose(cut, (0, 1, 3, 2, 4, 5))
    return ops.reshape(patches, (-1, rows * columns, height * width * channels))


def patches_to_image(patches, patch_size, grid):
    """The inverse of `image_to_patches`.

    Args:
        patches: (B, T, p·q·C).
        patch_size: p and q, one number or two.
        grid: Number of rows and of columns of patches.

    Returns:
        (B, H, W, C).
    """
    height, width = check_pair("patch_size", patch_size)
    rows, columns = grid
    cut = ops.reshape(
        patches,
        (-1, rows, columns, height, width, patches.shape[-1] // (height * width)),
    )
    tiles = ops.transpose(cut, (0, 1, 3, 2, 4, 5))
    return ops.reshape(tiles, (-1, rows * height, columns * width, tiles.shape[-1]))


def sinusoid_grid(rows, columns, dim):
    """Sinusoids of a grid: sines and cosines of the column, then of the row.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        dim: D, a multiple of 4.

    Returns:
        float32 NumPy array, (rows · columns, D).

    Raises:
        ValueError: If `dim` is not a multiple of 4.

    Reference:
        He et al. 2022, appendix A.1 (arXiv:2111.06377); in the order of their code.
    """
    if dim % 4:
        raise ValueError(
            "`dim` must be a multiple of 4: sines and cosines of rows and columns. "
            f"Received: dim={dim}"
        )
    frequencies = 10_000.0 ** -(np.arange(dim // 4) / (dim // 4))
    row, column = np.divmod(np.arange(rows * columns), columns)
    parts = [
        wave(position[:, None] * frequencies)
        for position in (column, row)
        for wave in (np.sin, np.cos)
    ]
    return np.concatenate(parts, axis=1).astype("float32")


def resize_positions(table, old_grid, new_grid, num_prefix_tokens=1):
    """Interpolates a table of position embeddings to a different grid, bicubically.

    Args:
        table: NumPy array (P + T, D): P prefix tokens, then the grid in row-major
            order.
        old_grid: Number of rows and of columns of the table.
        new_grid: Number of rows and of columns of the result.
        num_prefix_tokens: P, the number of tokens that are copied unchanged.

    Returns:
        NumPy array (P + T', D), of the table's dtype.

    Raises:
        ValueError: If the size of `table` does not match `old_grid`.

    Reference:
        Dosovitskiy et al. 2021, section 3.2 (arXiv:2010.11929). As in PyTorch, Keys'
        kernel with a = -0.75, sampled between the centers of patches.
    """
    prefix, grid = table[:num_prefix_tokens], table[num_prefix_tokens:]
    if len(grid) != old_grid[0] * old_grid[1]:
        raise ValueError(
            "`table` must have one row for each patch of `old_grid`. Received: "
            f"{len(grid)} rows, old_grid={tuple(old_grid)}"
        )
    resized = grid.reshape(*old_grid, -1).astype("float64")
    for axis, (old, new) in enumerate(zip(old_grid, new_grid, strict=True)):
        resized = np.moveaxis(
            np.tensordot(_cubic(old, new), resized, axes=(1, axis)), 0, axis
        )
    resized = resized.reshape(new_grid[0] * new_grid[1], -1).astype(table.dtype)
    return np.concatenate([prefix, resized])


def _cubic(old, new, a=-0.75):
    """Weights of `old` samples in each of `new`, (new, old)."""
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.zeros((new, old))
    for step in range(-1, 3):
        sample = np.floor(centres).astype(int) + step
        distance = np.abs(centres - sample)
        near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
        far = a * (distance**3 - 5 * distance**2 + 8 * distance - 4)
        weight = np.where(distance <= 1, near, far)
        np.add.at(weights, (np.arange(new), np.clip(sample, 0, old - 1)), weight)
    return weights
