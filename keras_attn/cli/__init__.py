"""The `keras-attn` command: what it takes, and how it fails.

What the commands do is in `cli_commands`, `cli_train`, `cli_write` and `demo`. These
import TensorFlow, so they are imported when a command runs: `--help` need not wait.
"""

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import typer
from typer.exceptions import TyperException

from keras_attn import __version__
from keras_attn.cli import fit as cli_fit
from keras_attn.cli import generate as cli_generate
from keras_attn.cli import plan as cli_plan
from keras_attn.cli.options import (
    Model,
    ModelFolder,
    Quantization,
    Samples,
    Task,
    Tokenizer,
    Tolerance,
)
from keras_attn.cli.terminal import (
    CheckFailedError,
    complain,
    debugging,
    say,
    working,
)
from keras_attn.console import INTERRUPTED, Interruption, interruption

_RESUMABLE = ("train", "demo")
_EXIT_CODES = (
    "Exit codes: 0 done; 1 a check failed (an artefact disagrees, the demo did not "
    "learn); 2 wrong use, with one line on stderr; 130 interrupted."
)

app = typer.Typer(
    help="Attention models for Keras 3: build, fit, see, ship. "
    "Begin with `keras-attn demo`.",
    epilog=_EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: Without the program's name. Default: those of the process.

    Returns:
        The exit code: 0 done, 1 a check failed, 2 wrong use, 130 interrupted.
    """
    # SIGINT is the process's: not that of who runs a command line within another one.
    is_process = arguments is None
    interrupts = interruption if is_process else Interruption()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    error = None
    try:
        if is_process:
            interrupts.listen()
        code = app(arguments, prog_name="keras-attn", standalone_mode=False) or 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as raised:
        code, error = 2, raised
    interrupts.finish()
    if interrupts.happened or code == INTERRUPTED:
        # Whatever a library made of the interruption.
        resumable = any(argument in _RESUMABLE for argument in arguments[:1])
        say()
        complain("interrupted" + "; run the same command to go on" * resumable)
        return INTERRUPTED
    if isinstance(error, CheckFailedError):
        complain(str(error))
        return 1
    if error is not None:
        # What nobody foresaw is a bug, and a bug has a traceback.
        if debugging() or not _is_mistake(error):
            raise error
        complain(_text(error))
    return code


def _is_mistake(error: Exception) -> bool:
    """Whether an exception is of the kinds that tell a user what to do otherwise."""
    kinds = (TyperException, ValueError, TypeError, OSError, ImportError)
    # It can't have been raised before its module was imported.
    export_errors = sys.modules.get("keras_attn.export.errors")
    if export_errors is not None:
        kinds += (export_errors.ExportError,)
    return isinstance(error, kinds)


def _text(error: Exception) -> str:
    if isinstance(error, TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "keras-attn"
        return f"{error.format_message()} See `{command} --help`."
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__


def _load(name: str) -> ModuleType:
    """Imports a module of keras_attn that brings TensorFlow, slow and talkative."""
    # Fitting and exporting are TensorFlow's, whatever Keras is set to elsewhere.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if not debugging():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        # Advice on retracing, or what an interruption left half traced: nothing that
        # a user of the command can act on.
        logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
    with working("Starting TensorFlow"):
        module = importlib.import_module(f"keras_attn.{name}")
        # The devices too have their say when they are first looked for.
        importlib.import_module("tensorflow").config.list_logical_devices()
    # Some modules go on without what they failed to import, for whatever reason.
    interruption.check()
    return module


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Prints the help where no command is given."""
    if version:
        say(f"keras-attn {__version__}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def list_models(
    pattern: Annotated[
        str, typer.Argument(help="Shell pattern; quote it: 'rnnsearch_*'.")
    ] = "*",
) -> None:
    """List the models, with their papers and sizes.

    Example: keras-attn list 'rnnsearch_*'
    """
    _load("cli.commands").list_models(pattern)


@app.command()
def describe(
    name: Annotated[
        str, typer.Argument(help="A name of `keras-attn list`.", show_default=False)
    ],
) -> None:
    """Show a model's card: paper, inputs, outputs, size, how to build it.

    Example: keras-attn describe rnnsearch_50
    """
    _load("cli.commands").describe(name)


@app.command()
def demo(
    run_dir: Annotated[
        Path,
        typer.Option(
            help="Folder for all it makes. An interrupted demo there goes on; a "
            "finished one is replaced.",
            file_okay=False,
        ),
    ] = Path("runs/demo"),
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A smoke test on a few hundred dates, half a minute: every step, but "
            "it does not learn the task, and no accuracy is asked for.",
        ),
    ] = False,
) -> None:
    """Teach RNNsearch to read dates, look inside, ship it three ways.

    Trains on 20,000 dates as people write them ("the third of march 2027"), asks
    for ISO 8601 ("2027-03-03") of 1,000 days it never saw, draws the alignment,
    and compares SavedModel, LiteRT and ONNX with Keras. Needs no data, and five
    minutes on two cores.

    Example: keras-attn demo --run-dir runs/demo
    """
    _load("cli.demo").run(run_dir, quick=quick)


