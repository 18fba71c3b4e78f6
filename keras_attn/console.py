"""Where the process of `keras-attn` starts: Ctrl-C ends it with 130 at any moment.

Imports next to nothing, so that it listens before typer, rich or TensorFlow come.
"""

import os
import signal
import sys
import time

INTERRUPTED = 130

# A terminal, a shell and `timeout` may each pass on one and the same Ctrl-C: within
# this time a second one counts as the first, so that cleaning up is not cut short.
_SAME_SECONDS = 1.0

_SHOW_CURSOR = b"\x1b[?25h\n"


class Interruption:
    """What Ctrl-C does: the first ends the command, a later one the process at once."""

    def __init__(self):
        self._began: float | None = None
        self._listening = False

    @property
    def happened(self) -> bool:
        """Whether there was a Ctrl-C, whatever became of its `KeyboardInterrupt`."""
        return self._began is not None

    def listen(self) -> None:
        """Takes over SIGINT, unless the process was started to ignore it."""
        if not self._listening and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            self._listening = True
            signal.signal(signal.SIGINT, self._handle)

    def check(self) -> None:
        """Raises the `KeyboardInterrupt` again if a library has swallowed it."""
        if self.happened:
            raise KeyboardInterrupt

    def finish(self) -> None:
        """Ignores SIGINT from now on: the exit code is decided."""
        if self._listening:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _handle(self, signal_number, frame):
        if self._began is None:
            self._began = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - self._began > _SAME_SECONDS:
            if sys.stdout is not None and sys.stdout.isatty():
                os.write(1, _SHOW_CURSOR)  # A progress bar may have hidden it.
            os._exit(INTERRUPTED)


interruption = Interruption()


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
