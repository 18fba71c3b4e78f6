"""`keras-attn predict`: predictions of a fine-tuned model as CSV or JSON lines.

Opening a model: `cli/prediction/network.py`; the rows: `cli/prediction/texts.py` and
`pictures.py`.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from keras_attn.cli.options import Panel, model_with_weights
from keras_attn.cli.startup import importing_tensorflow

_OPTIONS, _TEXTS, _IMAGES = Panel(), Panel("Texts"), Panel("Images")

_DRAWN = ("segmentation", "detection", "instance_segmentation")
_OF_IMAGES = ("image_classification", *_DRAWN)


def predict(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder of `keras-attn finetune`; a file that was exported from it: "
            "a SavedModel, `*.tflite` or `*.onnx`; or a checkpoint of a classifier or "
            "a language model, its folder or its name, hf://owner/name.",
            callback=model_with_weights,
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts: .csv, .tsv or .jsonl files, with .gz or without, or others "
            "with one text per line. Images: files and folders. -: standard input, one "
            "text or path per line. Default: -.",
            metavar="[INPUT]...",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        _OPTIONS.option(
            "File to write, *.csv or *.jsonl. Default: standard output.", dir_okay=False
        ),
    ] = None,
    format: Annotated[
        Literal["csv", "jsonl"] | None,
        _OPTIONS.option(
            "csv, or jsonl for one JSON object per line. Default: by the suffix of "
            "--output, or csv."
        ),
    ] = None,
    finetuned: Annotated[
        str | None,
        _OPTIONS.folder_or_name(
            "For an exported file: the fine-tuned folder that it is from, with class "
            "names, tokenizer and preprocessing. Default: the folder that the file is "
            "in."
        ),
    ] = None,
    batch_size: Annotated[
        int,
        _OPTIONS.count(
            "Texts, images or tiles per step; whole images with masks or boxes: 1."
        ),
    ] = 16,
    all_scores: Annotated[
        bool,
        _OPTIONS.option("Also write the probability of every class.", "--all-scores"),
    ] = False,
    columns: Annotated[
        str | None,
        _TEXTS.option(
            "Columns of the texts, with a comma between the two of a pair. Default: "
            "those that the model learned from.",
            metavar="NAMES",
        ),
    ] = None,
    header: Annotated[
        bool,
        _TEXTS.option(
            "Whether the first line of a .csv or .tsv names its columns; otherwise "
            "they are 1, 2, …. Quoting: see `keras-attn finetune`.",
            "--header/--no-header",
        ),
    ] = True,
    max_new_tokens: Annotated[
        int | None,
        _TEXTS.count("Maximum number of tokens of a continuation. Default: 64."),
    ] = None,
    masks: Annotated[
        Path | None,
        _IMAGES.option(
            "Folder for the masks: PNG files whose numbers are the classes.",
            file_okay=False,
        ),
    ] = None,
    save_images: Annotated[
        Path | None,
        _IMAGES.option(
            "Folder for the images with what was found drawn over them, as PNG files: "
            "boxes with labels and scores, or the classes of pixels in color.",
            metavar="DIR",
            file_okay=False,
        ),
    ] = None,
    min_score: Annotated[
        float, _IMAGES.number("Smallest score of an object.", min=0.0, max=1.0)
    ] = 0.5,
    tiles: Annotated[
        str | None,
        _IMAGES.option(
            "For masks and boxes: cut larger images into overlapping tiles of these "
            "rows and columns, such as 512 or 480x640, instead of shrinking them; "
            "model: the size of the model's input. A tile is resized as an image is. "
            "Logits are averaged where tiles overlap; an object that several tiles "
            "have is written once.",
            metavar="SIZE",
        ),
    ] = None,
    tile_overlap: Annotated[
        float | None,
        _IMAGES.number(
            "Smallest share of a tile's side that it has in common with the next one. "
            "An object larger than that may be found in parts. Default: 0.25.",
            min=0.0,
            max=0.9,
        ),
    ] = None,
) -> None:
    """Classify, score, segment, detect or continue what is in files.

    Writes a line per text or image, or per object in CSV: what was read, and the label
    and its probability; a score; a continuation; the share of each class of pixels; or
    the box of an object in pixels of the image, left, top, right, bottom, and of a Mask
    R-CNN its pixels, the run lengths of COCO's results. An image without objects has a
    line with only its file. All columns of a table are written, one that is called
    label as input_label; a line without a text has no prediction.

    Example: keras-attn predict runs/reviews new.csv --output labels.csv

    Example: keras-attn predict runs/reviews/model.onnx < new.txt

    Example: keras-attn predict runs/cells photos/ --save-images found

    Example: keras-attn predict runs/cells slide.png --tiles model --batch-size 4
    """
    with importing_tensorflow():
        from keras_attn.cli.prediction.image_inputs import make_tiling
        from keras_attn.cli.prediction.network import open_network
        from keras_attn.cli.prediction.output import choose_format, writing
        from keras_attn.cli.prediction.pictures import (
            predict_classes,
            predict_masks,
            predict_objects,
        )
        from keras_attn.cli.prediction.texts import predict_texts

    sources = inputs or ["-"]
    if output is not None and any(
        output.resolve() == Path(each).resolve() for each in sources if each != "-"
    ):
        raise ValueError(
            "--output must be another file than INPUT, which would be replaced. "
            f"Received: --output {output}"
        )
    network = open_network(model, finetuned)
    task, kind = network.result.task, choose_format(format, output)
    is_image = task in _OF_IMAGES
    useless = {
        "--masks": None if task == "segmentation" else masks,
        "--save-images": save_images if task not in _DRAWN else None,
        "--tiles": tiles if task not in _DRAWN else None,
        "--tile-overlap": tile_overlap if task not in _DRAWN else None,
        "--columns": columns if is_image else None,
        "--max-new-tokens": max_new_tokens if is_image else None,
        "--no-header": "" if is_image and not header else None,
    }
    for option, value in useless.items():
        if value is not None:
            raise ValueError(
                f"{option} has no meaning for a model of {task}. "
                f"Received: {option} {value}"
            )
    tiling = make_tiling(network, tiles, tile_overlap, batch_size)
    if task == "image_classification":
        rows = predict_classes(
            network, sources, batch_size=batch_size, all_scores=all_scores
        )
    elif task == "segmentation":
        rows = predict_masks(
            network, sources, folder=masks, drawn=save_images, tiling=tiling
        )
    elif task in ("detection", "instance_segmentation"):
        rows = predict_objects(
            network,
            sources,
            min_score=min_score,
            as_lists=kind == "jsonl",
            drawn=save_images,
            tiling=tiling,
        )
    else:
        rows = predict_texts(
            network,
            sources,
            columns=[part.strip() for part in columns.split(",")] if columns else [],
            batch_size=batch_size,
            all_scores=all_scores,
            max_new_tokens=max_new_tokens,
            header=header,
        )
    with writing(output, kind) as write:
        for row in rows:
            write(row)
