"""Positions of tokens in padded sequences, and sinusoidal position encodings.

Legend: B batch, T length, D width.
"""

import math

from keras import ops

from keras_attn.kernels.one_operation import one_operation


@one_operation
def token_positions(padding_mask):
    """Positions 0, 1, 2, … of the real tokens, wherever the padding is.

    Args:
        padding_mask: (B, T), True = a real token.

    Returns:
        int32 (B, T). Padding has the position of the last real token before it, or 0.
    """
    count = ops.cumsum(ops.cast(padding_mask, "int32"), axis=1)
    return ops.maximum(ops.subtract(count, 1), 0)


def document_positions(padding_mask, document_ids):
    """Positions 0, 1, 2, … of the real tokens of each document of a packed row.

    Args:
        padding_mask: (B, T), True = a real token.
        document_ids: Which document a token is of, integers (B, T). The tokens of a
            document follow one another.

    Returns:
        int32 (B, T). Padding has the position of the last real token of its document
        before it, or 0.
    """
    real = ops.cast(padding_mask, "int32")
    before = ops.subtract(ops.cumsum(real, axis=1), real)
    changes = ops.not_equal(document_ids[:, 1:], document_ids[:, :-1])
    is_first = ops.concatenate([ops.ones_like(changes[:, :1]), changes], axis=1)
    # Where each document begins: beginnings are in order, so sorting puts document n's
    # at n.
    never = ops.add(ops.shape(real)[1], ops.zeros_like(before))
    begins = ops.sort(ops.where(is_first, before, never), axis=1)
    number = ops.cumsum(ops.cast(is_first, "int32"), axis=1) - 1
    begin = ops.take_along_axis(begins, number, axis=1)
    return ops.maximum(before + real - 1 - begin, 0)


def tokens_in_order(token_ids, padding_mask, length):
    """The real tokens of each row at its front, wherever the padding is.

    Args:
        token_ids: (B, T).
        padding_mask: (B, T), True = a real token.
        length: L, the length of the result. Further tokens are left out.

    Returns:
        The tokens, (B, L), whose values after the last real token are meaningless, and
        boolean (B, L), True = a real token.
    """
    real = ops.cast(padding_mask, "int32")
    # The number of a real token, from 1; 0 in padding.
    number = ops.multiply(ops.cumsum(real, axis=1), real)
    slots = ops.expand_dims(ops.arange(1, length + 1, dtype="int32"), (0, 2))
    is_source = ops.cast(ops.equal(ops.expand_dims(number, 1), slots), "int32")
    source = ops.cast(ops.argmax(is_source, axis=2), "int32")  # (B, L)
    is_real = ops.greater(ops.max(is_source, axis=2), 0)
    return ops.take_along_axis(token_ids, source, axis=1), is_real


@one_operation
def row_positions(padding_mask):
    """Positions 0, 1, 2, … counted from the first real token of each sequence.

    So left padding does not shift the tokens. Everything after the first real token is
    counted, including padding: a sequence padded on the right has the positions 0 …
    T-1.

    Args:
        padding_mask: (B, T), True = a real token.

    Returns:
        int32 (B, T). Padding before the first real token has position 0.
    """
    real = ops.cast(padding_mask, "int32")
    first = ops.cast(ops.argmax(real, axis=1, keepdims=True), "int32")
    # `arange` would need the length, which a symbolic tensor may not know.
    number = ops.cumsum(ops.ones_like(real), axis=1)
    return ops.maximum(ops.subtract(number, ops.add(first, 1)), 0)


def sinusoids(positions, dim, max_wavelength: float = 10_000):
    """Sines and cosines of geometrically spaced wavelengths (Vaswani 2017, 3.5).

    `PE(p, 2i) = sin(p / w^(2i/D))`, `PE(p, 2i+1) = cos(p / w^(2i/D))`.

    Args:
        positions: Integers or floats of any shape, (...).
        dim: D, even or odd.
        max_wavelength: w; wavelengths run from 2π to 2πw positions.

    Returns:
        (..., D) in float32.
    """
    angles = sinusoid_angles(positions, dim, max_wavelength)
    interleaved = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    *shape, pairs = ops.shape(angles)
    return ops.reshape(interleaved, (*shape, 2 * pairs))[..., :dim]


def sinusoid_angles(positions, dim, max_wavelength: float = 10_000):
    """Arguments of the sinusoids, `p / w^(2i/D)`.

    Args:
        positions: Integers or floats of any shape, (...).
        dim: D, even or odd.
        max_wavelength: w.

    Returns:
        (..., ⌈D/2⌉) in float32.
    """
    exponents = ops.arange((dim + 1) // 2, dtype="float32") * (2.0 / dim)
    frequencies = ops.exp(exponents * -math.log(max_wavelength))
    return ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies


def sinusoids_2d(height, width, dim, max_wavelength: float = 10_000):
    """Sinusoids of a grid: rows in the first half of the units, columns in the second.

    Args:
        height: Number of rows.
        width: Number of columns.
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
