"""A page for each public name, and one for each package, as `help()` has them.

mkdocstrings renders what follows `:::`; `runtime_docstrings.py` gives it the docstrings
and signatures that `inspect` sees.
"""

import importlib
import inspect
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import keras_attn


@dataclass(frozen=True)
class PublicName:
    """A public name.

    Attributes:
        room: The package that it is imported from, such as `"viz.callbacks"`.
        name: The name there.
        value: What it names.
        page: The page that shows it, from the root of the site.
        path: Where it is defined, as mkdocstrings takes it: by the package's path
            Griffe would document a module for `decoding.generate`, whose file has the
            name of the function.
    """

    room: str
    name: str
    value: Any
    page: str
    path: str

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, as one line; "" for a constant."""
        if not callable(self.value):
            return ""
        first, _, _ = (inspect.getdoc(self.value) or "").partition("\n\n")
        return first.replace("\n", " ")


def rooms() -> dict[str, ModuleType]:
    """The packages and modules that users import names from, by name."""
    names = [*keras_attn.__all__, "viz.callbacks"]
    return {name: importlib.import_module(f"keras_attn.{name}") for name in names}


def public_names() -> list[PublicName]:
    """Every public name; what two packages have is two names with one page."""
    found, pages = [], {}
    for room, name, value in _exported():
        own = _defined_in(value) == f"keras_attn.{room}"
        key = id(value) if callable(value) else f"{room}.{name}"
        if own or key not in pages:
            pages[key] = f"api/{room}/{_file_name(room, name)}.md"
    for room, name, value in _exported():
        key = id(value) if callable(value) else f"{room}.{name}"
        path = f"keras_attn.{room}.{name}"
        if callable(value) and _defined_in(value).startswith("keras_attn"):
            path = f"{_module_of(value)}.{value.__qualname__}"
        found.append(PublicName(room, name, value, pages[key], path))
    return found


def _exported() -> Iterator[tuple[str, str, Any]]:
    for room, module in rooms().items():
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if not inspect.ismodule(value):
                yield room, name, value


def _module_of(value: Any) -> str:
    return getattr(value, "__module__", "") or ""


def _defined_in(value: Any) -> str:
    """The first two parts of the module that defines a value, `keras_attn.layers`."""
    return ".".join(_module_of(value).split(".")[:2])


def _file_name(room: str, name: str) -> str:
    """The name; `Plan`, beside `plan`, needs another where case does not count."""
    others = [x.lower() for x in rooms()[room].__all__ if x != name]
    return f"{name}_class" if name[0].isupper() and name.lower() in others else name


def pages() -> dict[str, str]:
    """The text of each page by its path: names, packages, all packages."""
    names = public_names()
    written = {}
    for each in names:
        if each.page.startswith(f"api/{each.room}/"):
            written[each.page] = _page(each, [x.name for x in names])
    for room, module in rooms().items():
        inside = [each for each in names if each.room == room]
        rows = [
            f"| [`{each.name}`]({_from_room(each)}) | {_cell(each.summary)} |"
            for each in inside
        ]
        text = inspect.getdoc(module) or ""
        written[f"api/{room}/index.md"] = "\n".join(
            [
                _front_matter(f"keras_attn.{room}", text.partition("\n")[0]),
                f"# keras_attn.{room}",
                "",
                text.partition("\n\n")[0],
                "",
                f"| {len(inside)} names | |",
                "|---|---|",
                *rows,
                "",
            ]
        )
    written["api/index.md"] = _index(names)
    return written


def _from_room(each: PublicName) -> str:
    """Its page, seen from the page of its package."""
    return posixpath.relpath(each.page, f"api/{each.room}")


def _index(names: list[PublicName]) -> str:
    lines = [
        "# API",
        "",
        "Every public name has a page, with its signature and docstring as `help()` "
        "shows them.",
        "",
        "| package | names | |",
        "|---|---|---|",
    ]
    for room, module in rooms().items():
        count = sum(each.room == room for each in names)
        first = (inspect.getdoc(module) or "").partition("\n")[0]
        lines.append(f"| [`{room}`]({room}/index.md) | {count} | {_cell(first)} |")
    return "\n".join([*lines, ""])


def _page(each: PublicName, others: list[str]) -> str:
    title = f"keras_attn.{each.room}.{each.name}"
    # Before pages that mention it, and before names that it begins.
    begins = any(x != each.name and x.startswith(each.name) for x in others)
    boost = f"search: {{boost: {16 if begins else 4}}}\n"
    head = _front_matter(each.name, each.summary, boost)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", each.name).lower()
    package = f"\n*{words}*, in [`keras_attn.{each.room}`](index.md)"
    if not callable(each.value):
        text = repr(each.value)
        lines = [f"# {title}", "", f"```python\n{each.name} = {text}\n```", package]
        return "\n".join([head, *lines, ""])
    options = f"    options:\n      heading: {title}\n      toc_label: {each.name}"
    return "\n".join([head, f"::: {each.path}", options, package, ""])


def _front_matter(title: str, description: str, more: str = "") -> str:
    quoted = description.replace("\\", "").replace('"', "'")[:150]
    return f'---\ntitle: {title}\ndescription: "{quoted}"\n{more}---\n'


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    found = public_names()
    sys.stdout.write(f"{len(found)} names, {len({x.page for x in found})} pages\n")
