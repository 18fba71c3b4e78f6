"""Argument checks, with messages that say what is expected and what was received."""

import difflib
import math
import numbers
import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np


def check_rank(name: str, tensor, rank: int, meaning: str) -> None:
    """Raises unless `tensor` has `rank` axes.

    Args:
        name: Name of the argument, for the message.
        tensor: Anything with a static `shape`, or the shape itself.
        rank: The expected number of axes.
        meaning: Names of the axes, as in `"(batch, length, width)"`.

    Raises:
        ValueError: If its number of axes is different. The message names the argument
            and its shape.
    """
    shape = getattr(tensor, "shape", tensor)
    check_shape(name, shape, (None,) * rank, meaning)


def check_shape(name: str, shape, expected, meaning: str) -> None:
    """Raises unless `shape` is the expected one, as far as both are known.

    Args:
        name: Name of the argument, for the message.
        shape: Its static shape.
        expected: The size of each axis; None for any size.
        meaning: Names of the axes.

    Raises:
        ValueError: If the number of axes or a known size is different. The message
            names the argument, its shape and the expected shape.
    """
    received = f"Received: {name}.shape={tuple(shape)}"
    if len(shape) != len(expected):
        raise ValueError(
            f"`{name}` must have {len(expected)} axes, {meaning}. {received}"
        )
    for pair in zip(shape, expected, strict=True):
        # While JAX traces, an unknown size is a symbol.
        if all(isinstance(size, int) for size in pair) and pair[0] != pair[1]:
            raise ValueError(
                f"`{name}` must have the shape {meaning} = {tuple(expected)}. "
                f"{received}"
            )


def check_matches(name: str, shape, expected, meaning: str) -> None:
    """Raises unless `shape` can broadcast to `expected`, as far as both are known.

    Args:
        name: Name of the argument, for the message.
        shape: Its static shape; None for an unknown axis.
        expected: The static shape it must broadcast to; None for an unknown axis.
        meaning: Names of the axes.

    Raises:
        ValueError: If it cannot broadcast. The message names the argument, its shape
            and the expected shape.
    """
    known = [
        (size, expected_size)
        for size, expected_size in zip(shape, expected, strict=True)
        if size is not None and expected_size is not None
    ]
    if any(size not in (1, expected_size) for size, expected_size in known):
        raise ValueError(
            f"`{name}` must have the shape {meaning} = {tuple(expected)}. "
            f"Received: {name}.shape={tuple(shape)}"
        )


def fits(shape, expected, empty_axes=()) -> bool:
    """Whether a shape matches the expected one, without empty axes.

    Args:
        shape: None for an unknown axis; None instead of a shape of unknown rank.
        expected: None for an axis that may have any size but 0.
        empty_axes: Indices of the axes that may have any size, including 0.
    """
    if shape is None or len(shape) != len(expected):
        return False
    return all(
        size is None
        or (size == known if known is not None else size != 0 or axis in empty_axes)
        for axis, (size, known) in enumerate(zip(shape, expected, strict=True))
    )


def check_fits(name: str, shape, expected, empty_axes=()) -> None:
    """Raises unless an input has its declared shape and is not empty.

    Args:
        name: Name of the input, for the message.
        shape: As in `fits`.
        expected: As in `fits`.
        empty_axes: As in `fits`.

    Raises:
        ValueError: If it does not match. The message names the input, its shape and the
            expected shape.
    """
    if not fits(shape, expected, empty_axes):
        raise ValueError(
            f"`{name}` must have the shape {tuple(expected)}, where None is any size "
            f"but 0. Received: shape={shape if shape is None else tuple(shape)}"
        )


def get_empty_axes(name: str) -> tuple[int, ...]:
    """Axes of an input that may be empty: the first segment has no memory."""
    return (1,) if name.startswith("memory_") else ()


def check_positive(name: str, value: Any) -> int:
    """Returns `value`; raises a `ValueError` unless it is a positive integer."""
    if not is_whole(value) or value < 1:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}"
        )
    return int(value)


def check_not_negative(name: str, value: Any) -> int:
    """Returns `value`; raises a `ValueError` unless it is an integer of at least 0."""
    if not is_whole(value) or value < 0:
        raise ValueError(
            f"`{name}` must be a non-negative integer. Received: {name}={value!r}"
        )
    return int(value)


def check_several(name: str, value: Any) -> int:
    """Returns `value`; raises a `ValueError` unless it is an integer of at least 2."""
    if check_positive(name, value) < 2:
        raise ValueError(f"`{name}` must be at least 2. Received: {name}={value}")
    return int(value)


def check_positive_or_none(name: str, value: Any) -> int | None:
    """Returns `value`; raises unless it is None or a positive integer."""
    return None if value is None else check_positive(name, value)


