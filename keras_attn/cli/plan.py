"""The `plan` command: what it takes, and what it prints."""

from collections.abc import Callable
from types import ModuleType
from typing import Annotated

import typer

_Name = Annotated[
    str, typer.Argument(help="A name of `keras-attn list`.", show_default=False)
]
_Batch = Annotated[
    int, typer.Option(min=1, help="Rows of a step, of all devices together.")
]
_Sequence = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens a row. Default: as many as the model has positions, or 128.",
        show_default=False,
    ),
]
_Dtype = Annotated[
    str,
    typer.Option(help="Keras' precision policy, such as mixed_bfloat16."),
]
_Optimizer = Annotated[
    str, typer.Option(help="That trains it: adamw, adam, adafactor, sgd, lion, ….")
]
_Devices = Annotated[
    int,
    typer.Option(min=1, help="Share weights, optimizer and rows of the batch evenly."),
]


def command(load: Callable[[str], ModuleType]) -> Callable[..., None]:
    """The command; `load` imports what brings TensorFlow when it runs."""

    def plan(
        name: _Name,
        batch: _Batch = 1,
        sequence: _Sequence = None,
        dtype: _Dtype = "float32",
        optimizer: _Optimizer = "adamw",
        devices: _Devices = 1,
    ) -> None:
        """Say what a model would cost, without making it: FLOPs and memory.

        Everything is counted in its graph; a model of a hundred layers takes a
        minute.

        Example: keras-attn plan gpt3_175b --devices 64 --batch 64 --dtype
        mixed_bfloat16
        """
        load("cli.commands").plan(
            name,
            batch=batch,
            sequence=sequence,
            dtype=dtype,
            optimizer=optimizer,
            devices=devices,
        )

    return plan
