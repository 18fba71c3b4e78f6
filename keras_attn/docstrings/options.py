"""Options that are declared once: name, type, default and description.

    class BlockOptions(TypedDict, total=False):
        num_heads: Annotated[int, Option(8, "Attention heads per block.")]
        mlp_dim: Annotated[int, Option(2048, "Width of the feed-forward networks.")]

    @takes_options
    def build(*, name: str = "model", **options: Unpack[BlockOptions]):
        return stack_of_blocks(name, **options)

    def stack_of_blocks(name, *, num_heads, mlp_dim): ...

Type checkers read the `TypedDict`. `@takes_options` puts its options into the signature
and the docstring of `build`, and their defaults into each call, so the function that
uses them names each one, without a default.

`@described_as(build)` is for a function that has arguments of the same meaning in its
own signature; it copies their descriptions.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args

from keras_attn.docstrings.arguments import descriptions, with_descriptions

_Documented = TypeVar("_Documented", bound=Callable)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclasses.dataclass(frozen=True)
class Option:
    """The default and description of an option; its type is `Annotated` with it.

    Args:
        default: The value of the option if it is not passed.
        description: Its description in docstrings.
    """

    default: Any
    description: str


def takes_options(documented: _Documented) -> _Documented:
    """Decorates a function or a layer class with `**options: Unpack[…]`.

    `…` is a `TypedDict`. Its fields that are `Annotated` with an `Option` replace
    `**options` in `inspect.signature` and `help`, and a call fills in their defaults.
    The other fields, which have a type only, are Keras' own arguments of a layer; for
    them `**options` stays in the signature.

    Args:
        documented: A function, which then raises a `TypeError` for an argument that is
            not in its signature, or a class whose `__init__` takes the options.

    Returns:
        The decorated function, or the same class.
    """
    target: Any = documented
    function = target.__init__ if isinstance(target, type) else target
    signature, options = _complete_signature(function)
    _describe(target, _words(options), signature)
    # This copies the docstring, so the docstring is completed first.
    completed = _with_defaults(function, signature, options)
    if not isinstance(target, type):
        return completed
    target.__init__ = completed
    return documented


def described_as(other: Callable) -> Callable[[_Documented], _Documented]:
    """Decorates a function or a layer class that has arguments of `other`.

    Args:
        other: A function, a layer class or a `TypedDict` of options. Its descriptions
            are copied to the arguments of the same names that the decorated function or
            class does not describe itself; from a class, also the descriptions of the
            arguments of `call`.

    Returns:
        A decorator, which returns the same function or class.
    """
    # Unwrapped: what `@with_sizes` adds holds only for the variants of `other`.
    docstring = inspect.getdoc(inspect.unwrap(other)) or ""
    lent = descriptions(docstring) | _words(_options(other))

    def decorate(documented: _Documented) -> _Documented:
        _describe(documented, lent, inspect.signature(documented))
        call = getattr(documented, "call", None)
        if call is not None:
            words = descriptions(docstring, "Call arguments")
            _describe(documented, words, inspect.signature(call), "Call arguments")
        return documented

    return decorate


def _options(fields_of) -> dict[str, tuple[Any, Option]]:
    """Type and `Option` of the fields of a `TypedDict` that have one, by name."""
    options = {}
    for name, annotation in getattr(fields_of, "__annotations__", {}).items():
        kind, *given = get_args(annotation) or (annotation,)
        if given and isinstance(given[0], Option):
            options[name] = kind, given[0]
    return options


def _words(options):
    return {name: given.description for name, (_, given) in options.items()}


def _complete_signature(function) -> tuple[inspect.Signature, dict[str, Any]]:
    """The signature with the options in place of `**options`; the options by name."""
    signature = inspect.signature(function)
    *named, variadic = signature.parameters.values()
    fields_of = get_args(variadic.annotation)[0]
    options = _options(fields_of)
    keywords = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=x.default, annotation=kind
        )
        for name, (kind, x) in options.items()
    ]
    variadic = variadic.replace(annotation=inspect.Parameter.empty)
    others = [variadic] if len(options) < len(fields_of.__annotations__) else []
    return signature.replace(parameters=[*named, *keywords, *others]), options


def _with_defaults(function, signature, options) -> Any:
    """The function with this signature, called with the defaults of the options."""
    defaults = {name: given.default for name, (_, given) in options.items()}

    @functools.wraps(function)
    def with_defaults(*args, **arguments):
        try:
            signature.bind(*args, **arguments)
        except TypeError as error:
            raise TypeError(f"{function.__qualname__}() {error}") from None
        return function(*args, **{**defaults, **arguments})

    vars(with_defaults)["__signature__"] = signature
    return with_defaults


def _describe(documented, words, signature, section="Args"):
    """Adds the arguments of a signature that a docstring leaves out, in its order."""
    names = [x.name for x in signature.parameters.values() if x.kind not in _VARIADIC]
    added = {name: words[name] for name in names if name in words}
    docstring = inspect.getdoc(documented) or ""
    documented.__doc__ = with_descriptions(docstring, added, names, section)
