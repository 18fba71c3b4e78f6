"""Anchors: the boxes around each location of a map that a detector starts from."""

import numpy as np


def base_anchors(sizes, aspect_ratios):
    """Anchors around the origin, in whole pixels.

    Args:
        sizes: Square roots of the areas, in pixels.
        aspect_ratios: Heights divided by widths.

    Returns:
        float32 NumPy array, (len(aspect_ratios) · len(sizes), 4), `"xyxy"`, all sizes
        of the first ratio first. Half sizes are rounded to the next even number.

    Reference:
        Ren et al. 2015, section 3.1.1 (arXiv:1506.01497).
    """
    sizes = np.asarray(sizes, "float32")
    stretch = np.sqrt(np.asarray(aspect_ratios, "float32"))
    heights = (stretch[:, None] * sizes).reshape(-1)
    widths = ((1 / stretch)[:, None] * sizes).reshape(-1)
    return np.round(np.stack([-widths, -heights, widths, heights], axis=1) / 2)


def grid_anchors(anchors, map_size, stride):
    """Anchors around every location of a map.

    Args:
        anchors: (A, 4), around the origin.
        map_size: Rows and columns R, S of the map.
        stride: Pixels between adjacent rows and between adjacent columns, two numbers.

    Returns:
        float32 NumPy array, (R · S · A, 4), in the order of a map (R, S, A). The
        anchors of the first location are centered on pixel (0, 0), not on the center of
        the area that the location covers.
    """
    rows, columns = (
        np.arange(count, dtype="float32") * step
        for count, step in zip(map_size, stride, strict=True)
    )
    y, x = np.meshgrid(rows, columns, indexing="ij")
    shifts = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4)
    return (shifts + np.asarray(anchors, "float32")).reshape(-1, 4)
