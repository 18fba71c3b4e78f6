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


def parameters_of(name):
    """The options of a command by each of their spellings, and its arguments."""
    imported = typer.Typer(add_completion=False)
    imported.command(name)(resolve_name(_FUNCTIONS[name]))
    options, arguments = {}, []
    for each in get_command(imported).params:
        if each.param_type_name == "argument":
            arguments.append(each)
        options |= dict.fromkeys((*each.opts, *each.secondary_opts), each)
    return options, arguments


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_have_options_and_arguments_that_exist(page):
    for words in commands_of(page):
        name, *rest = words
        if name in HELP or HELP & {*rest}:
            continue
        assert name in _FUNCTIONS, words
        options, arguments = parameters_of(name)
        given, count, left = set(), 0, iter(rest)
        for word in left:
            if not word.startswith("-"):
                count += 1
                continue
            option, equals, _ = word.partition("=")
            assert option in options, words
            given.add(options[option].name)
            if not equals and not getattr(options[option], "is_flag", False):
                next(left)
        least = sum(each.required for each in arguments)
        takes_many = any(each.nargs == -1 for each in arguments)
        assert least <= count and (takes_many or count <= len(arguments)), words
        required = {x.name for x in options.values() if x.required} - {
            each.name for each in arguments
        }
        assert required <= given, words


def test_there_are_commands_to_check():
    assert sum(len([*commands_of(page)]) for page in PAGES) > 50
