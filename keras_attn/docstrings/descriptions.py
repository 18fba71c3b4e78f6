"""Descriptions of arguments that are written once, in the docstring of one function.

    @described_as(heads.classifier)
    def build_bert_classifier(encoder: Encoder = "base", *, num_classes: int): ...

The arguments themselves, with type and default, are always in the signature, where
editors and readers of the source look for them; only their descriptions are copied.
"""

import inspect
from collections.abc import Callable
from typing import TypeVar

from keras_attn.docstrings.arguments import descriptions, with_descriptions

_Documented = TypeVar("_Documented", bound=Callable)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def described_as(other: Callable) -> Callable[[_Documented], _Documented]:
    """Decorates a function or a layer class that has arguments of `other`.

    Args:
        other: A function or a layer class. Its descriptions are copied to the arguments
            of the same names that the decorated function or class does not describe
            itself; from a class, also the descriptions of the arguments of `call`.

    Returns:
        A decorator, which returns the same function or class.
    """
    # Unwrapped: what `with_sizes` adds holds only for the variants of `other`.
    docstring = inspect.getdoc(inspect.unwrap(other)) or ""
    lent = descriptions(docstring)

    def decorate(documented: _Documented) -> _Documented:
        _describe(documented, lent, inspect.signature(documented))
        call = getattr(documented, "call", None)
        if call is not None:
            words = descriptions(docstring, "Call arguments")
            _describe(documented, words, inspect.signature(call), "Call arguments")
        return documented

    return decorate


def _describe(documented, words, signature, section="Args"):
    """Adds the arguments of a signature that a docstring leaves out, in its order."""
    names = [x.name for x in signature.parameters.values() if x.kind not in _VARIADIC]
    added = {name: words[name] for name in names if name in words}
    docstring = inspect.getdoc(documented) or ""
    documented.__doc__ = with_descriptions(docstring, added, names, section)
