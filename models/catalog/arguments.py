"""Checks of a builder's arguments, before a layer inside the model would fail on them.

A layer would name its own argument, such as `units`, which the caller of the builder
never passed. The requirements for a value follow from its annotation and its name.
"""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from keras_attn.checks.argument_types import Activation
from keras_attn.checks.arguments import (
    check_boolean,
    check_choice,
    check_fraction,
    check_pair,
    check_positive,
    is_whole,
)
from keras_attn.kernels.gelu import activation_of

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# Integers that may be 0, and lists of indices.
_FROM_ZERO = {"num_frozen", "num_pyramid_layers", "attention_stage"}
_FROM_ZERO |= {"skips", "dilated_stages", "end_token_id"}
_FROM_ZERO |= {"text_co_layers", "region_co_layers"}
# No size: any integer.
_ANY = {"seed"}
# Lists that may be empty: in some models they are by default.
_MAY_BE_EMPTY = {"fully_connected_dims", "stem_dims", "decoder_dims"}
_MAY_BE_EMPTY |= {"skips", "dilated_stages"}
# Fractions of units or blocks that are dropped.
_PROBABILITIES = ("dropout", "stochastic_depth")


def checks_arguments(
    build: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Checks the arguments of a builder that has no table of variants; a decorator.

    `@with_sizes` does this for the other builders.
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
    return {
        name: _checked(name, value, signature.parameters.get(name))
        for name, value in values.items()
    }


def _checked(name, value, parameter):
    if parameter is None or name in _ANY:
        return value
    if value is None and parameter.default is None:
        return value
    annotation = parameter.annotation
    if get_origin(annotation) in (Union, UnionType):
        if value is None and type(None) in get_args(annotation):
            return value
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        # `int | None` as `int`.
        annotation = kinds[0] if len(kinds) == 1 else annotation
    if annotation is bool:
        return check_boolean(name, value)
    if annotation is int:
        return _whole(name, value)
    if annotation is float:
        return _number(name, value)
    if annotation == int | tuple[int, int]:
        return check_pair(name, value)
    if annotation == Activation:
        return _activation(name, value)
    if get_origin(annotation) is Literal:
        check_choice(name, value, get_args(annotation))
    if get_origin(annotation) is dict and not isinstance(value, Mapping):
        raise ValueError(f"`{name}` must be a dictionary. Received: {name}={value!r}")
    if get_origin(annotation) is Sequence:
        (kind,) = get_args(annotation)
        if kind in (int, float):
            return _numbers(name, value, kind)
    return value


def _numbers(name, value, kind):
    if not isinstance(value, list | tuple) or not (value or name in _MAY_BE_EMPTY):
        raise ValueError(
            f"`{name}` must be a list or tuple of at least one number. "
            f"Received: {name}={value!r}"
        )
    if kind is int:
        return tuple(_whole(name, element) for element in value)
    if not all(_is_number(element) and element > 0 for element in value):
        raise ValueError(
            f"`{name}` must be positive numbers. Received: {name}={value!r}"
        )
    return value


def _whole(name, value):
    if name not in _FROM_ZERO:
        return check_positive(name, value)
    if not is_whole(value) or value < 0:
        raise ValueError(
            f"`{name}` must be a non-negative integer. Received: {name}={value!r}"
        )
    return int(value)


def _number(name, value):
    if not _is_number(value):
        raise ValueError(
            f"`{name}` must be a finite number. Received: {name}={value!r}"
        )
    # Added to a variance; torchvision's detectors have 0.
    if name.endswith("epsilon") and value < 0:
        raise ValueError(f"`{name}` must not be negative. Received: {name}={value!r}")
    return check_fraction(name, value) if name.endswith(_PROBABILITIES) else value


def _activation(name, value):
    try:
        activation_of(value)
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
