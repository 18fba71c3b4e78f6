"""`keras-attn plan`: FLOPs and memory of a model, counted without allocating it.

Opening a model: `cli/opened_model.py`; counting: `models/parts/planning.py`.
"""

from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from rich.text import Text

from keras_attn.cli.opened_model import build_model, find_model, is_checkpoint
from keras_attn.cli.options import ModelOrName, Panel, Task
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import console, say, working

if TYPE_CHECKING:
    from keras_attn.models import Plan

_OPTIONS = Panel()


def plan(
    model: ModelOrName,
    task: Task = None,
    batch: Annotated[
        int, _OPTIONS.option("Rows per step, over all devices.", min=1)
    ] = 1,
    sequence: Annotated[
        int | None,
        _OPTIONS.option(
            "Tokens per row. Default: as many as the model has positions, or 128.",
            min=1,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        _OPTIONS.option(
            "Keras' precision policy, such as mixed_bfloat16. Default: float32, or the "
            "policies that Keras saved with the model."
        ),
    ] = None,
    optimizer: Annotated[
        str, _OPTIONS.option("Optimizer: adamw, adam, adafactor, sgd, lion, ….")
    ] = "adamw",
    devices: Annotated[
        int,
        _OPTIONS.option(
            "Number of devices that share weights, optimizer and batch.", min=1
        ),
    ] = 1,
) -> None:
    """Estimate the cost of a model without building it: FLOPs and memory.

    The costs are counted in its graph; a model of a hundred layers takes a minute.

    Example: keras-attn plan gpt3_175b --devices 64 --batch 64 --dtype
    mixed_bfloat16

    Example: keras-attn plan bert-base-uncased --task classifier --batch 32
    """
    with importing_tensorflow():
        from keras_attn import models
        from keras_attn.models.parts.planning import plan_model

    path = find_model(model, task)
    if path is None or is_checkpoint(path):
        dtype = "float32" if dtype is None else dtype
    elif dtype is not None:
        raise ValueError(
            "--dtype is for names and checkpoint folders; a model saved by Keras has "
            f"its own policies. Received: {model!r}"
        )
    with working(f"Counting {model}"):
        counted = plan_model(
            lambda: models.create(model) if path is None else build_model(path, task),
            model if path is None else path.resolve().name,
            batch=batch,
            sequence=sequence,
            dtype=dtype,
            optimizer=optimizer,
            devices=devices,
        )
    size = f"{counted.batch} x {counted.sequence} tokens"
    if not counted.has_tokens:
        size = f"{counted.batch} {'row' if counted.batch == 1 else 'rows'}"
    table = Table(show_header=False, title=Text(f"{counted.name}: {size}"))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for row in _rows(counted, "token" if counted.has_tokens else "row"):
        table.add_row(*row)
    console.print(table)
    each = "one device" if counted.devices == 1 else f"each of {devices} devices"
    say(
        f"In {counted.dtype}. Memory is for {each}; FLOPs count matrix products, 2 per "
        "multiply-add.",
        "dim",
    )


def _rows(counted: "Plan", unit: str) -> list[tuple[str, str]]:
    """Label and quantity of each row of the table; `unit` is what a row consists of."""
    forward, both = counted.forward_flops_per_token, counted.training_flops_per_token
    rows = [
        ("parameters", f"{counted.parameters:,}"),
        (f"FLOPs per {unit}", f"{short(forward)}FLOP forward"),
        ("", f"{short(both)}FLOP forward and backward"),
        ("FLOPs per step", f"{short(counted.training_flops)}FLOP"),
        ("weights", f"{short(counted.weights)}B"),
        ("gradients", f"{short(counted.gradients)}B"),
        (counted.optimizer, f"{short(counted.optimizer_state)}B"),
        ("activations", f"{short(counted.activations)}B"),
        ("training", f"{short(counted.training_memory)}B in total"),
    ]
    if counted.cache is not None:
        rows += [
            ("cache", f"{short(counted.cache)}B of keys, values or states"),
            ("generation", f"{short(counted.generation_memory)}B in total"),
        ]
    return rows


def short(number: float | None) -> str:
    """Three significant digits and the prefix of the unit."""
    number = float(number or 0)
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "
