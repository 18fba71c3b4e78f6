"""`keras-attn list`: the models, with their papers and sizes.

The cards: `CARDS` of each `models/<family>.py`, kept by `models/catalog/registry.py`.
"""

import dataclasses
import fnmatch
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from keras_attn.cli.options import Json, Panel
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import console, print_json, say

if TYPE_CHECKING:
    from keras_attn.models import ModelCard

_OPTIONS = Panel()


def list_models(
    pattern: Annotated[
        str,
        typer.Argument(
            help="Part of a name, family or task, or a shell pattern for names; quote "
            "it: 'rnnsearch_*'."
        ),
    ] = "*",
    names: Annotated[
        bool, _OPTIONS.option("Print the names only, one per line.", "--names")
    ] = False,
    json: Json = False,
) -> None:
    """List the models, with their papers and sizes.

    In a pipe or a file, a model is a line with tabs between its columns.

    Example: keras-attn list vit

    Example: keras-attn list 'rnnsearch_*'

    Example: keras-attn list bert --names
    """
    if names and json:
        raise ValueError("--names and --json exclude each other. Received: both")
    with importing_tensorflow():
        from keras_attn import models

    cards = [models.describe(name) for name in models.list_models()]
    found = [card for card in cards if _matches(card, pattern)]
    if not found:
        raise ValueError(
            f"no model matches {pattern!r} in its name, family or task; `keras-attn "
            "list` lists all models"
        )
    if json:
        print_json([dataclasses.asdict(card) for card in found])
        return
    if names:
        for card in found:
            say(card.name)
        return
    if not console.is_terminal:
        for card in found:
            # `say` turns tabs into spaces.
            typer.echo("\t".join((card.name, card.title, card.paper, _rounded(card))))
        return
    table = Table()
    table.add_column("Model", no_wrap=True)
    table.add_column("What it is")
    table.add_column("Paper")
    table.add_column("Parameters", justify="right")
    for card in found:
        table.add_row(card.name, Text(card.title), Text(card.paper), _rounded(card))
    console.print(table)
    say("`keras-attn describe MODEL` shows a model's card, and counts.", "dim")


def _matches(card: "ModelCard", pattern: str) -> bool:
    """Whether the pattern matches the name, or is part of name, family or task."""
    pattern = pattern.lower()
    return fnmatch.fnmatchcase(card.name, pattern) or any(
        pattern in text.lower() for text in (card.name, card.family, card.task)
    )


def _rounded(card: "ModelCard") -> str:
    """The published count, rounded as papers do: 110M, 1.3B."""
    if card.parameters is None:
        return "-"
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if card.parameters >= size:
            return f"{card.parameters / size:.3g}{unit}"
    return f"{card.parameters:,}"
