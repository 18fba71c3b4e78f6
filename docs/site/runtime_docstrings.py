"""What `help()` shows replaces what Griffe reads in the source, for the API pages.

Decorators complete docstrings when a module is imported (`@described_as`,
`@with_sizes`), and so does Griffe's own inspector not see them: it unwraps. This
extension imports each module and takes docstrings and parameters from `inspect`.
"""

import importlib
import inspect
import re
from typing import Any

import griffe

_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


class RuntimeDocstrings(griffe.Extension):
    """Replaces docstrings and parameters by those of the imported objects."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called by Griffe when it has read a package.

        Args:
            pkg: The package.
        """
        self._complete(pkg)

    def _complete(self, module: griffe.Module) -> None:
        imported = importlib.import_module(module.path)
        for name, member in module.members.items():
            if member.is_alias:
                continue
            found = vars(imported).get(name)
            if isinstance(member, griffe.Module):
                self._complete(member)
            elif isinstance(member, griffe.Function) and callable(found):
                _replace_docstring(member, found)
                _replace_parameters(member, found)
            elif isinstance(member, griffe.Class) and inspect.isclass(found):
                _replace_docstring(member, found)
                _add_constructor(member, found)
                for method in member.members.values():
                    there = vars(found).get(method.name)
                    if isinstance(method, griffe.Function) and inspect.isfunction(
                        there
                    ):
                        _replace_docstring(method, there)
                        _replace_parameters(method, there)


def _replace_docstring(member: griffe.Object, documented: Any) -> None:
    text = inspect.getdoc(documented)
    if text and member.docstring:
        # A second list of arguments, which Griffe knows by another name.
        member.docstring.value = text.replace(
            "\nCall arguments:\n", "\nOther Parameters: Call arguments:\n"
        )


def _add_constructor(member: griffe.Class, found: type) -> None:
    """Gives a class what its source lacks: a named tuple, one that inherits it."""
    if "__init__" in member.members or issubclass(found, BaseException):
        return
    try:
        inspect.signature(found)
    except ValueError:  # Of a class of C.
        return
    made = griffe.Function("__init__")
    member.set_member("__init__", made)
    _replace_parameters(made, found)


def _replace_parameters(member: griffe.Function, called: Any) -> None:
    member.parameters = griffe.Parameters(
        *(
            griffe.Parameter(
                each.name,
                kind=_KINDS[each.kind],
                annotation=_spell(each.annotation),
                default=None if each.default is each.empty else repr(each.default),
            )
            for each in inspect.signature(called).parameters.values()
        )
    )


def _spell(annotation: Any) -> str | None:
    if annotation is inspect.Parameter.empty:
        return None
    return re.sub(
        r"\b(typing|collections\.abc)\.", "", inspect.formatannotation(annotation)
    )
