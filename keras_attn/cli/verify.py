"""`keras-attn verify`: an existing artefact compared with its model.

Opening a model: `cli/opened_model.py`; comparing: `verify` in `export/api.py`.
"""

from pathlib import Path
from typing import Annotated

import typer

from keras_attn.cli import options
from keras_attn.cli.opened_model import open_model
from keras_attn.cli.samples import fixed_length, read_samples
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import CheckFailedError, say, working

_OPTIONS = options.Panel()


def verify(
    model: options.Model,
    artefact: Annotated[
        Path, typer.Argument(help="What `keras-attn export` wrote.", exists=True)
    ],
    task: options.Task = None,
    quantization: options.Quantization = "none",
    samples: options.Samples = None,
    tokenizer: options.Tokenizer = None,
    sequence_length: Annotated[
        int | None, _OPTIONS.count("The one of the export, if it had a --tokenizer.")
    ] = None,
    tolerance: options.Tolerance = None,
) -> None:
    """Compare an artefact with its model; exit code 1 if they disagree.

    Example: keras-attn verify runs/en-de en-de.onnx

    Example: keras-attn verify all-MiniLM-L6-v2 minilm.onnx --task sentence_encoder
    """
    with importing_tensorflow():
        from keras_attn import export
        from keras_attn.data import load_text_tokenizer
        from keras_attn.export.errors import RefusedError

    # Before the model, which takes longer to load.
    runner = export.load_runner(artefact)
    opened = open_model(model, task)
    text_tokenizer = load_text_tokenizer(tokenizer) if tokenizer else None
    sample_inputs = read_samples(samples, opened, fixed_length(runner), text_tokenizer)
    try:
        with working(f"Comparing {artefact} with Keras"):
            result = export.verify(
                opened.model,
                artefact,
                quantization=None if quantization == "none" else quantization,
                sample_inputs=sample_inputs,
                tokenizer=text_tokenizer,
                sequence_length=sequence_length,
                tolerance=tolerance,
            )
    except RefusedError:
        raise  # It did not run, so nothing was compared.
    except export.ExportError as error:
        raise CheckFailedError(f"{artefact} disagrees with {model}: {error}") from error
    say(str(result))
    say(f"{artefact} agrees with {model}.", "green")
