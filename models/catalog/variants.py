"""Named variants: one table of sizes gives the defaults of a builder's arguments."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from keras_attn.checks.arguments import check_choice
from keras_attn.docstrings.arguments import with_sentence
from keras_attn.models.catalog.arguments import checked_arguments

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class _FromVariant:
    """Unlike None, no value that a caller could mean."""

    def __repr__(self):
        return "<the variant's>"

    def __reduce__(self):  # A copy is the same object.
        return "FROM_VARIANT"


# The default of an argument that `with_sizes` fills in. Typed as `Any` so that type
# checkers let the body of the builder use it as a number.
FROM_VARIANT: Any = _FromVariant()


def block_sizes(
    *, num_layers: int, hidden_dim: int, num_heads: int, **others: Any
) -> dict[str, Any]:
    """The sizes of a stack of Transformer blocks; `mlp_dim` is four times the width.

    Args:
        num_layers: Number of blocks.
        hidden_dim: Width of the blocks.
        num_heads: Heads of each attention.
        **others: Further sizes of the variant, passed through unchanged.

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


def block_options(
    activation: Any, layer_norm_epsilon: float, dropout: float, attention_dropout: float
) -> dict[str, Any]:
    """These arguments of a Transformer block by name, for all blocks of a model.

    Args:
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of a sub-layer's output.
        attention_dropout: Probability of dropping an attention probability.
    """
    return {
        "activation": activation,
        "layer_norm_epsilon": layer_norm_epsilon,
        "dropout": dropout,
        "attention_dropout": attention_dropout,
    }


def with_sizes(
    variants: Mapping[str, Mapping[str, Any]],
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorates a builder: an argument that is not given takes the variant's value.

    ```python
    @with_sizes({"base": {"num_layers": 12}, "large": {"num_layers": 24}})
    def build(variant="base", *, num_layers=FROM_VARIANT):
        ...  # `num_layers` is a number here.
    ```

    Args:
        variants: Sizes by the name of the variant, then by the name of the argument.
            Each size must be an argument of the builder with the default
            `FROM_VARIANT`; it is None in the variants that lack it.

    Returns:
        A decorator for a function whose first argument is `variant`. The decorated
        function has the same signature, and as attributes the names of its `variants`
        and the table of `sizes`. Its docstring says "Default: the variant's." for each
        size. None is a value like any other where the annotation of an argument has it.
        It raises a `ValueError` that lists the variants if the name is not one of them,
        or that names an argument with which no model can be built.

    Raises:
        TypeError: If a size is not such an argument; raised at decoration.
    """

    def decorate(build) -> Any:
        signature = inspect.signature(build)
        parameters = signature.parameters
        names = {name for sizes in variants.values() for name in sizes}
        for name in names:
            if name not in parameters or parameters[name].default is not FROM_VARIANT:
                raise TypeError(
                    f"`{build.__name__}` needs an argument `{name}=FROM_VARIANT`, "
                    "because the table of variants has a size of that name."
                )
        default = parameters["variant"].default

        @functools.wraps(build)
        def build_variant(variant=default, **options):
            check_choice("variant", variant, tuple(variants))
            sizes = {name: x for name, x in variants[variant].items() if x is not None}
            given = {name: x for name, x in options.items() if x is not FROM_VARIANT}
            arguments = checked_arguments(signature, sizes | given)
            return build(variant, **{**dict.fromkeys(names), **arguments})

        build_variant.__doc__ = with_sentence(
            inspect.getdoc(build) or "", names, "Default: the variant's."
        )
        vars(build_variant)["variants"] = tuple(variants)
        vars(build_variant)["sizes"] = variants
        return build_variant

    return decorate


def check_variant(name: str, value: str, build: Any) -> None:
    """Raises a `ValueError` unless `value` names a variant of a builder."""
    check_choice(name, value, build.variants)
