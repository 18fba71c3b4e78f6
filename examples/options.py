"""Command-line options that the examples share."""

import argparse
import os
from pathlib import Path


def new_parser(doc, run_dir=None):
    """A parser that shows defaults, described by the first line of a docstring.

    Args:
        doc: Docstring of the script.
        run_dir: Default of `--run-dir`; without one there is no such option.
    """
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    if run_dir is not None:
        parser.add_argument(
            "--run-dir",
            type=Path,
            default=Path(run_dir),
            help="folder for all results",
        )
    return parser


def parse_with_smoke(parser, **tiny):
    """Parses the command line; `--smoke` gives the options in `tiny` these values."""
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, for a test")
    arguments = parser.parse_args()
    if arguments.smoke:
        vars(arguments).update(tiny)
    return arguments


def selected(arguments, *names):
    """The options of these names, as keyword arguments."""
    return {name: getattr(arguments, name) for name in names}


def data_folder(name):
    """The folder of this name in `KERAS_ATTN_DATA`, or in the current folder."""
    return Path(os.environ.get("KERAS_ATTN_DATA", ".")) / name


def add_data_dir(parser, folder, content):
    """Adds `--data-dir`.

    Args:
        parser: The parser.
        folder: Name of the data in `KERAS_ATTN_DATA`.
        content: What the folder must contain.
    """
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=data_folder(folder),
        help=f"{content}; if omitted, {folder}/ in $KERAS_ATTN_DATA",
    )


def add_image_counts(parser, *, images, held_out):
    """Adds the numbers of generated images, with their defaults."""
    parser.add_argument(
        "--images", type=int, default=images, help="number of training images"
    )
    parser.add_argument(
        "--held-out", type=int, default=held_out, help="number of held-out images"
    )


def add_training_options(parser, *, epochs, batch_size, learning_rate):
    """Adds the options of a training run, with their defaults."""
    parser.add_argument(
        "--epochs", type=int, default=epochs, help="passes over the training data"
    )
    parser.add_argument(
        "--batch-size", type=int, default=batch_size, help="examples per step"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=learning_rate, help="peak learning rate"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of weights and data order"
    )
