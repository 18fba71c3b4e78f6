"""Configurations that follow from the constructor, for classes that Keras saves."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def argument_names(constructor: Callable) -> list[str]:
    """Names of the arguments of an `__init__`, without `self` and `**kwargs`."""
    _, *parameters = inspect.signature(constructor).parameters.values()
    return [each.name for each in parameters if each.kind not in _VARIADIC]


class Configured:
    """A class with one attribute per constructor argument, of the same name.

    For classes whose arguments JSON can hold; layers have `layers.base.BaseLayer`. It
    comes before the class of Keras among the bases.
    """

    if TYPE_CHECKING:
        # Of the class of Keras, which has no types.
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        names = argument_names(type(self).__init__)
        return {name: getattr(self, name) for name in names}
