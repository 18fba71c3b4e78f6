"""`keras-attn evaluate`: the scores of a model on data with answers.

Opening a model: `cli/prediction/network.py`; the scores:
`cli/prediction/evaluation.py`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from keras_attn.cli.options import (
    Json,
    LabelColumn,
    Masks,
    Panel,
    PromptColumn,
    model_with_weights,
)
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import console, in_one_line, print_json, say, working

if TYPE_CHECKING:
    import numpy as np

    from keras_attn.cli.prediction.scores import Evaluation

_OPTIONS, _TEXTS, _IMAGES = Panel(), Panel("Texts"), Panel("Images")
_MAX_CLASSES = 20  # Of a confusion matrix in the terminal.
_SHOWN = 5  # Worst examples in the terminal.
_MAX_TEXT = 60


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="What `keras-attn predict` takes: a folder of `keras-attn finetune`, "
            "a file that was exported from it, or a checkpoint: its folder or its "
            "name, hf://owner/name.",
            callback=model_with_weights,
        ),
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="Data of the kind that `keras-attn finetune` takes for the same task, "
            "such as a table of texts and labels, or a folder of images per class.",
            exists=True,
        ),
    ],
    finetuned: Annotated[
        str | None,
        _OPTIONS.folder_or_name(
            "For an exported file: the fine-tuned folder that it is from. Default: the "
            "folder that the file is in."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        _OPTIONS.option(
            "Folder for scores.json, confusion.csv, the worst examples as worst.csv "
            "and, of images, as pictures.",
            metavar="DIR",
            file_okay=False,
        ),
    ] = None,
    worst: Annotated[
        int, _OPTIONS.count("Number of worst examples to keep.", min=0)
    ] = 12,
    batch_size: Annotated[int, _OPTIONS.count("Texts or images per step.")] = 16,
    json: Json = False,
    text_column: Annotated[
        str | None, _TEXTS.option("Column of the texts. Default: the one of training.")
    ] = None,
    pair_column: Annotated[
        str | None,
        _TEXTS.option("Column of the second texts. Default: the one of training."),
    ] = None,
    label_column: LabelColumn = None,
    prompt_column: PromptColumn = None,
    header: Annotated[
        bool,
        _TEXTS.option(
            "Whether the first line of a .csv or .tsv names its columns; otherwise "
            "they are 1, 2, ….",
            "--header/--no-header",
        ),
    ] = True,
    images: Annotated[
        Path | None,
        _IMAGES.folder("Folder of the images, if it is not images/ beside the rest."),
    ] = None,
    masks: Masks = None,
    classes: Annotated[
        Path | None,
        _IMAGES.file(
            "What stands for each class in masks, as for `keras-attn finetune`."
        ),
    ] = None,
    min_score: Annotated[
        float,
        _IMAGES.number(
            "Smallest score of an object in the worst images; mAP counts all.",
            min=0.0,
            max=1.0,
        ),
    ] = 0.5,
) -> None:
    """Score a model on data with answers: a later test set.

    Prints the scores that `keras-attn finetune` measures on validation data, for
    classes also a matrix of true and predicted ones, and the examples that are furthest
    from their answer. Masks are compared in the size of their files.

    Example: keras-attn evaluate runs/reviews test.csv

    Example: keras-attn evaluate runs/photos/model.onnx photos/ --save report

    Example: keras-attn evaluate checkpoints/bert test.csv --label-column stars --json
    """
    from keras_attn.cli.finetuning.settings import Settings

    settings = Settings(
        model=model,
        data=data,
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
        prompt_column=prompt_column,
        header=header,
        images=images,
        masks=masks,
        classes=classes,
        batch_size=batch_size,
    )
    with importing_tensorflow():
        from keras_attn.cli.prediction.evaluation import evaluate_model
        from keras_attn.cli.prediction.network import open_network

    network = open_network(model, finetuned)
    found = evaluate_model(network, settings, count=worst, min_score=min_score)
    if save is not None:
        with working("Saving"):
            _save(found, save)
    if json:
        print_json(_as_json(found))
        return
    _say(found)
    if save is not None:
        say(f"In {save}: scores.json and the worst examples.")


def _as_json(found: "Evaluation") -> dict[str, Any]:
    matrix = None if found.confusion is None else found.confusion.tolist()
    return {
        "task": found.task,
        "examples": found.what,
        "figures": found.figures,
        "class_names": found.class_names,
        "confusion": matrix,
        "worst": found.worst,
    }


def _say(found: "Evaluation") -> None:
    table = Table(show_header=False, title=Text(f"{found.task}: {found.what}"))
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in found.figures.items():
        table.add_row(Text(name), f"{value:.4g}")
    console.print(table)
    if found.confusion is not None:
        _say_confusion(found.class_names, found.confusion)
    if found.worst:
        say("The worst examples:")
        for row in found.worst[:_SHOWN]:
            pairs = ((name, in_one_line(x, _MAX_TEXT)) for name, x in row.items())
            say("  " + ", ".join(f"{name}: {text}" for name, text in pairs))


def _say_confusion(class_names: Sequence[str], counts: "np.ndarray") -> None:
    """The matrix of few classes, or what is counted per class."""
    names = [" ".join(name.split()) for name in class_names]
    totals, guesses = counts.sum(1), counts.sum(0)
    table = Table(title="True classes in rows, predicted ones in columns")
    table.add_column("")
    is_small = len(names) <= _MAX_CLASSES
    for name in names if is_small else []:
        table.add_column(Text(name), justify="right")
    for label in ("recall", "precision"):
        table.add_column(label, justify="right")
    for row, name in enumerate(names):
        hits = counts[row, row]
        table.add_row(
            Text(name),
            *(f"{number:,}" for number in (counts[row] if is_small else [])),
            *(f"{hits / x[row]:.1%}" if x[row] else "-" for x in (totals, guesses)),
        )
    console.print(table)


def _save(found: "Evaluation", folder: Path) -> None:
    """Writes everything that was measured."""
    import json

    from keras_attn.cli.prediction.output import writing
    from keras_attn.files.writing import write_atomically

    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "scores.json").exists():
        # Of an earlier evaluation, which may have had other worst examples.
        for pattern in ("confusion.csv", "worst.csv", "worst.png", "worst_*_*.png"):
            for path in folder.glob(pattern):
                path.unlink()
    text = json.dumps(_as_json(found), indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / "scores.json", text.encode())
    tables: dict[Literal["confusion", "worst"], Sequence[dict[str, Any]]] = {
        "worst": found.worst
    }
    if found.confusion is not None:
        names = found.class_names
        tables["confusion"] = [
            {"true": name, **dict(zip(names, row, strict=True))}
            for name, row in zip(names, found.confusion.tolist(), strict=True)
        ]
    for name, rows in tables.items():
        if rows:
            with writing(folder / f"{name}.csv", "csv") as write:
                for row in rows:
                    write(row)
    if found.pictures:
        from keras_attn.viz import save_figure

        for name, draw in found.pictures.items():
            save_figure(draw(), folder / name)
