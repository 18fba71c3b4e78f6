"""`keras-attn describe`: the card of a model."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import console


def describe(
    name: Annotated[str, typer.Argument(help="A name of `keras-attn list`.")],
) -> None:
    """Show a model's card: paper, inputs, outputs, size, how to build it.

    Example: keras-attn describe rnnsearch_50
    """
    with importing_tensorflow():
        from keras_attn import models

    card = models.describe(name)
    with console.status("Counting parameters"):
        counted = models.count_parameters(name)
    published = "the paper gives no count"
    if card.parameters is not None:
        published = f"{card.parameters:,} parameters"
    rows = [
        ("paper", card.paper),
        ("task", card.task),
        ("inputs", _lines(card.inputs)),
        ("outputs", _lines(card.outputs)),
        ("published", published),
        ("counted", f"{counted:,} parameters"),
        ("notes", card.notes),
        (
            "in Python",
            f"from keras_attn import models\nmodel = models.create({name!r})",
        ),
    ]
    table = Table(show_header=False, title=Text(f"{name}: {card.title}"))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, text in rows:
        if text:
            table.add_row(label, Text(text))
    console.print(table)


def _lines(tensors: dict[str, str]) -> str:
    """One line per input or output: its name and what it holds."""
    return "\n".join(f"{name}: {text}" for name, text in tensors.items())
