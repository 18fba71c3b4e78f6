"""Overlapping tiles of a large image: where they are, and what they found, joined.

Legend: H and W pixels of the image, h and w of a tile, C classes, N boxes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

# A box that ends this near to a cut, as a share of the side of the tile, is cut there.
_NEAR_CUT = 0.02


class Tile(NamedTuple):
    """A rectangle of pixels; `bottom` and `right` are the first ones outside."""

    top: int
    left: int
    bottom: int
    right: int


def cut_into_tiles(
    image_size: tuple[int, int], tile_size: tuple[int, int], overlap: float
) -> list[Tile]:
    """Tiles of one size that cover an image, row by row.

    They are spread evenly, the first one at the first pixel and the last one at the
    last, so neighbors share at least the overlap. Where the image is smaller than a
    tile, so are its tiles.

    Args:
        image_size: H and W.
        tile_size: h and w.
        overlap: Smallest share of a tile's side that neighbors have in common, in
            [0, 1).

    Raises:
        ValueError: If `overlap` is not in [0, 1).
    """
    if not 0 <= overlap < 1:
        raise ValueError(
            "`overlap` must be a share of a tile's side, at least 0 and below 1. "
            f"Received: overlap={overlap!r}"
        )
    rows, columns = (
        _starts(length, side, overlap)
        for length, side in zip(image_size, tile_size, strict=True)
    )
    height, width = map(min, image_size, tile_size)
    return [Tile(y, x, y + height, x + width) for y in rows for x in columns]


def _starts(length: int, side: int, overlap: float) -> list[int]:
    """The first pixel of each tile along one axis."""
    room = length - side
    if room <= 0:
        return [0]
    step = max(1, math.floor(side * (1 - overlap)))
    gaps = -(-room // step)
    return [number * room // gaps for number in range(gaps + 1)]


def average_tiles(
    tiles: Sequence[Tile], scores: Iterable[np.ndarray]
) -> Iterator[np.ndarray]:
    """The scores of an image: the mean over the tiles that a pixel is in.

    Args:
        tiles: From `cut_into_tiles`.
        scores: (h, w, C) of each tile.

    Yields:
        float32 (rows, W, C), the next rows of the image as soon as no other tile has
        them. So the memory holds one row of tiles.
    """
    width = max(tile.right for tile in tiles)
    total = counts = np.zeros((0, width, 1), np.float32)
    first = 0  # The row of the image that `total` begins with.
    pairs = zip(tiles, scores, strict=True)
    for (top, bottom), row in groupby(
        pairs, lambda pair: (pair[0].top, pair[0].bottom)
    ):
        if top > first:
            done = top - first
            yield total[:done] / counts[:done]
            total, counts, first = total[done:], counts[done:], top
        # Rows that no tile had before.
        new = bottom - first - len(total)
        counts = np.pad(counts, ((0, new), (0, 0), (0, 0)))
        total = np.pad(total, ((0, new), (0, 0), (0, 0)))
        for tile, found in row:
            if total.shape[-1] != found.shape[-1]:
                total = np.repeat(total, found.shape[-1], axis=-1)  # Nothing but 0.
            total[:, tile.left : tile.right] += found
            counts[:, tile.left : tile.right] += 1
    yield total / counts


def join_boxes(
    tiles: Sequence[Tile],
    boxes: np.ndarray,
    scores: np.ndarray,
    classes: np.ndarray,
    numbers: np.ndarray,
    *,
    threshold: float = 0.5,
) -> np.ndarray:
    """Which boxes of all tiles are objects of the image, each once.

    Non-maximum suppression among the boxes of one class, of different tiles. A box that
    ends where its tile was cut may be a part of an object: it comes after all others,
    also with a higher score, and is left out if they cover the share `threshold` of its
    own area, because its intersection over union with the whole object may be small. An
    object that is in no tile as a whole, as it is larger than what tiles share, may be
    found in parts.

    Args:
        tiles: From `cut_into_tiles`.
        boxes: (N, 4), `"xyxy"` in pixels of the image.
        scores: (N,).
        classes: (N,).
        numbers: (N,), the index of the tile of each box.
        threshold: Intersection over union above which two boxes are one object.

    Returns:
        The indices of the boxes to keep, by descending score.
    """
    if not len(boxes):
        return np.zeros(0, np.int64)
    boxes = np.asarray(boxes, np.float64)
    places = np.array(tiles, np.float64)
    is_cut = _are_cut(boxes, places[numbers], places[:, 2:].max(0))
    areas = _areas(boxes)
    rest = np.lexsort((-scores, is_cut))
    kept = []
    while len(rest):
        best, rest = rest[0], rest[1:]
        kept.append(best)
        corners = (
            np.maximum(boxes[rest, :2], boxes[best, :2]),
            np.minimum(boxes[rest, 2:], boxes[best, 2:]),
        )
        shared = _areas(np.concatenate(corners, axis=1))
        whole = areas[rest] + areas[best] - shared
        whole = np.where(is_cut[rest], areas[rest], whole)
        is_same = shared > threshold * whole
        is_same &= (classes[rest] == classes[best]) & (numbers[rest] != numbers[best])
        rest = rest[~is_same]
    found = np.array(kept)
    return found[np.argsort(-scores[found], kind="stable")]


def _areas(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1)


def _are_cut(boxes: np.ndarray, places: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Whether each box ends at a side of its tile that is inside of the image.

    Args:
        boxes: (N, 4).
        places: (N, 4), the tile of each box: top, left, bottom, right.
        end: H and W.
    """
    starts, ends = places[:, [1, 0]], places[:, [3, 2]]  # As in boxes, x first.
    near = _NEAR_CUT * (ends - starts)
    before = (starts > 0) & (boxes[:, :2] <= starts + near)
    after = (ends < end[::-1]) & (boxes[:, 2:] >= ends - near)
    return np.any(before | after, axis=1)
