"""The Typer application: its commands, its exit codes and how errors are reported.

The file of a command is imported when the command is called, so that `keras-attn
--help` does not wait for all of them.
"""

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from keras_attn import __version__
from keras_attn.cli.run_owner import release_all
from keras_attn.cli.terminal import CheckFailedError, complain, debugging, say
from keras_attn.console import INTERRUPTED, Interruption, interruption
from keras_attn.files.hub_names import is_hub_name, with_hub_names

# In the order of `keras-attn --help`, with the first line of each command's docstring.
COMMANDS = {
    "list": "List the models, with their papers, sizes and scores.",
    "describe": "Show a model's card: paper, inputs, outputs, size, how to build it.",
    "tokenize": "Show how a text is cut into tokens: pieces and ids.",
    "demo": "Train RNNsearch to read dates, plot its attention and export it to three "
    "formats.",
    "train": "Train a translator on line-aligned text.",
    "finetune": "Fine-tune a model on your own data.",
    "predict": "Classify, score, segment, detect or continue what is in files.",
    "evaluate": "Score a model on data with answers: a later test set.",
    "generate": "Generate a continuation of a prompt, or its translation.",
    "plan": "Estimate what a model costs, without building it: FLOPs, memory, days.",
    "export": "Export a model, run what was exported, and compare it with Keras.",
    "verify": "Compare an artefact with its model; exit code 1 if they disagree.",
    "attention": "Draw what a model attends to in a text or an image.",
    "explain": "Show an attention layer step by step, as a page to explore.",
    "search": "Search a folder of pictures by words.",
    "classify": "Classify images by classes that are given in words.",
}
# Each is imported when its command is called.
_FUNCTIONS = {
    "list": "keras_attn.cli.list_models:list_models",
    "describe": "keras_attn.cli.describe:describe",
    "tokenize": "keras_attn.cli.tokenize:tokenize",
    "demo": "keras_attn.cli.demo:demo",
    "train": "keras_attn.cli.train:train",
    "finetune": "keras_attn.cli.finetune:finetune",
    "predict": "keras_attn.cli.predict:predict",
    "evaluate": "keras_attn.cli.evaluate:evaluate",
    "generate": "keras_attn.cli.generate:generate",
    "plan": "keras_attn.cli.plan:plan",
    "export": "keras_attn.cli.export:export",
    "verify": "keras_attn.cli.verify:verify",
    "attention": "keras_attn.cli.attention:attention",
    "explain": "keras_attn.cli.explain:explain",
    "search": "keras_attn.cli.search:search",
    "classify": "keras_attn.cli.classify:classify",
}
_TOO_MANY = "unexpected extra argument"  # In Typer's message.
_RESUMABLE = ("train", "finetune", "demo", "search")
# Of TensorFlow and of JAX, in messages of many lines.
_OUT_OF_MEMORY = re.compile(
    r"OOM when allocating .*?(?= by allocator|$)|RESOURCE_EXHAUSTED: Out of memory.*",
    re.MULTILINE,
)
_EXIT_CODES = (
    "Exit codes: 0 success; 1 a check failed (an artefact disagrees, the demo did not "
    "learn); 2 wrong usage, with one line on stderr; 130 interrupted. In the examples, "
    "checkpoints/gpt2 and the like are folders of checkpoints on your disk."
)


class _Command(TyperCommand):
    """A line of the help, which imports its command when the command is called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ):
        """The context of the imported command."""
        function = resolve_name(_FUNCTIONS[str(self.name)])
        imported = typer.Typer(add_completion=False)
        imported.command(self.name, help=_paragraphs(function.__doc__))(function)
        command = get_command(imported)
        # A command may start itself in several processes.
        line = [str(info_name), *args]
        context = command.make_context(info_name, args, parent, obj=line, **extra)
        for each in command.params:
            value = context.params.get(str(each.name))
            # It would become a folder `hf:`; options that may be names are text.
            if isinstance(value, Path) and is_hub_name(value):
                raise typer.BadParameter(
                    f"{with_hub_names(str(value))!r} must be on this machine; only "
                    "models and tokenizers may be names on the hub.",
                    context,
                    param_hint=f"'{each.opts[-1]}'",
                )
        return context


def _paragraphs(doc: str) -> str:
    """A docstring whose paragraphs are one line each, which the help wraps itself."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(doc))


class _Commands(TyperGroup):
    """The commands of `COMMANDS`."""

    def __init__(self, **settings: Any):
        commands = {name: _Command(name, help=text) for name, text in COMMANDS.items()}
        super().__init__(**{**settings, "commands": commands})


app = typer.Typer(
    cls=_Commands,
    help="Attention models for Keras 3: build, fit, see, ship. "
    "Begin with `keras-attn demo`.",
    epilog=_EXIT_CODES,
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
    release_all()
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
    """Whether the type of an exception is one that tells a user what to change."""
    types = (TyperException, ValueError, TypeError, OSError, ImportError, MemoryError)
    # Types from modules that are slow to import: if not imported, they were not raised.
    export_errors = sys.modules.get("keras_attn.export.errors")
    if export_errors is not None:
        types += (export_errors.ExportError,)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        errors = tensorflow.errors
        # Such as for a token id outside an embedding.
        types += (errors.InvalidArgumentError,)
        # Memory, or a disk to which TensorBoard's events are written.
        types += (errors.ResourceExhaustedError, errors.PermissionDeniedError)
    return isinstance(error, types) or _is_out_of_memory(error)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether there is not enough memory, as TensorFlow, JAX or NumPy say it."""
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


def _message(error: Exception) -> str:
    if isinstance(error, TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "keras-attn"
        text = error.format_message()
        # Of a text without quotation marks, each word is an argument.
        quote = " Put a text of several words in quotes." if _TOO_MANY in text else ""
        return f"{text}{quote} See `{command} --help`."
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    if _is_out_of_memory(error):
        found = _OUT_OF_MEMORY.search(str(error))
        return (
            "out of memory: use a smaller batch, shorter texts or smaller images, "
            f"--precision or --lora. Received: {found[0] if found else error}"
        )
    full = re.search(r"\S+; (?:No space left on device|Permission denied)", str(error))
    return full[0] if full else _without_frame(str(error)) or type(error).__name__


def _without_frame(text: str) -> str:
    """A message without the text that Keras and TensorFlow wrap around it.

    Keras adds the layer before it and the arguments of the call after it, in ANSI
    bold; TensorFlow adds the node before it and the operation after it.
    """
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"\AException encountered when calling .*?\n\n", "", text, flags=re.S)
    text = text.partition("\n\nArguments received by ")[0]
    text = re.sub(r"\{\{.*?\}\} ?", "", text)
    return re.sub(r" \[Op:\w+\].*", "", text, flags=re.S)
