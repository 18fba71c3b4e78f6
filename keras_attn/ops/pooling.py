"""Max pooling that remembers where each maximum was, and its inverse.

Windows do not overlap: the stride equals the window. Overlapping windows could share a
maximum, and the value that unpooling puts there would depend on the order of execution.

Legend: B batch, H and W rows and columns of a map, h and w of the pooled map, C
channels, p × q locations of a window.
"""

from typing import Any, Literal, get_args

from keras import ops

from keras_attn.checks.arguments import (
    check_choice,
    check_pair,
    check_rank,
    check_shape,
)

Padding = Literal["valid", "same"]
PADDINGS = get_args(Padding)
AXES = "(batch, rows, columns, channels)"


def max_pool_with_indices(
    inputs, pool_size: Any = 2, padding: str = "valid"
) -> tuple[Any, Any]:
    """The maximum of each window, and its location within the window.

    Of several equal maxima the first counts, in row-major order, and only its location
    gets the gradient. PyTorch's `MaxPool2d(return_indices=True)` does the same, but its
    indices are locations of the map. A NaN counts as the maximum.

    Args:
        inputs: (B, H, W, C), of a float dtype; H and W may be unknown.
        pool_size: p and q, one number or two.
        padding: What happens to rows and columns that do not fill a window. `"valid"`
            leaves the last rows and columns out. `"same"` pads as Keras does, with half
            of the padding, rounded down, before the map; a padded location is never the
            maximum.

    Returns:
        The maxima (B, h, w, C), and int32 indices of the same shape: `r · q + s` for
        row r and column s of the window, both from 0.

    Raises:
        ValueError: If `inputs` does not have 4 axes, `padding` is unknown, or, with
            `"valid"`, the map is known to be smaller than a window.
    """
    window = check_pair("pool_size", pool_size)
    check_inputs(inputs.shape, window, padding)
    values, indices = _pool(ops.stop_gradient(inputs), window, padding)
    size = ops.shape(inputs)[1:3]

    # Differentiated operation by operation, it would need a map for each location.
    @ops.custom_gradient
    def maxima(inputs) -> Any:
        def gradient(upstream):
            return max_unpool(upstream, indices, size, window, padding)

        return values, gradient

    return maxima(inputs), indices


def max_unpool(
    inputs, indices, size, pool_size: Any = 2, padding: str = "valid"
) -> Any:
    """Puts each value back at the location of its maximum; the others are zero.

    Args:
        inputs: (B, h, w, C).
        indices: int32, of the same shape, from `max_pool_with_indices`. If an index is
            not a location of the window, or is a location of its padding, the value is
            dropped.
        size: H and W of the map that was pooled, known or not.
        pool_size: p and q of its windows.
        padding: As for `max_pool_with_indices`.

    Returns:
        (B, H, W, C).

    Raises:
        ValueError: If the shapes of `inputs` and `indices` are different, `padding` is
            unknown, or `size` does not pool to h × w, where both are known.
    """
    window = check_pair("pool_size", pool_size)
    check_choice("padding", padding, PADDINGS)
    check_sizes(inputs.shape, indices.shape, size, window, padding)
    rows, columns = window
    _, height, width, channels = ops.shape(inputs)
    # All with 4 axes, the maximum that LiteRT broadcasts.
    values = ops.reshape(inputs, (-1, 1, width, channels))  # (B * h, 1, w, C)
    places = ops.reshape(indices, (-1, 1, width, channels))
    values = ops.concatenate([values] * columns, axis=-1)  # (B * h, 1, w, q * C)
    places = ops.concatenate([places] * columns, axis=-1)
    index = ops.repeat(ops.arange(rows * columns, dtype="int32"), channels)
    index = ops.reshape(index, (1, rows, 1, columns * channels))
    zero = ops.zeros((), dtype=inputs.dtype)
    windows = ops.where(ops.equal(places, index), values, zero)
    restored = (-1, rows * height, columns * width, channels)
    return _fit(ops.reshape(windows, restored), size, window, padding)


def pooled_size(size, pool_size, padding):
    """Rows and columns of the pooled map; None where they are unknown.

    Args:
        size: H and W, or None.
        pool_size: p and q.
        padding: `"valid"` or `"same"`.
    """
    return tuple(
        None if n is None else n // by if padding == "valid" else -(-n // by)
        for n, by in zip(size, pool_size, strict=True)
    )


def check_inputs(inputs_shape, window, padding):
    """Raises unless a map has four axes and at least one window.

    Args:
        inputs_shape: Shape of the map, None for an unknown axis.
        window: p and q.
        padding: `"valid"` or `"same"`.
    """
    check_choice("padding", padding, PADDINGS)
    check_rank("inputs", inputs_shape, 4, AXES)
    if 0 in pooled_size(inputs_shape[1:3], window, padding):
        raise ValueError(
            f"`inputs` must have at least {window} rows and columns, one window. Use "
            'a larger map or padding="same". '
            f"Received: inputs.shape={tuple(inputs_shape)}"
        )


