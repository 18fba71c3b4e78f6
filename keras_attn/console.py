"""Entry point of `keras-attn`: listens for Ctrl-C before it imports the commands."""

import sys

from keras_attn.interruption import INTERRUPTED, interruption


def main() -> int:
    """Runs the command line of this process; returns its exit code."""
    try:
        interruption.listen()
        from keras_attn import cli
    except BaseException:
        # An interrupted import may end in any exception.
        if not interruption.happened:
            raise
        interruption.finish()
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED
    return cli.main()
