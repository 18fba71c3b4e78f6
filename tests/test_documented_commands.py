"""Commands of `keras-attn` in the documentation are those that there are."""

import re
import shlex
from pathlib import Path
from pkgutil import resolve_name

import pytest
import typer
from typer.main import get_command

from keras_attn.cli.app import _FUNCTIONS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HELP = {"--help", "--version"}


def commands_of(page):
    """The words of each line of a shell that calls `keras-attn`, without comments."""
    text = page.read_text("utf-8")
    for block in re.findall(r"```shell\n(.*?)```", text, re.S):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\||\$\(", line):
                words = shlex.split(part, comments=True)
                if "keras-attn" in words:
                    yield words[words.index("keras-attn") + 1 :]


def options_of(name):
    """All spellings of the options of a command."""
    imported = typer.Typer(add_completion=False)
    imported.command(name)(resolve_name(_FUNCTIONS[name]))
    parameters = get_command(imported).params
    return {each for one in parameters for each in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_exist(page):
    for words in commands_of(page):
        name, *rest = words
        if name in HELP:
            continue
        assert name in _FUNCTIONS, words
        options = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert options - HELP <= options_of(name), words


def test_there_are_commands_to_check():
    assert sum(len([*commands_of(page)]) for page in PAGES) > 50
