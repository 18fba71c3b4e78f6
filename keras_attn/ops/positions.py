"""Positions of tokens in padded rows, and sinusoidal position encodings.

Legend: B batch, T length, D width.
"""

import math

from keras import ops


def token_positions(padding_mask):
    """Numbers the real tokens of each row 0, 1, 2, …, wherever the padding is.

    Args:
        padding_mask: (B, T), True = a real token.

    Returns:
        int32 (B, T). Padding has the number of the real token before it, or 0.
    """
    count = ops.cumsum(ops.cast(padding_mask, "int32"), axis=1)
    return ops.maximum(ops.subtract(count, 1), 0)


def row_positions(padding_mask):
    """Numbers the positions of each row 0, 1, 2, … from its first real token on.

    So padding on the left moves no token. All that follows has a number of its own,
    padding too: a row padded on the right is numbered 0 … T-1.

    Args:
        padding_mask: (B, T), True = a real token.

    Returns:
        int32 (B, T). Padding before the first real token has 0.
    """
    real = ops.cast(padding_mask, "int32")
    first = ops.cast(ops.argmax(real, axis=1, keepdims=True), "int32")
    # Not `arange`: the length of a symbolic tensor may be unknown.
    number = ops.cumsum(ops.ones_like(real), axis=1)
    return ops.maximum(ops.subtract(number, ops.add(first, 1)), 0)


def sinusoids(positions, dim, max_wavelength=10_000):
    """Sines and cosines of geometrically spaced wavelengths (Vaswani 2017, 3.5).

    `PE(p, 2i) = sin(p / w^(2i/D))`, `PE(p, 2i+1) = cos(p / w^(2i/D))`.

    Args:
        positions: Integers or floats of any shape, (...).
        dim: D, even or odd.
        max_wavelength: w; wavelengths run from 2π to 2πw positions.

    Returns:
        (..., D) in float32.
    """
    pairs = (dim + 1) // 2
    exponents = ops.arange(pairs, dtype="float32") * (2.0 / dim)
    frequencies = ops.exp(exponents * -math.log(max_wavelength))
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies
    interleaved = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    shape = ops.shape(angles)
    return ops.reshape(interleaved, (*shape[:-1], 2 * pairs))[..., :dim]


def sinusoids_2d(height, width, dim, max_wavelength=10_000):
    """Sinusoids of a grid: the row in the first half, the column in the second.

    Args:
        height: Rows.
        width: Columns.
        dim: D, even.
        max_wavelength: As for `sinusoids`.

    Returns:
        (height, width, D) in float32.
    """
    half = dim // 2
    row = sinusoids(ops.arange(height, dtype="int32"), half, max_wavelength)
    column = sinusoids(ops.arange(width, dtype="int32"), half, max_wavelength)
    row = ops.broadcast_to(ops.expand_dims(row, 1), (height, width, half))
    column = ops.broadcast_to(ops.expand_dims(column, 0), (height, width, half))
    return ops.concatenate([row, column], axis=-1)
