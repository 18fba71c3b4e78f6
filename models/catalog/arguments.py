"""Checks of a builder's arguments, before a layer inside the model would fail on them.

A layer would name its own argument, such as `units`, which the caller of the builder
never passed. The requirements for a value follow from its annotation: the type, and the
range in `Annotated[type, range]`, one of those in `checks/argument_types.py`.
"""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from keras_attn.checks.argument_types import (
    Activation,
    AnyInteger,
    AtLeast,
    Fraction,
    MayBeEmpty,
)
from keras_attn.checks.arguments import (
    check_boolean,
    check_choice,
    check_fraction,
    check_pair,
    is_whole,
)
from keras_attn.kernels.gelu import get_activation

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# In words, integers of at least 0 and of at least 1.
_INTEGERS = {0: "a non-negative integer", 1: "a positive integer"}


def checks_arguments(
    build: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Checks the arguments of a builder that has no table of variants; a decorator.

    `with_sizes` does this for the other builders.
    """
    signature = inspect.signature(build)

    @functools.wraps(build)
    def build_checked(*args: _Arguments.args, **options: _Arguments.kwargs) -> Any:
        try:
            bound = signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"{build.__name__}() {error}") from None
        bound.arguments.update(checked_arguments(signature, bound.arguments))
        return build(*bound.args, **bound.kwargs)

    return build_checked


def checked_arguments(
    signature: inspect.Signature, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a builder, with NumPy integers converted to Python integers.

    Args:
        signature: The builder's, with annotations.
        values: Arguments by name; those that the signature lacks are not checked.

    Raises:
        ValueError: If no model can be built with a number, a list of numbers, an
            activation, a choice or a boolean; the message names the argument and its
            value.
    """
    parameters = signature.parameters
    return {
        name: _checked(name, value, parameters[name]) if name in parameters else value
        for name, value in values.items()
    }


def _checked(name, value, parameter):
    if value is None and parameter.default is None:
        return value
    return _of_type(name, value, parameter.annotation)


def _of_type(name, value, annotation):
    annotation, ranges = _without_ranges(annotation)
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        if value is None and len(kinds) < len(get_args(annotation)):
            return value
        if len(kinds) == 1:
            # `int | None` as `int`.
            return _of_type(name, value, kinds[0])
    if annotation is bool:
        return check_boolean(name, value)
    if annotation is int:
        return _whole(name, value, ranges)
    if annotation is float:
        return _number(name, value, ranges)
    if annotation == int | tuple[int, int]:
        return check_pair(name, value)
    if annotation == Activation:
        return _activation(name, value)
    if get_origin(annotation) is Literal:
        check_choice(name, value, get_args(annotation))
    if get_origin(annotation) is dict and not isinstance(value, Mapping):
        raise ValueError(f"`{name}` must be a dictionary. Received: {name}={value!r}")
    if get_origin(annotation) is Sequence:
        (element,) = get_args(annotation)
        kind, ranges_of_element = _without_ranges(element)
        if kind in (int, float):
            _check_length(name, value, ranges)
            return _numbers(name, value, kind, ranges_of_element)
    return value


def _without_ranges(annotation):
    """The type, and the ranges if it is `Annotated` with some."""
    if get_origin(annotation) is Annotated:
        kind, *ranges = get_args(annotation)
        return kind, ranges
    return annotation, []


def _minimum(ranges, default):
    return next((x.minimum for x in ranges if isinstance(x, AtLeast)), default)


def _check_length(name, value, ranges):
    may_be_empty = MayBeEmpty() in ranges
    if not isinstance(value, list | tuple) or not (value or may_be_empty):
        raise ValueError(
            f"`{name}` must be a list or tuple of at least one number. "
            f"Received: {name}={value!r}"
        )


def _numbers(name, value, kind, ranges):
    if kind is int:
        return tuple(_whole(name, element, ranges) for element in value)
    if not all(_is_number(element) and element > 0 for element in value):
        raise ValueError(
            f"`{name}` must be positive numbers. Received: {name}={value!r}"
        )
    return value


def _whole(name, value, ranges):
    if AnyInteger() in ranges:
        return value
    minimum = _minimum(ranges, 1)
    if not is_whole(value) or value < minimum:
        expected = _INTEGERS.get(minimum, f"an integer of at least {minimum}")
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={value!r}")
    return int(value)


def _number(name, value, ranges):
    if not _is_number(value):
        raise ValueError(
            f"`{name}` must be a finite number. Received: {name}={value!r}"
        )
    minimum = _minimum(ranges, -math.inf)
    if value < minimum:
        expected = "not be negative" if minimum == 0 else f"be at least {minimum}"
        raise ValueError(f"`{name}` must {expected}. Received: {name}={value!r}")
    return check_fraction(name, value) if Fraction() in ranges else value


def _activation(name, value):
    try:
        get_activation(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"`{name}` must be a function, or the name of an activation of Keras, or "
            "gelu_tanh or quick_gelu. "
            f"Received: {name}={value!r}"
        ) from None
    return value


def _is_number(value):
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_real and math.isfinite(value)