def is_whole(value) -> bool:
    """Whether a value is an integer, of Python or NumPy, and not a boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_token_id(name: str, value: Any) -> Any:
    """Returns `value`; raises unless it is None or an integer of at least 0."""
    if value is not None and (not is_whole(value) or value < 0):
        raise ValueError(
            f"`{name}` must be a token's id, an integer of at least 0, or None. "
            f"Received: {name}={value!r}"
        )
    return value


def check_boolean(name: str, value: Any) -> bool:
    """Returns `value`; raises a `ValueError` unless it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return bool(value)


def check_fraction(name: str, value: float) -> float:
    """Returns `value`; raises a `ValueError` unless 0 <= `value` < 1."""
    if not isinstance(value, numbers.Real) or not 0.0 <= value < 1.0:
        raise ValueError(
            f"`{name}` must be a probability in [0, 1). Received: {name}={value!r}"
        )
    return value


def check_above_zero(name: str, value: float | None) -> float:
    """Returns `value`; raises a `ValueError` unless it is finite and above 0."""
    if not isinstance(value, numbers.Real) or not 0.0 < value < math.inf:
        raise ValueError(
            f"`{name}` must be a number above 0. Received: {name}={value!r}"
        )
    return float(value)


def check_at_least_zero(name: str, value: float) -> float:
    """Returns `value`; raises a `ValueError` unless it is finite and at least 0."""
    if not isinstance(value, numbers.Real) or not 0.0 <= value < math.inf:
        raise ValueError(
            f"`{name}` must be a number of at least 0. Received: {name}={value!r}"
        )
    return float(value)


def check_share(name: str, value: float) -> float:
    """Returns `value`; raises a `ValueError` unless 0 <= `value` <= 1."""
    if not isinstance(value, numbers.Real) or not 0.0 <= value <= 1.0:
        raise ValueError(
            f"`{name}` must be a number from 0 to 1. Received: {name}={value!r}"
        )
    return value


def check_same_length(**sequences) -> int:
    """Returns the common length of sequences, which are given by name."""
    lengths = {name: len(sequence) for name, sequence in sequences.items()}
    if len(set(lengths.values())) != 1:
        names = " and ".join(f"`{name}`" for name in lengths)
        received = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise ValueError(f"{names} must have the same length. Received: {received}")
    return next(iter(lengths.values()))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question "did you mean a or b? ", or nothing if no known name is near.

    Args:
        name: A name that is not known.
        known: Those that are. If some begin with `name`, in any case and with hyphens
            for underscores, they are meant; or else one with which it begins, or
            similar ones.
    """
    names = list(known)
    wanted = str(name).lower().replace("-", "_").replace(".", "_")
    longer = [each for each in names if wanted and each.lower().startswith(wanted)]
    shorter = [each for each in names if wanted.startswith(each.lower() + "_")]
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    found = sorted(longer, key=len) or list(dict.fromkeys([*shorter, *near]))
    found = found[:3]
    return f"did you mean {' or '.join(found)}? " if found else ""


def check_choice(name: str, value, choices) -> None:
    """Raises a `ValueError` unless `value` is one of `choices`."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(
            f"`{name}` must be one of {listed}. Received: {name}={value!r}"
        )


def check_pair(name: str, value) -> tuple[int, int]:
    """Returns a pair, for rows and columns; an integer stands for both.

    Args:
        name: Name of the argument, for the message.
        value: An integer, or an ordered collection of two: a tuple, a list, an array, a
            `TensorShape`, or a tensor whose values are known.

    Raises:
        ValueError: If `value` is not a positive integer or a pair of positive integers.
    """
    pair = as_pair(value)
    if pair is None:
        raise ValueError(
            f"`{name}` must be a positive integer or a pair of them, (rows, columns). "
            f"Received: {name}={value!r}"
        )
    return check_positive(name, pair[0]), check_positive(name, pair[1])


def as_pair(value) -> tuple[Any, Any] | None:
    """The two elements of a pair, or an integer twice; None for anything else.

    Integers of any kind, such as a `tf.compat.v1.Dimension`, become Python integers.
    """
    whole = _whole(value)
    if is_whole(whole):
        return whole, whole
    # These may have two elements too, but are unordered or text.
    if isinstance(value, str | bytes | Mapping | Set):
        return None
    try:
        first, second = value
    # TypeError: it has no elements, or no known ones; ValueError: not two.
    except (TypeError, ValueError):
        return None
    return _whole(first), _whole(second)


def _whole(value) -> Any:
    """A Python integer for any kind of integer; anything else unchanged."""
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except (TypeError, ValueError):
        return value
