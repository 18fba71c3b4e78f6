"""Masks of single objects: COCO's polygons and run lengths.

Legend: H and W pixels.
"""

from typing import Any, cast

import numpy as np

from keras_attn.extras import requires_extra

# pycocotools clips a polygon to its image, with memory for each pixel of its outline.
_MAX_OUTLINE = 10_000_000
_MAX_COORDINATE = 1_000_000
# The compressed form writes five bits of a number in each character, from this one on.
_FIRST_CHARACTER = 48


def box_around(mask: np.ndarray) -> list[int]:
    """Left, top, right, bottom of a mask that is not empty."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def decode_mask(segmentation, height: int, width: int) -> np.ndarray:
    """The mask of a COCO segmentation.

    Polygons are filled by pycocotools. Run lengths are decoded here: pycocotools
    (2.0.11) writes past the end of its memory for a damaged string, and returns
    uninitialized pixels for one that is too short.

    Args:
        segmentation: A list of polygons, `[[x0, y0, x1, y1, …], …]`, in pixels; or
            run lengths `{"size": [H, W], "counts": …}`, a list or COCO's string.
        height: H, of the image.
        width: W.

    Returns:
        bool (H, W).

    Raises:
        ValueError: If `segmentation` is neither.
        ImportError: If polygons are given without the extra `vision`.
    """
    if isinstance(segmentation, dict):
        return _decode_runs(segmentation, height, width)
    polygons = _check_polygons(segmentation, height, width)
    with requires_extra("vision", "Filling polygons"):
        from pycocotools import mask as coco_mask
    runs: Any = coco_mask.frPyObjects(cast(Any, polygons), height, width)
    return coco_mask.decode(coco_mask.merge(runs)).astype(bool)


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """The run lengths of a mask, in COCO's string.

    Args:
        mask: bool (H, W).

    Returns:
        `{"size": [H, W], "counts": …}`, as pycocotools writes it and `decode_mask`
        reads it.
    """
    height, width = mask.shape
    # Runs go down the columns, and the first one is of False.
    values = np.concatenate([[False], np.asarray(mask, bool).T.reshape(-1)])
    ends = np.flatnonzero(values[1:] != values[:-1])
    counts = np.diff(ends, prepend=0, append=height * width).tolist()
    text = []
    for index, count in enumerate(counts):
        value = count - (counts[index - 2] if index > 2 else 0)
        is_last = False
        while not is_last:
            bits, value = value & 31, value >> 5
            # Only the sign is left, which the highest of the five bits says.
            is_last = value == (-1 if bits & 16 else 0)
            text.append(chr(_FIRST_CHARACTER + bits + (0 if is_last else 32)))
    return {"size": [height, width], "counts": "".join(text)}


def check_segmentation(segmentation, height: int, width: int) -> None:
    """Raises what `decode_mask` would raise, without making the mask."""
    if isinstance(segmentation, dict):
        _check_runs(segmentation, height, width)
    else:
        _check_polygons(segmentation, height, width)


def _check_polygons(polygons, height: int, width: int) -> list[list[float]]:
    if not isinstance(polygons, list) or not polygons:
        raise ValueError(
            "`segmentation` must be a list of polygons, or an object with `size` and "
            f"`counts`. Received: {type(polygons).__name__}"
        )
    for polygon in polygons:
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(
                "A polygon must be a list of at least three pairs of x and y. "
                f"Received: {str(polygon)[:100]}"
            )
        if not all(_is_number(value) for value in polygon):
            raise ValueError(
                f"A polygon must consist of numbers. Received: {str(polygon)[:100]}"
            )
        points = np.array(polygon, np.float64).reshape(-1, 2)
        is_near = (np.abs(points) <= _MAX_COORDINATE).all()
        sides = np.abs(points - np.roll(points, 1, axis=0)).max(axis=1)
        if not is_near or sides.sum() > _MAX_OUTLINE:
            raise ValueError(
                f"A polygon must lie in or near its image of {height} x {width} "
                f"pixels. Received: points from {points.min(0).tolist()} to "
                f"{points.max(0).tolist()}"
            )
    return polygons


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_runs(segmentation: dict, height: int, width: int) -> list[int]:
    """The run lengths, which must fill the image."""
    size = segmentation.get("size")
    counts: Any = segmentation.get("counts")
    if size != [height, width]:
        raise ValueError(
            f"`size` of run lengths must be the size of the image, {[height, width]}. "
            f"Received: size={str(size)[:100]}"
        )
    if isinstance(counts, bytes):
        counts = counts.decode("latin-1")
    if isinstance(counts, str):
        counts = _parse_counts(counts)
    is_valid = isinstance(counts, list) and all(
        isinstance(count, int) and not isinstance(count, bool) and count >= 0
        for count in counts
    )
    if not is_valid or sum(counts) != height * width:
        raise ValueError(
            "`counts` must be lengths of runs that fill the image, "
            f"{height * width} pixels. Received: counts={str(counts)[:100]}"
        )
    return counts


def _parse_counts(text: str) -> list[int]:
    """Lengths from COCO's string: differences from the last but one, in base 32."""
    counts, value, shift = [], 0, 0
    for character in text:
        bits = ord(character) - _FIRST_CHARACTER
        if not 0 <= bits < 64 or shift > 30:
            raise ValueError(
                "`counts` must be COCO's string of run lengths. "
                f"Received: counts={text[:100]!r}"
            )
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            if bits & 16:  # A negative number in two's complement.
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value, shift = 0, 0
    if shift:
        raise ValueError(
            "`counts` must be a complete string of run lengths. Received: "
            f"counts={text[:100]!r}, whose last number is truncated"
        )
    return counts


def _decode_runs(segmentation: dict, height: int, width: int) -> np.ndarray:
    counts = _check_runs(segmentation, height, width)
    values = np.arange(len(counts)) % 2 == 1
    # Runs go down the columns.
    return np.repeat(values, counts).reshape(width, height).T
