"""`keras-attn list`: the models, with their papers, sizes and scores.

The cards: `CARDS` of each `models/<family>.py`, kept by `models/catalog/registry.py`.
"""

import dataclasses
import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from keras_attn.cli.options import Json, Panel
from keras_attn.cli.published import rounded, size_cells, spell_source
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import console, naming_options, print_json, say

if TYPE_CHECKING:
    from keras_attn.models import ModelCard

_OPTIONS = Panel()
_TEXTS = ("Model", "What it is", "Paper", "Setting", "Source", "Weights")
_SIZES = ("Layers", "Width", "Heads", "Parameters", "Texts", "Seen", "Hardware", "Time")


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
    sizes: Annotated[
        bool,
        _OPTIONS.option(
            "Print layers, width, heads, parameters, and what is published about the "
            "training: size of the texts, tokens or images seen, hardware, time.",
            "--sizes",
        ),
    ] = False,
    score: Annotated[
        str | None,
        _OPTIONS.option(
            "Print the published scores of this measure, such as 'ImageNet top-1', "
            "with parameters, setting and source.",
            metavar="MEASURE",
        ),
    ] = None,
    weights: Annotated[
        bool,
        _OPTIONS.option(
            "Print where published weights are, with their source: names for "
            "MODEL and `models.load_checkpoint`. None of them was fetched by us.",
            "--weights",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        _OPTIONS.option(
            "With --sizes or --score, also draw parameters by year, or scores against "
            "parameters, into this .png, .pdf or .svg file.",
            metavar="FILE",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the models, with their papers, sizes and scores.

    In a pipe or a file, a model is a line with tabs between its columns.

    Example: keras-attn list vit

    Example: keras-attn list 'rnnsearch_*'

    Example: keras-attn list gpt --sizes --output sizes.png

    Example: keras-attn list "image classification" --score "ImageNet top-1"

    Example: keras-attn list bert --weights

    Example: keras-attn list bert --names
    """
    kinds = {"--names": names, "--json": json, "--sizes": sizes, "--score": score}
    kinds["--weights"] = weights
    kinds = [name for name, given in kinds.items() if given not in (False, None)]
    if len(kinds) > 1:
        raise ValueError(
            f"{kinds[0]} and {kinds[1]} exclude each other. Received: both"
        )
    if output is not None and not (sizes or score is not None):
        raise ValueError(
            f"--output draws what --sizes or --score prints. Received: {output} alone"
        )
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
    hint = "`keras-attn describe MODEL` shows a model's card, and counts."
    measure = None if score is None else _measure(found, score)
    if measure is not None:
        columns = ("Model", "Parameters", measure, "Setting", "Source")
        rows = _scores(found, measure)
        hint = (
            "Tables and sections are of the paper that `keras-attn list MODEL` names."
        )
    elif weights:
        columns, rows = ("Model", "Weights", "Source"), _weights(found)
        hint = (
            "Not fetched by us: licenses and terms are their owners'. `torchvision:` "
            "has to be saved first, see docs/checkpoints.md."
        )
    elif sizes:
        columns = ("Model", *_SIZES)
        found.sort(key=lambda card: (card.year, card.parameters or 0))
        rows = [[card.name, *size_cells(card)] for card in found]
        hint = "As published; - is not. `keras-attn describe MODEL` names the sources."
    else:
        columns = ("Model", "What it is", "Paper", "Parameters")
        rows = [
            [card.name, card.title, card.paper, rounded(card.parameters)]
            for card in found
        ]
    if output is not None:
        _draw(found, measure, output)
    _print_table(columns, rows, hint)
    if output is not None:
        say(f"Wrote {output}")


def _measure(cards: "list[ModelCard]", score: str) -> str:
    """The measure as the cards spell it."""
    known = {each.measure for card in cards for each in card.scores}
    for measure in known:
        if measure.lower() == score.lower():
            return measure
    raise ValueError(
        f"--score must be a measure of these models: {', '.join(sorted(known))}. "
        f"Received: {score!r}"
    )


def _scores(cards: "list[ModelCard]", measure: str) -> list[list[str]]:
    """The rows of the table of scores."""
    return [
        [
            card.name,
            rounded(card.parameters),
            f"{score.value:g}",
            score.setting,
            score.source or card.paper,
        ]
        for card in cards
        for score in card.scores
        if score.measure == measure
    ]


def _weights(cards: "list[ModelCard]") -> list[list[str]]:
    """The rows of the table of published weights."""
    rows = [
        [card.name, card.weights.place, spell_source(card.weights)]
        for card in cards
        if card.weights is not None
    ]
    if not rows:
        raise ValueError(
            "--weights must be of models whose weights are published in a layout that "
            f"`load_checkpoint` reads. Received: {', '.join(x.name for x in cards)}"
        )
    return rows


def _print_table(columns: tuple[str, ...], rows: list[list[str]], hint: str) -> None:
    """A table on a terminal, else lines with tabs."""
    if not console.is_terminal:
        for row in rows:
            # `say` turns tabs into spaces.
            typer.echo("\t".join(row))
        return
    table = Table()
    for column in columns:
        justify = "left" if column in _TEXTS else "right"
        table.add_column(column, justify=justify, no_wrap=column == "Model")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    say(hint, "dim")


def _draw(cards: "list[ModelCard]", measure: str | None, output: Path) -> None:
    from keras_attn import viz

    names = {"cards": "the models", "measure": "--score", "path": "--output"}
    with naming_options(**names):
        if measure is None:
            figure = viz.plot_model_sizes(cards)
        else:
            figure = viz.plot_model_scores(cards, measure)
        viz.save_figure(figure, output)


def _matches(card: "ModelCard", pattern: str) -> bool:
    """Whether the pattern matches the name, or is part of name, family or task."""
    pattern = pattern.lower()
    return fnmatch.fnmatchcase(card.name, pattern) or any(
        pattern in text.lower() for text in (card.name, card.family, card.task)
    )
