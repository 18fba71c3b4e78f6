"""`keras-attn finetune`: a model and a user's data to a fine-tuned folder.

A run: `cli/finetuning/run.py`, which imports the task's own file.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from keras_attn.cli.options import ModelOrName, Panel
from keras_attn.cli.processes import (
    Coordinator,
    Processes,
    ProcessId,
    Timeout,
    trains_in_processes,
)
from keras_attn.cli.startup import importing_tensorflow

_OPTIONS, _TABLE, _IMAGES = Panel(), Panel("Texts"), Panel("Images")
_TRAINING, _SMALL = Panel("Training"), Panel("Training a small part of the weights")


@trains_in_processes
def finetune(
    context: typer.Context,
    model: ModelOrName,
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
    ],
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
            "with detection, boxes alone."
        ),
    ] = None,
    run_dir: Annotated[
        Path,
        _OPTIONS.option(
            "Folder for the fine-tuned model, its card, history and TensorBoard logs. "
            "Run the same command again to resume an interrupted run.",
            file_okay=False,
        ),
    ] = Path("runs/finetuned"),
    validation: Annotated[
        Path | None,
        _OPTIONS.option(
            "Data to validate on, of the same kind. Default: val of VOC's ImageSets, "
            "or see --validation-fraction.",
            exists=True,
        ),
    ] = None,
    validation_fraction: Annotated[
        float,
        _OPTIONS.number(
            "Fraction of DATA to hold out if there is no other validation data, the "
            "same of each class.",
            min=0.0001,
            max=0.9,
        ),
    ] = 0.1,
    plan: Annotated[
        bool,
        _OPTIONS.option(
            "Say what was found in the data, and what the run will cost, and stop.",
            "--plan",
        ),
    ] = False,
    text_column: Annotated[
        str | None,
        _TABLE.option(
            "Column of the texts. Default: text, sentence, sentence1, review, …."
        ),
    ] = None,
    pair_column: Annotated[
        str | None,
        _TABLE.option(
            "Column of the second text of each pair. Default: text_pair, sentence2, "
            "hypothesis, …, if there is one."
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        _TABLE.option("Column of the labels. Default: label, class, score, …."),
    ] = None,
    prompt_column: Annotated[
        str | None, _TABLE.option("Column of the prompts. Default: prompt.")
    ] = None,
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
    ] = True,
    tokenizer: Annotated[
        Path | None,
        _TABLE.folder("Folder of the tokenizer, if MODEL is not a folder with one."),
    ] = None,
    max_length: Annotated[
        int, _TABLE.count("Tokens after which a text is truncated.", min=4)
    ] = 128,
    images: Annotated[
        Path | None,
        _IMAGES.folder(
            "Folder of the images, if it is not images/ beside the rest, nor for "
            "COCO's train.json train/."
        ),
    ] = None,
    validation_images: Annotated[
        Path | None,
        _IMAGES.folder(
            "Folder of the images of --validation, if they are not images/ in it, nor "
            "for COCO's val.json in val/."
        ),
    ] = None,
    masks: Annotated[
        Path | None,
        _IMAGES.folder("Folder of the masks, if it is not masks/ in DATA."),
    ] = None,
    classes: Annotated[
        Path | None,
        _IMAGES.file(
            "The classes of masks, one per line in the order of their numbers; or with "
            "what stands for them: `road 7`, `sky 128 64 0`. Default: classes.txt in "
            "DATA, or the numbers that occur."
        ),
    ] = None,
    image_size: Annotated[
        str | None,
        _IMAGES.option(
            "Rows and columns to which images are resized, such as 224 or 480x640. "
            "Default: the model's.",
            metavar="SIZE",
        ),
    ] = None,
    pixels: Annotated[
        Literal["unit", "signed", "imagenet", "bytes"] | None,
        _IMAGES.option(
            "Value range of images, if MODEL does not say it. unit: [0, 1]. signed: "
            "[-1, 1]. imagenet: [0, 1], normalized by ImageNet's mean and standard "
            "deviation. bytes: 0 to 255."
        ),
    ] = None,
    augment: Annotated[
        bool,
        _IMAGES.option(
            "Whether left and right of training images are exchanged at random.",
            "--augment/--no-augment",
        ),
    ] = True,
    augmentation: Annotated[
        str | None,
        _IMAGES.option(
            "How training images are changed at random, with commas: mirror (left and "
            "right), vertical (top and bottom), colors; of classes also crop (a third "
            "of the image at least) and turns (by quarters). Default: mirror.",
            metavar="NAMES",
        ),
    ] = None,
    epochs: Annotated[
        int,
        _TRAINING.count(
            "Passes over the data. More than a complete run had: it goes on with its "
            "weights, and a new warm-up and decay."
        ),
    ] = 3,
    batch_size: Annotated[int, _TRAINING.count("Examples per step.")] = 16,
    learning_rate: Annotated[
        float | None,
        _TRAINING.number(
            "Largest learning rate of AdamW, after a linear warm-up and before a "
            "linear decay to zero. Default: 5e-5 to 1e-4, preferences 1e-5; with "
            "--lora ten times as much; for a model without weights 1e-3.",
            min=1e-9,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        _TRAINING.count(
            "Stop after N epochs without a smaller validation loss, and keep the "
            "weights of the best one. Default: all epochs, and the last weights."
        ),
    ] = None,
    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"],
        _TRAINING.option(
            "Mixed precision computes in 16 bits and keeps the weights in 32."
        ),
    ] = "float32",
    class_weights: Annotated[
        Literal["balanced"] | None,
        _TRAINING.option(
            "balanced: each class of texts, images or, in masks, of pixels weighs the "
            "same in the loss, however often it occurs. Default: each example or pixel "
            "does."
        ),
    ] = None,
    seed: Annotated[
        int,
        _TRAINING.count(
            "Seed of new weights, dropout, the data order and what is held out.", min=0
        ),
    ] = 0,
    lora: Annotated[
        int | None,
        _SMALL.option(
            "Train low-rank updates of this rank (LoRA), and the new layers; the rest "
            "stays fixed. They are merged into the saved weights.",
            metavar="RANK",
            min=1,
        ),
    ] = None,
    lora_targets: Annotated[
        str | None,
        _SMALL.option(
            "Kernels that get updates, with commas: query,value,output,expand,…; or "
            "all. Default: query,value, or all in a model without them.",
            metavar="NAMES",
        ),
    ] = None,
    quantize: Annotated[
        Literal["int8", "int4"] | None,
        _SMALL.option(
            "With --lora: keep the fixed kernels as integers, for less memory (QLoRA)."
        ),
    ] = None,
    save_adapters: Annotated[
        bool,
        _SMALL.option(
            "With --lora: also save the updates alone, in adapters/ of --run-dir, as "
            "PEFT reads them.",
            "--save-adapters",
        ),
    ] = False,
    override: Annotated[
        list[str] | None,
        _SMALL.option(
            "An argument of the model's builder, such as dropout=0.2, or, for a name, "
            "num_layers=4. May be given several times.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    processes: Processes = None,
    coordinator: Coordinator = None,
    process_id: ProcessId = None,
    timeout: Timeout = 300,
) -> None:
    """Fine-tune a model on your own data.

    The task is found in the columns or folders of the data, and said before anything
    else; so is the cost. The folder that is written has the model (a Hugging Face
    checkpoint, if its family has one), class names, tokenizer or preprocessing, and a
    model card with the command and the figures; `keras-attn predict`, `export` and
    `finetune` take it.

    Example: keras-attn finetune checkpoints/MiniLM reviews.csv --run-dir runs/reviews

    Example: keras-attn finetune checkpoints/vit-base photos/ --epochs 5 --lora 8

    Example: keras-attn finetune checkpoints/gpt2 answers.jsonl --max-length 256 --plan

    Example: keras-attn finetune checkpoints/gpt2 answers.jsonl --processes 4
    """
    from keras_attn.cli.finetuning.settings import Settings

    settings = Settings(
        model=model,
        data=data,
        run_dir=run_dir,
        task=task,
        validation=validation,
        validation_fraction=validation_fraction,
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
        prompt_column=prompt_column,
        header=header,
        tokenizer=tokenizer,
        max_length=max_length,
        images=images,
        validation_images=validation_images,
        masks=masks,
        classes=classes,
        image_size=image_size,
        pixels=pixels,
        augment=augment,
        augmentation=augmentation,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        patience=patience,
        precision=precision,
        class_weights=class_weights,
        lora=lora,
        lora_targets=lora_targets,
        quantize=quantize,
        save_adapters=save_adapters,
        override=override or [],
        seed=seed,
    )
    with importing_tensorflow():
        from keras_attn.cli.finetuning.run import run

    run(settings, only_plan=plan)
