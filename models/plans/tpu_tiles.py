"""Bytes of tensors on a TPU, which stores them in tiles of 8 x 128 numbers.

Legend: B batch, H height, W width, C channels.
"""

import math
from collections.abc import Sequence

_LANES, _SUBLANES = 128, 8


def tiled_bytes(shape: Sequence[int], width: int) -> int:
    """Bytes of a tensor whose last two axes are in the tiles of a TPU.

    Args:
        shape: Of the tensor.
        width: Bytes of an element.
    """
    *outer, rows, lanes = (1, 1, *shape)
    return (
        width
        * math.prod(outer)
        * min(
            _round_up(lane, _LANES) * _round_up(other, min(_SUBLANES, _power(other)))
            for lane, other in ((rows, lanes), (lanes, rows))
        )
    )


def map_bytes(shape: Sequence[int], width: int) -> int:
    """Bytes of a map (B, H, W, C), whose tiles have the channels and the rows.

    Args:
        shape: Of the map.
        width: Bytes of an element.
    """
    batch, height, columns, channels = shape
    return (
        width
        * height
        * columns
        * min(
            _round_up(lanes, _LANES) * _round_up(rows, min(_SUBLANES, _power(rows)))
            for lanes, rows in ((batch, channels), (channels, batch))
        )
    )


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