app.command()(cli_fit.command(lambda name: _load(name)))
app.command()(cli_generate.command(lambda name: _load(name)))
app.command()(cli_plan.command(lambda name: _load(name)))


@app.command()
def export(
    model: Model,
    artefact: Annotated[
        Path,
        typer.Argument(
            help="Where to: `*.tflite`, `*.onnx`, or a name without suffix for a "
            "SavedModel folder.",
            show_default=False,
        ),
    ],
    task: Task = None,
    format: Annotated[
        Literal["saved_model", "litert", "onnx"] | None,
        typer.Option(help="Where the suffix does not say it.", show_default=False),
    ] = None,
    quantization: Quantization = "none",
    batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Rows at a time. Default: any number, where the format can.",
            show_default=False,
        ),
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Tokens of a source, shorter ones padded. Default: any number, where "
            "the format can.",
            show_default=False,
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Of a generative model: most tokens of prompt and continuation "
            "together, the length of its caches. Default: all that the model has.",
            show_default=False,
        ),
    ] = None,
    num_beams: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Of a generative model, with --batch-size: fixes the beams for each "
            "row. Default: any number, where the format can.",
            show_default=False,
        ),
    ] = None,
    samples: Samples = None,
    tokenizer: Tokenizer = None,
    tolerance: Tolerance = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Also write the report here, as JSON.",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Export a model, run what was exported, and compare it with Keras.

    A generative model gets the signatures `prefill` and `step`, any other `serve`.
    An artefact that disagrees, or does not run, is not kept.

    Example: keras-attn export runs/en-de en-de.tflite --quantization float16

    Example: keras-attn export stars.keras stars --tokenizer bert-base-uncased

    Example: keras-attn export all-MiniLM-L6-v2 minilm.onnx --task sentence_encoder
    """
    _load("cli.commands").export_model(
        model,
        artefact,
        task=task,
        format=format,
        quantization=quantization,
        batch_size=batch_size,
        sequence_length=sequence_length,
        max_length=max_length,
        num_beams=num_beams,
        samples=samples,
        tokenizer=tokenizer,
        tolerance=tolerance,
        report=report,
    )


@app.command()
def verify(
    model: Model,
    artefact: Annotated[
        Path,
        typer.Argument(
            help="What `keras-attn export` wrote.", exists=True, show_default=False
        ),
    ],
    task: Task = None,
    quantization: Quantization = "none",
    samples: Samples = None,
    tokenizer: Tokenizer = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="That it was exported with beside a --tokenizer.",
            show_default=False,
        ),
    ] = None,
    tolerance: Tolerance = None,
) -> None:
    """Run an artefact beside its model; exit code 1 if they disagree.

    Example: keras-attn verify runs/en-de en-de.onnx

    Example: keras-attn verify all-MiniLM-L6-v2 minilm.onnx --task sentence_encoder
    """
    _load("cli.commands").verify_model(
        model,
        artefact,
        task=task,
        quantization=quantization,
        samples=samples,
        tokenizer=tokenizer,
        sequence_length=sequence_length,
        tolerance=tolerance,
    )


@app.command()
def attention(
    model_folder: ModelFolder,
    text: Annotated[
        str,
        typer.Argument(help="What to read or translate; quote it.", show_default=False),
    ],
    translation: Annotated[
        str | None,
        typer.Option(
            help="Show where the model looks while it writes this. Default: its own "
            "translation.",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The layer of a checkpoint's model, counted from 0. Default: the "
            "last.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(help="The picture: .png, .pdf or .svg.", dir_okay=False),
    ] = Path("alignment.png"),
) -> None:
    """Draw where a model looks: while it translates a text, or reads it.

    A translator is drawn as the alignment of the text and its translation, the model
    of a checkpoint as the attention among the tokens of the text, a panel a head.

    Example: keras-attn attention runs/en-de "A dog runs." --output dog.png

    Example: keras-attn attention bert-base-uncased "A dog runs." --layer 3
    """
    _load("cli.commands").draw_attention(model_folder, text, translation, layer, output)


if __name__ == "__main__":
    sys.exit(main())
