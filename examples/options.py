"""Command-line options that the examples share."""

import argparse


def new_parser(doc):
    """A parser that shows defaults, described by the first line of a docstring."""
    return argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def selected(arguments, *names):
    """The options of these names, as keyword arguments."""
    return {name: getattr(arguments, name) for name in names}


def add_training_options(parser, *, epochs, batch_size, learning_rate):
    """Adds the options of a training run, with their defaults."""
    parser.add_argument(
        "--epochs", type=int, default=epochs, help="passes over the training data"
    )
    parser.add_argument(
        "--batch-size", type=int, default=batch_size, help="examples per step"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=learning_rate, help="peak rate"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of weights and data order"
    )