def check_sizes(inputs_shape, indices_shape, size, window, padding):
    """Raises for shapes that did not come from pooling a map of that size.

    Args:
        inputs_shape: Shape of the values, None for an unknown axis.
        indices_shape: Shape of their indices.
        size: H and W; None or a tensor where they are unknown.
        window: p and q.
        padding: `"valid"` or `"same"`.
    """
    check_rank("inputs", inputs_shape, 4, AXES)
    check_shape("indices", indices_shape, inputs_shape, AXES)
    known = [n if isinstance(n, int) else None for n in size]
    found = zip(pooled_size(known, window, padding), inputs_shape[1:3], strict=True)
    if any(None not in pair and pair[0] != pair[1] for pair in found):
        raise ValueError(
            f"`size` must be the size of the map before pooling: windows of {window} "
            f"with padding={padding!r} reduce it to "
            f"{pooled_size(known, window, padding)}. Received: size={tuple(known)}, "
            f"inputs.shape={tuple(inputs_shape)}"
        )


def _pool(inputs, window, padding):
    rows, columns = window
    _, height, width, channels = ops.shape(inputs)
    starts = (0, 0)
    if padding == "same":
        inputs, starts = _padded(inputs, window)
    height, width = (
        n // by if padding == "valid" else (n + by - 1) // by
        for n, by in ((height, rows), (width, columns))
    )
    if padding == "valid":
        inputs = _crop(inputs, (0, 0), (height * rows, width * columns))
    # Slices without strides are several times as fast on TensorFlow.
    windows = ops.reshape(inputs, (-1, rows, width, columns * channels))
    shape = (-1, height, width, channels)
    best = index = None
    for row in range(rows):
        for column in range(columns):
            start = column * channels
            value = windows[:, row, :, start : start + channels]  # (B * h, w, C)
            if best is None or index is None:
                best, index = value, ops.zeros_like(value, dtype="int32")
                continue
            # False for a value of NaN, unless the best value is NaN already.
            kept = ops.logical_or(ops.less_equal(value, best), ops.isnan(best))
            best = ops.where(kept, best, value)
            index = ops.where(kept, index, row * columns + column)
    best, index = ops.reshape(best, shape), ops.reshape(index, shape)
    if padding == "same" and max(window) > 2:
        index = _real(index, columns, starts)
    return best, index


def _real(index, columns, starts):
    """The location of each maximum, not counting padding before the map.

    Padding repeats the first row, so it has the same maxima there, and comes first.
    """
    places = [ops.floor_divide(index, columns), ops.mod(index, columns)]
    for axis, start in enumerate(starts):
        shape = (-1, 1, 1) if axis == 0 else (-1, 1)
        window = ops.reshape(ops.arange(ops.shape(index)[1 + axis]), shape)
        real = ops.maximum(places[axis], start)
        places[axis] = ops.where(ops.equal(window, 0), real, places[axis])
    return places[0] * columns + places[1]


def _padding(size, by):
    """Rows before and after a map of `size` rows, as Keras pads."""
    total = (by - size % by) % by
    return total // 2, total - total // 2


def _padded(inputs, window):
    """The map with its first and last rows and columns repeated until windows fill it.

    The padding is repeated rows, not -∞, which would ruin the ranges of a quantized
    map. After the map a repeated location never comes before its original.

    Returns:
        The padded map, and the numbers of rows above it and columns before it.
    """
    starts = []
    for axis, by in enumerate(window, start=1):
        size = ops.shape(inputs)[axis]
        before, after = _padding(size, by)
        starts.append(before)
        known = isinstance(size, int)
        counts = (before, after) if known else ((by - 1) // 2, by // 2)
        ends = (slice(0, 1), slice(-1, None))
        first, last = (
            [inputs[(slice(None),) * axis + (end,)]] * count
            for end, count in zip(ends, counts, strict=True)
        )
        if first or last:
            inputs = ops.concatenate([*first, inputs, *last], axis=axis)
        if not known:
            start = counts[0] - before
            rows = slice(start, start + before + size + after)
            inputs = inputs[(slice(None),) * axis + (rows,)]
    return inputs, starts


def _fit(restored, size, window, padding):
    """Windows at the size of the map: padding removed, left-out rows added back."""
    known = all(isinstance(n, int) for n in size)
    if known and tuple(restored.shape[1:3]) == tuple(size):
        return restored
    if padding == "same":
        starts = [_padding(n, by)[0] for n, by in zip(size, window, strict=True)]
        return _crop(restored, starts, size)
    # Fewer rows were left out than a window has.
    margins = [(0, by - 1) for by in window]
    return _crop(ops.pad(restored, [(0, 0), *margins, (0, 0)]), (0, 0), size)


def _crop(inputs, starts, size):
    (top, left), (height, width) = starts, size
    return inputs[:, top : top + height, left : left + width]
