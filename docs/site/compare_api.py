"""Compares the built API pages with what `inspect` sees.

    python docs/site/compare_api.py

Every public name has a page; every argument of its signature stands there, and every
description of its docstring is in the list of arguments, word by word. Prints what is
missing, and fails if something is.
"""

import html
import inspect
import re
import sys
from pathlib import Path

from api_pages import PublicName, public_names
from links import ROOT

from keras_attn.docstrings.arguments import descriptions

SITE = ROOT / "build" / "docs" / "site"
_SECTIONS = ("Args", "Call arguments", "Attributes")
_ITEM = re.compile(
    r"<b><code>(?:<span[^>]*>)?\W*(\w+)(?:</span>)?</code></b>.*?"
    r'<div class="doc-md-description">(.*?)</div>\s*</li>',
    re.S,
)
_SIGNATURE = re.compile(r'<div class="doc-signature highlight">(.*?)</div>', re.S)


def compare(site: Path) -> tuple[int, int, list[str]]:
    """Counts arguments and descriptions, and lists those that are missing.

    Args:
        site: The folder of the built site.
    """
    arguments = described = 0
    missing = []
    for each in public_names():
        file = site / each.page.removesuffix(".md") / "index.html"
        if not file.is_file():
            missing.append(f"{each.room}.{each.name}: no page")
            continue
        text = file.read_text("utf-8")
        named, known = _arguments(each), _descriptions(each)
        arguments, described = arguments + len(named), described + len(known)
        wrong = _missing(text, named, known)
        missing += [f"{each.room}.{each.name}: {x}" for x in wrong]
    return arguments, described, missing


def _arguments(each: PublicName) -> list[str]:
    """The names of the arguments; none of what is called with Keras' alone."""
    if not callable(each.value):
        return []
    try:
        return [*inspect.signature(each.value).parameters]
    except ValueError:  # An exception, whose arguments are Python's.
        return []


def _descriptions(each: PublicName) -> list[tuple[str, str]]:
    text = inspect.getdoc(each.value) or "" if callable(each.value) else ""
    return [pair for x in _SECTIONS for pair in descriptions(text, x).items()]


def _missing(text: str, named: list[str], known: list[tuple[str, str]]) -> list[str]:
    signature = _SIGNATURE.search(text)
    shown = set(re.findall(r"\w+", _plain(signature[1]))) if signature else set()
    items: dict[str, list[str]] = {}
    for name, description in _ITEM.findall(text):
        items.setdefault(name, []).append(_letters(_plain(description)))
    wrong = [f"argument {name}" for name in named if name not in shown]
    for name, description in known:
        # Of a link its text is shown.
        words = _letters(re.sub(r"\]\([^)\s]*\)", "", description))
        if not any(words in item for item in items.get(name, ())):
            wrong.append(f"description of {name}")
    return wrong


def _plain(text: str) -> str:
    """HTML as text."""
    return html.unescape(re.sub(r"<[^>]+>", "", text))


def _letters(text: str) -> str:
    """Letters and digits alone, since Markdown takes other signs for itself."""
    return re.sub(r"[\W_]+", "", text)


def main() -> None:
    """Prints the counts and what is missing."""
    arguments, described, missing = compare(SITE)
    for line in missing:
        sys.stdout.write(line + "\n")
    sys.stdout.write(
        f"{arguments} arguments, {described} descriptions, {len(missing)} missing\n"
    )
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
