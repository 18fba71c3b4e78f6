"""`keras-attn verify`: an existing artefact compared with its model.

Opening a model: `cli/opened_model.py`; comparing: `verify` in `export/api.py`.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from keras_attn.cli import options
from keras_attn.cli.opened_model import (
    load_folder_tokenizer,
    local_model,
    noting_warnings,
    open_model,
)
from keras_attn.cli.samples import check_calibrated, input_shapes, read_samples
from keras_attn.cli.served_text import served_length, takes_text
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import CheckFailedError, naming_options, say, working

_OPTIONS = options.Panel()


def verify(
    model: options.Model,
    artefact: Annotated[
        Path,
        typer.Argument(
            help="The artefact that `keras-attn export` wrote.", exists=True
        ),
    ],
    task: options.Task = None,
    quantization: Annotated[
        Literal["none", "float16", "int8_dynamic", "int8"] | None,
        _OPTIONS.option(
            "Its quantization, which sets the default --tolerance. Default: read from "
            "the artefact."
        ),
    ] = None,
    samples: options.Samples = None,
    pixels: options.Pixels = None,
    tokenizer: options.Tokenizer = None,
    sequence_length: Annotated[
        int | None, _OPTIONS.count("The --tokenizer of the export, if it had one.")
    ] = None,
    tolerance: options.Tolerance = None,
    json: options.Json = False,
) -> None:
    """Compare an artefact with its model; exit code 1 if they disagree.

    Example: keras-attn verify runs/en-de en-de.onnx

    Example: keras-attn verify checkpoints/MiniLM minilm.onnx --task sentence_encoder
    """
    with importing_tensorflow():
        from keras_attn import export
        from keras_attn.data import load_text_tokenizer
        from keras_attn.export.errors import RefusedError
        from keras_attn.export.formats import FORMATS

    # Before the model, which takes longer to load.
    runner = export.load_runner(artefact)
    kind: str | None = quantization
    if kind in (None, "none"):
        kind = FORMATS[runner.format].read_quantization(artefact)
    check_calibrated(kind, samples)
    opened = open_model(local_model(model), task)
    with noting_warnings(), naming_options(folder="--tokenizer"):
        text_tokenizer = load_text_tokenizer(tokenizer) if tokenizer else None
    if text_tokenizer is None and takes_text(runner) and opened.has_tokenizer:
        text_tokenizer = load_folder_tokenizer(opened.path)
        sequence_length = sequence_length or served_length(opened)
    shapes = input_shapes(runner)
    sample_inputs = read_samples(samples, opened, shapes, None, text_tokenizer, pixels)
    try:
        with working(f"Comparing {artefact} with Keras"):
            result = export.verify(
                opened.model,
                artefact,
                quantization=kind,
                sample_inputs=sample_inputs,
                tokenizer=text_tokenizer,
                sequence_length=sequence_length,
                tolerance=tolerance,
            )
    except RefusedError:
        raise  # It did not run, so nothing was compared.
    except export.ExportError as error:
        raise CheckFailedError(f"{artefact} disagrees with {model}: {error}") from error
    if json:
        say(result.to_json())
        return
    say(str(result))
    if result.error is None:
        raise CheckFailedError(
            f"{artefact} was not compared with {model}: nothing in its outputs can be "
            "compared on these inputs; pass other --samples."
        )
    say(f"{artefact} agrees with {model}.", "green")
