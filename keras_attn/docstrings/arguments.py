"""Google-style docstrings: read descriptions of arguments, and add missing ones.

Args:
    name: Name of the model.
    height, width: Pixels.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping

# A section of arguments comes before the first of these sections that is present.
_LATER_SECTIONS = (
    "Call arguments",
    "Returns",
    "Raises",
    "Masking",
    "Example",
    "Reference",
)
_ENTRY = re.compile(r"    (\*{0,2}\w+(?:, \w+)*):(?: |$)")
_WIDTH = 80


def descriptions(docstring: str, section: str = "Args") -> dict[str, str]:
    """The description of each argument in a section, by its name.

    Args:
        docstring: Without indentation, as `inspect.getdoc` returns it.
        section: `"Args"` or `"Call arguments"`.
    """
    _, entries, _ = _split(docstring, section)
    return {
        name.lstrip("*"): _text(entry)
        for names, entry in entries.items()
        for name in names.split(", ")
    }


def with_descriptions(
    docstring: str,
    added: Mapping[str, str],
    order: Iterable[str],
    section: str = "Args",
) -> str:
    """A docstring with descriptions of more arguments added.

    Args:
        docstring: Without indentation, as `inspect.getdoc` returns it.
        added: Descriptions by the name of the argument. Existing descriptions are kept.
        order: The names of all arguments, in the order of their descriptions.
        section: `"Args"` or `"Call arguments"`.
    """
    before, entries, after = _split(docstring, section)
    known = {name for names in entries for name in names.split(", ")}
    new = {
        name: _entry(name, text) for name, text in added.items() if name not in known
    }
    if not new:
        return docstring
    ranks = {name: rank for rank, name in enumerate(order)}

    def rank(entry):
        first = entry[0].split(", ")[0].lstrip("*")
        return ranks.get(first, len(ranks))

    entries = dict(sorted({**entries, **new}.items(), key=rank))
    return _joined(before, section, entries, after)


def with_sentence(docstring: str, names: Iterable[str], sentence: str) -> str:
    """A docstring in which the descriptions of some arguments end in a sentence.

    Args:
        docstring: Without indentation, as `inspect.getdoc` returns it.
        names: The arguments; any without a description are left out.
        sentence: The sentence.
    """
    before, entries, after = _split(docstring, "Args")
    for name in set(names) & set(entries):
        entries[name] = _entry(name, f"{_text(entries[name])} {sentence}")
    return _joined(before, "Args", entries, after) if entries else docstring


def _split(docstring, section):
    """The lines before a section, its entries by their names, the lines after it."""
    lines = docstring.splitlines()
    if f"{section}:" not in lines:
        later = [i for i, line in enumerate(lines) if line[:-1] in _LATER_SECTIONS]
        start = later[0] if later else len(lines)
        return lines[:start], {}, lines[start:]
    start = lines.index(f"{section}:")
    entries, name, end = {}, "", start + 1
    while end < len(lines) and (not lines[end] or lines[end].startswith(" ")):
        match = _ENTRY.match(lines[end])
        name = match[1] if match else name
        entries[name] = [*entries.get(name, ()), lines[end]]
        end += 1
    entries = {name: "\n".join(each).rstrip() for name, each in entries.items()}
    return lines[:start], entries, lines[end:]


def _joined(before, section, entries, after):
    parts = ("\n".join(before), "\n".join([f"{section}:", *entries.values()]))
    parts = (*parts, "\n".join(after))
    return "\n\n".join(part.strip("\n") for part in parts if part)


def _text(entry):
    """The description in an entry, as one line."""
    return " ".join(entry.split(":", 1)[1].split())


def _entry(name, text):
    return textwrap.fill(
        f"{name}: {text}",
        _WIDTH,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )
