"""`keras-attn export`: a model as a SavedModel, LiteRT or ONNX artefact.

Opening a model: `cli/opened_model.py`; exporting: `export/api.py`.
"""

from pathlib import Path
from typing import Annotated

import typer

from keras_attn.cli import options
from keras_attn.cli.opened_model import local_model, noting_warnings, open_model
from keras_attn.cli.samples import check_calibrated, read_samples
from keras_attn.cli.served_text import served_length, tokenizer_to_include
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import naming_options, say, working

_OPTIONS = options.Panel()


def export(
    model: options.Model,
    artefact: Annotated[
        Path,
        typer.Argument(
            help="Where to write: `*.tflite`, `*.onnx`, or a name without suffix for a "
            "SavedModel folder."
        ),
    ],
    task: options.Task = None,
    format: options.Format = None,
    quantization: options.Quantization = "none",
    batch_size: Annotated[
        int | None,
        _OPTIONS.count(
            "Fixes the number of rows. Default: any number, if the format allows it."
        ),
    ] = None,
    sequence_length: Annotated[
        int | None,
        _OPTIONS.count(
            "Fixes the number of source tokens, to which shorter texts are padded; "
            "or, if the model takes images of any size, their rows and columns. "
            "Default: any number, if the format allows it."
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        _OPTIONS.count(
            "For a generative model: the maximum number of tokens, prompt and "
            "continuation together, and the length of the caches. Default: the "
            "model's number of positions."
        ),
    ] = None,
    num_beams: Annotated[
        int | None,
        _OPTIONS.count(
            "For a generative model, with --batch-size: fixes the beams per row. "
            "Default: any number, if the format allows it."
        ),
    ] = None,
    samples: options.Samples = None,
    pixels: options.Pixels = None,
    tokenizer: options.Tokenizer = None,
    token_ids: Annotated[
        bool,
        _OPTIONS.option(
            "For a SavedModel: leave the tokenizer of MODEL's folder out, so that it "
            "takes token ids.",
            "--token-ids",
        ),
    ] = False,
    tolerance: options.Tolerance = None,
    report: Annotated[
        Path | None,
        _OPTIONS.option("Also write the report here, as JSON.", dir_okay=False),
    ] = None,
    json: options.Json = False,
) -> None:
    """Export a model, run what was exported, and compare it with Keras.

    A generative model gets the signatures `prefill` and `step`, any other `serve`.
    A SavedModel of a text model includes the tokenizer of MODEL's folder, if it can.
    An artefact that disagrees, or does not run, is not kept.

    Example: keras-attn export runs/en-de en-de.tflite --quantization float16

    Example: keras-attn export stars.keras stars --tokenizer checkpoints/bert

    Example: keras-attn export checkpoints/MiniLM minilm.onnx --task sentence_encoder

    Example: keras-attn export vit.keras vit.tflite --quantization int8 --samples photos
    --pixels signed
    """
    check_calibrated(quantization, samples)
    with importing_tensorflow():
        from keras_attn import export
        from keras_attn.data import load_text_tokenizer
        from keras_attn.export.formats import format_to_write

    file_format = format_to_write(artefact, format)
    opened = open_model(local_model(model), task)
    with noting_warnings(), naming_options(folder="--tokenizer"):
        text_tokenizer = load_text_tokenizer(tokenizer) if tokenizer else None
    # Arrays are samples of token ids.
    are_ids = token_ids or (samples is not None and samples.suffix == ".npz")
    if text_tokenizer is None and file_format.takes_strings and not are_ids:
        text_tokenizer = tokenizer_to_include(opened)
        if text_tokenizer is not None and sequence_length is None:
            sequence_length = served_length(opened)
    sample_inputs = read_samples(
        samples, opened, {}, sequence_length, text_tokenizer, pixels
    )
    if report is not None:
        # Fails now rather than after the export.
        report.parent.mkdir(parents=True, exist_ok=True)
    with working(f"Exporting to {artefact}"):
        result = export.export(
            opened.model,
            artefact,
            format=format,
            quantization=None if quantization == "none" else quantization,
            batch_size=batch_size,
            sequence_length=sequence_length,
            max_length=max_length,
            num_beams=num_beams,
            sample_inputs=sample_inputs,
            tokenizer=text_tokenizer,
            tolerance=tolerance,
        )
    if report is not None:
        result.save(report)
    say(result.to_json() if json else str(result))
