"""Arguments and options that several commands share, with their help texts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Model = Annotated[
    Path,
    typer.Argument(
        help="A `.keras` file, the folder of a training run, or a Hugging Face "
        "checkpoint (a folder of config.json and *.safetensors).",
        exists=True,
        show_default=False,
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="TASK",
        help="The head to build from a checkpoint folder: encoder, classifier, "
        "token_classifier, masked_lm, causal_lm, sentence_encoder, …, as far as its "
        "family has it. Default: the one in its config.json.",
        show_default=False,
    ),
]
Quantization = Annotated[
    Literal["none", "float16", "int8_dynamic", "int8"],
    typer.Option(
        help="For LiteRT. none: float32. float16: half the size. int8_dynamic: 8-bit "
        "weights. int8: 8-bit arithmetic too, where LiteRT can; needs --samples."
    ),
]
Samples = Annotated[
    Path | None,
    typer.Option(
        help="Inputs to compare on, and to calibrate int8 with: an `.npz` with one "
        "array per input, or, for a folder with a tokenizer, a text file with one "
        "text per line. Default: random inputs.",
        exists=True,
        dir_okay=False,
        show_default=False,
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        help="For a SavedModel that takes strings: the folder of a WordPiece or "
        "SentencePiece tokenizer to include. --samples is then a text file with one "
        "text per line.",
        exists=True,
        file_okay=False,
        show_default=False,
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Largest error allowed. Default: 1e-4 in float32 (relative above 1); "
        "quantized, as root mean square relative to the output, 0.01 for float16, "
        "0.1 for int8_dynamic, 0.2 for int8.",
        show_default=False,
    ),
]
