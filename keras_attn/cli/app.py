"""The Typer application: its commands, its exit codes and how errors are reported."""

import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from keras_attn import __version__
from keras_attn.cli.attention import attention
from keras_attn.cli.demo import demo
from keras_attn.cli.describe import describe
from keras_attn.cli.export import export
from keras_attn.cli.generate import generate
from keras_attn.cli.list_models import list_models
from keras_attn.cli.plan import plan
from keras_attn.cli.terminal import CheckFailedError, complain, debugging, say
from keras_attn.cli.train import train
from keras_attn.cli.verify import verify
from keras_attn.console import INTERRUPTED, Interruption, interruption

_RESUMABLE = ("train", "demo")
_EXIT_CODES = (
    "Exit codes: 0 success; 1 a check failed (an artefact disagrees, the demo did not "
    "learn); 2 wrong usage, with one line on stderr; 130 interrupted."
)

app = typer.Typer(
    help="Attention models for Keras 3: build, fit, see, ship. "
    "Begin with `keras-attn demo`.",
    epilog=_EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Prints the help if no command is given."""
    if version:
        say(f"keras-attn {__version__}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# In the order of `keras-attn --help`.
app.command("list")(list_models)
app.command()(describe)
app.command()(demo)
app.command()(train)
app.command()(generate)
app.command()(plan)
app.command()(export)
app.command()(verify)
app.command()(attention)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: The arguments, without the program's name. Default: `sys.argv[1:]`.

    Returns:
        The exit code: 0 success, 1 a check failed, 2 wrong usage, 130 interrupted.
    """
    # SIGINT is handled for the process's own command line only: a caller that passes
    # `arguments` keeps its own handler.
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
        # Even if a library has turned the interruption into another exception.
        resumable = any(argument in _RESUMABLE for argument in arguments[:1])
        say()
        complain("interrupted" + "; run the same command to go on" * resumable)
        return INTERRUPTED
    if isinstance(error, CheckFailedError):
        complain(str(error))
        return 1
    if error is not None:
        # An exception of any other type is a bug, reported with its traceback.
        if debugging() or not _is_user_error(error):
            raise error
        complain(_message(error))
    return code


def _is_user_error(error: Exception) -> bool:
    """Whether an exception is of the types that tell a user what to change."""
    types = (TyperException, ValueError, TypeError, OSError, ImportError)
    # Types of modules that are slow to import: not imported, not raised.
    export_errors = sys.modules.get("keras_attn.export.errors")
    if export_errors is not None:
        types += (export_errors.ExportError,)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        # Such as a token id outside of an embedding.
        types += (tensorflow.errors.InvalidArgumentError,)
    return isinstance(error, types)


def _message(error: Exception) -> str:
    if isinstance(error, TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "keras-attn"
        return f"{error.format_message()} See `{command} --help`."
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    return _without_frame(str(error)) or type(error).__name__


def _without_frame(text: str) -> str:
    """A message without what Keras and TensorFlow wrap around it.

    Keras adds the layer before it and the arguments of the call after it, in ANSI
    bold; TensorFlow adds the node before it and the operation after it.
    """
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"\AException encountered when calling .*?\n\n", "", text, flags=re.S)
    text = text.partition("\n\nArguments received by ")[0]
    text = re.sub(r"\{\{.*?\}\} ?", "", text)
    return re.sub(r" \[Op:\w+\].*", "", text, flags=re.S)
