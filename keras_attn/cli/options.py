"""Kinds of options, and the arguments and options that several commands share."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_attn.files.hub_names import is_hub_name


@dataclass(frozen=True)
class Panel:
    """A panel of the help, with methods for the kinds of options in it.

    Attributes:
        title: Its title; None for the panel of options without one.
    """

    title: str | None = None

    def option(self, help: str, *names: str, **settings: Any) -> Any:
        """An option; `names` and `settings` go to `typer.Option`."""
        return typer.Option(*names, help=help, rich_help_panel=self.title, **settings)

    def count(self, help: str, min: int = 1) -> Any:
        """An integer, N in the help."""
        return self.option(help, metavar="N", min=min)

    def number(self, help: str, min: float, max: float | None = None) -> Any:
        """A real number, X in the help."""
        return self.option(help, metavar="X", min=min, max=max)

    def file(self, help: str) -> Any:
        """A file that exists."""
        return self.option(help, exists=True, dir_okay=False)

    def folder(self, help: str) -> Any:
        """A folder that exists."""
        return self.option(help, exists=True, file_okay=False)

    def folder_or_name(self, help: str) -> Any:
        """A folder that exists, or its name on the hub: text, as MODEL is."""
        help += " Or its name, hf://owner/name."
        return self.option(help, metavar="DIRECTORY", callback=existing_folder)


def existing_folder(context: typer.Context, folder: str | None) -> str | None:
    """Checks that a folder exists, unless it is given by its name on the hub.

    Args:
        context: Of the command line.
        folder: As it was given: a path, or `hf://owner/name`; None if it was not.

    Raises:
        typer.BadParameter: If there is no such folder.
    """
    if folder is None or is_hub_name(folder) or Path(folder).is_dir():
        return folder
    # It may be half typed.
    if not context.resilient_parsing:
        what = "is a file" if Path(folder).exists() else "does not exist"
        raise typer.BadParameter(f"directory {folder!r} {what}.")
    return folder


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for Typer, from one that takes dataclasses of options.

    Typer makes an option of each parameter. A parameter whose type is a dataclass
    stands for the fields, which are annotated and have defaults as parameters do; the
    command receives the object.

    Args:
        command: A function with annotated parameters.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for each in inspect.signature(command).parameters.values():
        if is_dataclass(each.annotation):
            groups[each.name] = each.annotation
            parameters += map(_parameter, fields(each.annotation))
        else:
            parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            own = {each.name: values.pop(each.name) for each in fields(group)}
            values[name] = group(**own)
        command(**values)

    # What Typer reads.
    setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010
    return run


def _parameter(field: Field) -> inspect.Parameter:
    """The parameter of a function that is as a field of a dataclass."""
    default = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    if default is MISSING:
        default = inspect.Parameter.empty
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=field.type,
    )


def model_with_weights(context: typer.Context, model: str) -> str:
    """Checks that a model's path exists; the error suggests what else was meant.

    A name on the hub is text, since a `Path` joins its slashes. It is not looked up
    here: the command does that once it has checked its other options.

    Args:
        context: Of the command line.
        model: As it was given: a path, or `hf://owner/name`.

    Raises:
        typer.BadParameter: If the file or folder does not exist. Of a name from
            `keras-attn list` the message says that its weights are random.
    """
    path = Path(model)
    # It may be half typed.
    if is_hub_name(model) or path.exists() or context.resilient_parsing:
        return model
    is_name = False
    if path.name.isidentifier() and path.name == str(path):
        from keras_attn.cli.startup import importing_tensorflow

        with importing_tensorflow():
            from keras_attn import models

        is_name = path.name in models.list_models()
    if not is_name:
        raise typer.BadParameter(f"path {model!r} does not exist.")
    raise typer.BadParameter(
        f"{model} is a name from `keras-attn list`, whose weights are random. Pass a "
        "model with weights: the folder of a checkpoint or of a run, or a `.keras` "
        f"file. `keras-attn finetune {model} DATA` trains one."
    )


_OPTIONS = Panel()

Model = Annotated[
    str,
    typer.Argument(
        help="A `.keras` file, the folder of a training run, or a Hugging Face "
        "checkpoint: a folder of config.json and *.safetensors, or its name, "
        "hf://owner/name or hf://owner/name@revision.",
        callback=model_with_weights,
    ),
]
ModelOrName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name from `keras-attn list`, a `.keras` file, the folder of a "
        "training run, or a Hugging Face checkpoint, its folder or its name, "
        "hf://owner/name or hf://owner/name@revision. For a path that is also a name, "
        "write ./NAME.",
    ),
]
Task = Annotated[
    str | None,
    _OPTIONS.option(
        "The head to build from a checkpoint folder: encoder, classifier, "
        "token_classifier, masked_lm, causal_lm, sentence_encoder, …, if its family "
        "has it. Default: the one in its config.json.",
        metavar="TASK",
    ),
]
Json = Annotated[
    bool, _OPTIONS.option("Print one JSON object, for programs.", "--json")
]
# The same formats and quantizations as in `export/formats`, whose import would be slow.
Format = Annotated[
    Literal["saved_model", "litert", "onnx"] | None,
    _OPTIONS.option("File format, if the suffix of the path does not determine it."),
]
Quantization = Annotated[
    Literal["none", "float16", "int8_dynamic", "int8"],
    _OPTIONS.option(
        "For LiteRT. none: float32. float16: half the size. int8_dynamic: 8-bit "
        "weights. int8: 8-bit arithmetic too, where LiteRT can; needs --samples. "
        "For ONNX int8_dynamic, of a model with quantized weights."
    ),
]
Samples = Annotated[
    Path | None,
    _OPTIONS.option(
        "Inputs to compare on, and to calibrate int8 with: an `.npz` with one array "
        "per input; for a folder with a tokenizer, a text file with one text per "
        "line; for an image model, an image or a folder of images, which are prepared "
        "as MODEL's checkpoint says, or else with --pixels. "
        "Default: random inputs.",
        exists=True,
    ),
]
Pixels = Annotated[
    Literal["unit", "signed", "imagenet", "bytes"] | None,
    _OPTIONS.option(
        "Value range in which the model takes images, for --samples; `keras-attn "
        "describe` prints it for a published model. unit: [0, 1]. signed: [-1, 1]. "
        "imagenet: [0, 1], normalized by ImageNet's mean and standard deviation. "
        "bytes: 0 to 255. The images are then squeezed to the model's size. Default: "
        "resizing, cropping and range stated by the checkpoint that MODEL is, or was "
        "loaded from."
    ),
]
Tokenizer = Annotated[
    str | None,
    _OPTIONS.folder_or_name(
        "For a SavedModel that takes strings: the folder of a WordPiece or "
        "SentencePiece tokenizer to include. --samples is then a text file with one "
        "text per line."
    ),
]
TokenizerFolder = Annotated[
    str | None,
    Panel("Text").folder_or_name(
        "Folder of the tokenizer, if it is not next to the model."
    ),
]
LabelColumn = Annotated[
    str | None,
    Panel("Texts").option("Column of the labels. Default: label, class, score, …."),
]
PromptColumn = Annotated[
    str | None, Panel("Texts").option("Column of the prompts. Default: prompt.")
]
Masks = Annotated[
    Path | None,
    Panel("Images").folder("Folder of the masks, if it is not masks/ in DATA."),
]
Tolerance = Annotated[
    float | None,
    _OPTIONS.option(
        "Maximum error allowed. Default: 1e-4 in float32 (relative above 1); "
        "quantized, as root mean square relative to the output, 0.01 for float16, 0.1 "
        "for int8_dynamic, 0.2 for int8.",
        min=0.0,
    ),
]
