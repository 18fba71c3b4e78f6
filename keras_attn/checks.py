"""Checks at the door: what is wrong, what came, how to mend it."""


def check_rank(name: str, tensor, rank: int, meaning: str) -> None:
    """Raises unless `tensor` has `rank` axes.

    Args:
        name: The argument, for the message.
        tensor: Anything with a static `shape`.
        rank: The number of axes expected.
        meaning: What the axes are, as in `"(batch, length, width)"`.

    Raises:
        ValueError: naming the argument and its shape.
    """
    if len(tensor.shape) != rank:
        raise ValueError(
            f"`{name}` must have {rank} axes, {meaning}. "
            f"Received: {name}.shape={tuple(tensor.shape)}"
        )


def check_matches(name: str, shape, expected, meaning: str) -> None:
    """Raises where a known axis of `shape` can't broadcast to `expected`.

    Args:
        name: The argument, for the message.
        shape: Its static shape; None for an unknown axis.
        expected: The static shape it must broadcast to; None for an unknown axis.
        meaning: What the axes are.

    Raises:
        ValueError: naming the argument, its shape and the shape expected.
    """
    known = [
        (axis, want)
        for axis, want in zip(shape, expected, strict=True)
        if axis is not None and want is not None
    ]
    if any(axis not in (1, want) for axis, want in known):
        raise ValueError(
            f"`{name}` must have the shape {meaning} = {tuple(expected)}. "
            f"Received: {name}.shape={tuple(shape)}"
        )


def fits(shape, expected, empty_axes=()) -> bool:
    """Whether a shape is the one expected, and of no empty tensor.

    Args:
        shape: None for an unknown axis, or instead of the shape where even the number
            of axes is unknown.
        expected: None where any size but 0 is taken.
        empty_axes: Axes that may have the size 0, where any is taken.
    """
    if shape is None or len(shape) != len(expected):
        return False
    return all(
        size is None
        or (size == want if want is not None else size != 0 or axis in empty_axes)
        for axis, (size, want) in enumerate(zip(shape, expected, strict=True))
    )


def check_fits(name: str, shape, expected, empty_axes=()) -> None:
    """Raises unless an input has the shape that is declared, and is not empty.

    Args:
        name: The input, for the message.
        shape: As in `fits`.
        expected: As in `fits`.
        empty_axes: As in `fits`.

    Raises:
        ValueError: naming the input, its shape and the shape expected.
    """
    if not fits(shape, expected, empty_axes):
        raise ValueError(
            f"`{name}` must have the shape {tuple(expected)}, None being any size but "
            f"0. Received: shape={shape if shape is None else tuple(shape)}"
        )


def empty_axes_of(name: str) -> tuple[int, ...]:
    """Axes of an input that may be empty: a first segment has no memory."""
    return (1,) if name.startswith("memory_") else ()


def check_positive(name: str, value: int) -> int:
    """Raises unless `value` is a whole number above zero; returns it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"`{name}` must be a whole number above zero. Received: {name}={value!r}"
        )
    return value


def check_fraction(name: str, value: float) -> float:
    """Raises unless 0 <= `value` < 1; returns it."""
    if not 0.0 <= value < 1.0:
        raise ValueError(
            f"`{name}` is a probability in [0, 1). Received: {name}={value!r}"
        )
    return value


def check_choice(name: str, value, choices) -> None:
    """Raises unless `value` is one of `choices`."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(
            f"`{name}` must be one of {listed}. Received: {name}={value!r}"
        )


def check_pair(name: str, value) -> tuple[int, int]:
    """A number for rows and columns, or one for both, as a pair.

    Raises:
        ValueError: unless both are whole numbers above zero.
    """
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError(
            f"`{name}` must be a whole number, or one for the rows and one for the "
            f"columns. Received: {name}={value!r}"
        )
    return check_positive(name, pair[0]), check_positive(name, pair[1])
