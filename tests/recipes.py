"""The Python blocks of a page of the documentation: its recipes."""

from pathlib import Path

from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_PAGES = Sybil([CodeBlockParser("python", PythonEvaluator())])


def recipes_of(page):
    """The text of each recipe of a page."""
    return [str(recipe.parsed) for recipe in _PAGES.parse(page)]


def run(page, heading="", until=None):
    """Runs a page's recipes, or those between headings, and returns their variables.

    An error names the page and the line in it.
    """
    document = _PAGES.parse(page)
    start = document.text.index(heading)
    end = document.text.index(until) if until else document.end
    for recipe in document:
        if start <= recipe.start < end:
            recipe.evaluate()
    return document.namespace
