"""The sizes of a named variant as the defaults of a builder's arguments."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from keras_attn.checks import check_choice

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def with_sizes(
    variants: Mapping[str, Mapping],
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorates a builder: a size that is None becomes that of the variant.

    ```python
    @with_sizes({"base": {"num_layers": 12}, "large": {"num_layers": 24}})
    def build(variant="base", *, num_layers=None):
        ...  # `num_layers` is a number here.
    ```

    Args:
        variants: Name of a variant to its sizes by argument. Every size must be a
            keyword argument of the builder with the default None.

    Returns:
        A decorator for a function whose first argument is `variant`; it keeps the
        signature. The function raises a `ValueError` for a variant that is not in the
        table, naming those that are.

    Raises:
        TypeError: where decorated, for a size that is no such argument.
    """

    def decorate(build):
        parameters = inspect.signature(build).parameters
        for name in {name for sizes in variants.values() for name in sizes}:
            if name not in parameters or parameters[name].default is not None:
                raise TypeError(
                    f"`{build.__name__}` needs an argument `{name}=None`: the table "
                    "of variants has a size of that name."
                )
        default = parameters["variant"].default

        @functools.wraps(build)
        def build_variant(variant=default, **options):
            check_choice("variant", variant, tuple(variants))
            given = {name: x for name, x in options.items() if x is not None}
            return build(variant, **{**options, **variants[variant], **given})

        return build_variant

    return decorate


def resolve(variants: dict[str, dict], variant: str, **overrides) -> dict:
    """The row of `variants` named `variant`, with every override that is not None.

    Raises:
        ValueError: for a variant that is not in the table, naming those that are.
    """
    check_choice("variant", variant, tuple(variants))
    chosen = {name: value for name, value in overrides.items() if value is not None}
    return {**variants[variant], **chosen}
