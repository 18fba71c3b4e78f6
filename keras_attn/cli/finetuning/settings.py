"""The options of `keras-attn finetune`, as the command takes them and a run reads them.

Nothing here imports TensorFlow, so that `keras-attn finetune --help` starts quickly.
"""

import ast
import json
import shlex
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_attn.cli.options import LabelColumn, Masks, ModelOrName, Panel, PromptColumn

_OPTIONS, _TABLE, _IMAGES = Panel(), Panel("Texts"), Panel("Images")
_TRAINING, _SMALL = Panel("Training"), Panel("Training a small part of the weights")


@dataclass(frozen=True)
class Settings:
    """The options of `keras-attn finetune`, each with its help and its default."""

    model: ModelOrName
    data: Annotated[
        Path,
        typer.Argument(
            help="Texts: a .csv, .tsv or .jsonl file, or one of them with .gz, with "
            "columns such as text and label; sentence1, sentence2 and label; prompt "
            "and completion; or prompt, chosen and rejected. Images: a folder with a "
            "subfolder per class; with images/ and masks/; COCO's JSON file; or a "
            "folder like VOC's.",
            exists=True,
        ),
    ]
    task: Annotated[
        Literal[
            "text_classification",
            "text_regression",
            "completion",
            "preference",
            "reward",
            "image_classification",
            "segmentation",
            "detection",
            "instance_segmentation",
        ]
        | None,
        _OPTIONS.option(
            "What to learn, if the data can be read in two ways. Labels are numbers to "
            "predict if one of them is not whole. Chosen and rejected completions "
            "train a language model by DPO (preference), any other model to score "
            "texts (reward). A Mask R-CNN learns masks too if COCO's file has them; "
            "with detection, only boxes."
        ),
    ] = None
    run_dir: Annotated[
        Path,
        _OPTIONS.option(
            "Folder for the fine-tuned model, its card, history and TensorBoard logs. "
            "Run the same command again to resume an interrupted run.",
            file_okay=False,
        ),
    ] = Path("runs/finetuned")
    validation: Annotated[
        Path | None,
        _OPTIONS.option(
            "Data to validate on, of the same kind. Default: val of VOC's ImageSets, "
            "or see --validation-fraction.",
            exists=True,
        ),
    ] = None
    validation_fraction: Annotated[
        float,
        _OPTIONS.number(
            "Fraction of DATA to hold out without other validation data, the same of "
            "each class.",
            min=0.0001,
            max=0.9,
        ),
    ] = 0.1
    text_column: Annotated[
        str | None,
        _TABLE.option(
            "Column of the texts. Default: text, sentence, sentence1, review, …."
        ),
    ] = None
    pair_column: Annotated[
        str | None,
        _TABLE.option(
            "Column of the second text of each pair. Default: text_pair, sentence2, "
            "hypothesis, …, if there is one."
        ),
    ] = None
    label_column: LabelColumn = None
    prompt_column: PromptColumn = None
    header: Annotated[
        bool,
        _TABLE.option(
            "Whether the first line of a .csv or .tsv names its columns. Otherwise "
            "they are 1, 2, …: --no-header --text-column 4 --label-column 2 for CoLA. "
            "A .csv is quoted (RFC 4180). In a .tsv with the same number of tabs in "
            "every line, a \" is a letter, as in GLUE's files, unless each field that "
            'has one is in quotation marks as a whole, with "" for " inside, as pandas '
            "writes it.",
            "--header/--no-header",
        ),
    ] = True
    tokenizer: Annotated[
        str | None,
        _TABLE.folder_or_name(
            "Folder of the tokenizer, if MODEL is not a folder with one."
        ),
    ] = None
    max_length: Annotated[
        int, _TABLE.count("Tokens after which a text is truncated.", min=4)
    ] = 128
    images: Annotated[
        Path | None,
        _IMAGES.folder(
            "Folder of the images, if it is not images/ beside the rest, nor for "
            "COCO's train.json train/."
        ),
    ] = None
    validation_images: Annotated[
        Path | None,
        _IMAGES.folder(
            "Folder of the images of --validation, if they are not images/ in it, nor "
            "for COCO's val.json in val/."
        ),
    ] = None
    masks: Masks = None
    classes: Annotated[
        Path | None,
        _IMAGES.file(
            "The classes of masks, one per line in the order of their numbers; or with "
            "what stands for them: `road 7`, `sky 128 64 0`. Default: classes.txt in "
            "DATA, or the numbers that occur."
        ),
    ] = None
    image_size: Annotated[
        str | None,
        _IMAGES.option(
            "Rows and columns to which images are resized, such as 224 or 480x640. "
            "Default: the model's.",
            metavar="SIZE",
        ),
    ] = None
    pixels: Annotated[
        Literal["unit", "signed", "imagenet", "bytes"] | None,
        _IMAGES.option(
            "Value range of images, if MODEL does not say it. unit: [0, 1]. signed: "
            "[-1, 1]. imagenet: [0, 1], normalized by ImageNet's mean and standard "
            "deviation. bytes: 0 to 255."
        ),
    ] = None
    augment: Annotated[
        bool,
        _IMAGES.option(
            "Whether to mirror training images at random.", "--augment/--no-augment"
        ),
    ] = True
    augmentation: Annotated[
        str | None,
        _IMAGES.option(
            "How training images are changed at random, with commas: mirror (left and "
            "right), vertical (top and bottom), colors; of classes also crop (a third "
            "of the image at least) and turns (by quarters). Default: mirror.",
            metavar="NAMES",
        ),
    ] = None
    epochs: Annotated[
        int,
        _TRAINING.count(
            "Passes over the data. More than a complete run had: it continues with its "
            "weights, and a new warm-up and decay."
        ),
    ] = 3
    batch_size: Annotated[int, _TRAINING.count("Examples per step.")] = 16
    learning_rate: Annotated[
        float | None,
        _TRAINING.number(
            "Largest learning rate of AdamW, after a linear warm-up and before a "
            "linear decay to zero. Default: 5e-5 to 1e-4, preferences 1e-5; with "
            "--lora ten times as much; for a model without weights 1e-3.",
            min=1e-9,
        ),
    ] = None
    patience: Annotated[
        int | None,
        _TRAINING.count(
            "Stop after N epochs without a smaller validation loss, and keep the "
            "weights of the best one. Default: all epochs, and the last weights."
        ),
    ] = None
    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"],
        _TRAINING.option(
            "Mixed precision computes in 16 bits and keeps the weights in 32."
        ),
    ] = "float32"
    class_weights: Annotated[
        Literal["balanced"] | None,
        _TRAINING.option(
            "balanced: each class of texts, images or, in masks, of pixels weighs the "
            "same in the loss, however often it occurs. Default: each example or pixel "
            "does."
        ),
    ] = None
    seed: Annotated[
        int,
        _TRAINING.count(
            "Seed of new weights, dropout, the data order and what is held out.", min=0
        ),
    ] = 0
    lora: Annotated[
        int | None,
        _SMALL.option(
            "Train LoRA weights of this rank, and the new layers; the rest stays "
            "fixed. They are merged into the saved weights.",
            metavar="RANK",
            min=1,
        ),
    ] = None
    lora_targets: Annotated[
        str | None,
        _SMALL.option(
            "Kernels that get LoRA weights, with commas: query,value,output,expand,…; "
            "or all. Default: query,value, or all in a model without them.",
            metavar="NAMES",
        ),
    ] = None
    quantize: Annotated[
        Literal["int8", "int4"] | None,
        _SMALL.option(
            "With --lora: quantize the fixed kernels, for less memory (QLoRA)."
        ),
    ] = None
    save_adapters: Annotated[
        bool,
        _SMALL.option(
            "With --lora: also save the LoRA weights, in adapters/ of --run-dir, as "
            "PEFT reads them.",
            "--save-adapters",
        ),
    ] = False
    override: Annotated[
        list[str],
        _SMALL.option(
            "An argument of the model's builder, such as dropout=0.2, or, for a name, "
            "num_layers=4. May be given several times.",
            metavar="NAME=VALUE",
        ),
    ] = field(default_factory=list)

    def __post_init__(self):
        """Raises for options that make no sense together."""
        if self.lora_targets is not None and self.lora is None:
            raise ValueError(
                "--lora-targets needs --lora RANK. "
                f"Received: --lora-targets {self.lora_targets!r}"
            )
        if self.save_adapters and self.lora is None:
            raise ValueError(
                "--save-adapters needs --lora RANK. Received: --save-adapters alone"
            )
        if self.quantize is not None and self.lora is None:
            raise ValueError(
                "--quantize needs --lora RANK: quantized weights do not train, LoRA "
                f"weights do. Received: --quantize {self.quantize}"
            )
        if self.validation_images is not None and self.validation is None:
            raise ValueError(
                "--validation-images needs --validation. Received: --validation-images "
                f"{self.validation_images}"
            )
        if self.augmentation is not None and not self.augment:
            raise ValueError(
                "--augmentation and --no-augment exclude each other. "
                f"Received: --augmentation {self.augmentation} --no-augment"
            )

    @property
    def command(self) -> str:
        """The command line, for the model card."""
        words = ["keras-attn", "finetune", self.model, str(self.data)]
        for each in fields(self):
            value, name = getattr(self, each.name), each.name.replace("_", "-")
            if each.name in ("model", "data") or value in (each.default, None, []):
                continue
            if isinstance(value, bool):
                words.append(f"--{name}" if value else f"--no-{name}")
                continue
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{name}", str(one)]
        return shlex.join(words)

    @property
    def sides(self) -> tuple[int, int] | None:
        """Rows and columns of `image_size`, which is "224" or "144x192".

        Raises:
            ValueError: If it is neither.
        """
        if self.image_size is None:
            return None
        return parse_sides("--image-size", self.image_size)

    @property
    def overrides(self) -> dict[str, Any]:
        """The arguments of the builder; values are JSON, Python's, or else text.

        Raises:
            ValueError: If one is not of the form `NAME=VALUE`.
        """
        found: dict[str, Any] = {}
        for each in self.override:
            name, equals, value = each.partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(
                    "--override must be NAME=VALUE, an argument of the model's "
                    f"builder. Received: --override {each!r}"
                )
            found[name] = _value(value)
        return found

    def identity(self) -> dict[str, Any]:
        """The settings that must be equal when the run is resumed."""
        return {
            each.name: value if isinstance(value, int | float | list) else str(value)
            for each in fields(self)
            if each.name not in ("run_dir", "save_adapters")
            and (value := getattr(self, each.name)) is not None
        }


def parse_sides(option: str, text: str) -> tuple[int, int]:
    """Rows and columns of an option, which is "224" or "144x192".

    Args:
        option: Its name.
        text: Its value.

    Raises:
        ValueError: If it is neither.
    """
    parts = text.lower().split("x")
    is_size = all(part.isascii() and part.isdigit() and int(part) for part in parts)
    if len(parts) > 2 or not is_size:
        raise ValueError(
            f"{option} must be one number, or rows and columns such as 144x192. "
            f"Received: {option} {text!r}"
        )
    return int(parts[0]), int(parts[-1])


def _value(text: str) -> Any:
    """`2`, `[2, 3]`, `false` as in JSON, `False`, `None` as in Python, or a text."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text
