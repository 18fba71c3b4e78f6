"""Named variants: one table of sizes gives the defaults of a builder's arguments."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from keras_attn.checks import check_choice

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# The default of an argument that is filled in by `@with_sizes`. It is None; typed as
# `Any`, so that type checkers let the body of the builder use it as a number.
FROM_VARIANT: Any = None


def block_sizes(
    *, num_layers: int, hidden_dim: int, num_heads: int, **others: Any
) -> dict[str, Any]:
    """The sizes of a stack of Transformer blocks; `mlp_dim` is four times the width.

    Args:
        num_layers: Number of blocks.
        hidden_dim: Width of the blocks.
        num_heads: Heads of each attention.
        **others: Further sizes of the variant, as they are.

    Returns:
        The sizes of one variant, by the names of the builder's arguments.
    """
    return {
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * hidden_dim,
        **others,
    }


def with_sizes(
    variants: Mapping[str, Mapping[str, Any]],
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorates a builder: an argument that is None takes the variant's value.

    ```python
    @with_sizes({"base": {"num_layers": 12}, "large": {"num_layers": 24}})
    def build(variant="base", *, num_layers=FROM_VARIANT):
        ...  # `num_layers` is a number here.
    ```

    Args:
        variants: Sizes by the name of the variant, then by the name of the argument.
            Each size must be an argument of the builder with the default
            `FROM_VARIANT`, which is None.

    Returns:
        A decorator for a function whose first argument is `variant`. The decorated
        function has the same signature, and raises a `ValueError` that lists the
        variants for a name that is not among them.

    Raises:
        TypeError: at decoration, if a size is not such an argument.
    """

    def decorate(build) -> Any:
        parameters = inspect.signature(build).parameters
        for name in {name for sizes in variants.values() for name in sizes}:
            if name not in parameters or parameters[name].default is not None:
                raise TypeError(
                    f"`{build.__name__}` needs an argument `{name}=FROM_VARIANT`: the "
                    "table of variants has a size of that name."
                )
        default = parameters["variant"].default

        @functools.wraps(build)
        def build_variant(variant=default, **options):
            check_choice("variant", variant, tuple(variants))
            given = {name: x for name, x in options.items() if x is not None}
            return build(variant, **{**options, **variants[variant], **given})

        return build_variant

    return decorate


def passes_options_to(
    function: Callable,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorates a builder that passes its `**options` to a function shared by several.

    ```python
    @passes_options_to(text_encoder)
    def build_xlm(variant="base", *, name="xlm", **blocks: Unpack[EncoderOptions]): ...
    ```

    The annotation, a `TypedDict` of the same options, is what type checkers and editors
    read; the decorator is what `help` and a call read.

    Args:
        function: The shared function. Those of its keyword-only arguments that the
            builder does not name replace `**options` in the builder's signature, so
            that `help` and `inspect.signature` show them, and no others are taken.

    Returns:
        A decorator. The decorated function raises a `TypeError` for an argument that
        is not in its signature.
    """

    def decorate(build) -> Any:
        signature = inspect.signature(build)
        own = dict(signature.parameters)
        options = {
            name: parameter
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY and name not in own
        }
        named = [x for x in own.values() if x.kind is not x.VAR_KEYWORD]
        complete = signature.replace(parameters=[*named, *options.values()])

        @functools.wraps(build)
        def build_checked(*args, **arguments):
            try:
                complete.bind(*args, **arguments)
            except TypeError as error:
                raise TypeError(f"{build.__name__}() {error}") from None
            return build(*args, **arguments)

        vars(build_checked)["__signature__"] = complete
        return build_checked

    return decorate
