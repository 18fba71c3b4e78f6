"""Entry point of `keras-attn`, and Ctrl-C, which ends it with exit code 130.

It imports next to nothing, so that SIGINT is handled before typer, rich or TensorFlow
are imported.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

INTERRUPTED = 130

# A terminal, a shell and `timeout` may each forward the same Ctrl-C: within this time a
# second signal counts as the first, so that it does not interrupt the cleanup.
_SAME_SECONDS = 1.0

# Delay before a `KeyboardInterrupt` that Python ignored is raised again.
_AGAIN_SECONDS = 0.02

_SHOW_CURSOR = b"\x1b[?25h\n"
_MESSAGE = b"error: interrupted\n"


class Interruption:
    """Handles Ctrl-C: the first ends the command, a later one the process at once."""

    def __init__(self):
        self._began: float | None = None
        self._was_ignored = False
        self._is_reporting = False
        self._listening = False
        self._ends_at_once = False
        self._stderr = 2

    @property
    def happened(self) -> bool:
        """Whether Ctrl-C was pressed, even if its `KeyboardInterrupt` was swallowed."""
        return self._began is not None

    def listen(self) -> None:
        """Installs the handler, unless the process was started to ignore SIGINT."""
        if not self._listening and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            self._listening = True
            with contextlib.suppress(OSError):  # If it is closed.
                # What libraries write there may be hidden when the signal comes.
                self._stderr = os.dup(self._stderr)
            signal.signal(signal.SIGINT, self._handle)
            self._report_ignored = sys.unraisablehook
            sys.unraisablehook = self._handle_ignored

    def check(self) -> None:
        """Raises the `KeyboardInterrupt` again if a library has swallowed it."""
        if self.happened:
            self._was_ignored = False  # Not once more, while the command cleans up.
            raise KeyboardInterrupt

    def finish(self) -> None:
        """Ignores SIGINT from now on: the exit code is final."""
        if self._listening:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    @contextlib.contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """Within this block Ctrl-C ends the process without a `KeyboardInterrupt`.

        For imports, which leave nothing to clean up: libraries in C++ that Python
        interrupts while they are loaded may abort the process.
        """
        self._ends_at_once = True
        try:
            yield
        finally:
            self._ends_at_once = False

    def _handle(self, signal_number, frame):
        if self._ends_at_once:
            self._end()
        if self._is_reporting:
            return  # What is raised here would be lost; it is repeated.
        if self._began is None or self._was_ignored:
            self._began = self._began or time.monotonic()
            self._was_ignored = False
            raise KeyboardInterrupt
        if time.monotonic() - self._began > _SAME_SECONDS:
            self._end()

    def _end(self):
        if sys.stdout is not None and sys.stdout.isatty():
            os.write(1, _SHOW_CURSOR)  # A progress bar may have hidden it.
        with contextlib.suppress(OSError):  # If stderr is closed.
            # Not by `print`: the signal may have interrupted one.
            os.write(self._stderr, _MESSAGE)
        os._exit(INTERRUPTED)

    def _handle_ignored(self, error):
        """Repeats a Ctrl-C whose exception Python ignored, so that the command ends.

        Python ignores what is raised in `__del__` and in callbacks of the garbage
        collector, such as JAX's.
        """
        if not isinstance(error.exc_value, KeyboardInterrupt) or not self.happened:
            self._report_ignored(error)
            return
        self._is_reporting = True
        self._was_ignored = True
        threading.Thread(target=self._repeat, daemon=True).start()
        self._is_reporting = False

    def _repeat(self):
        """Sends SIGINT until Python does not ignore what it raises."""
        main = threading.main_thread().ident
        while True:
            time.sleep(_AGAIN_SECONDS)
            if not self._was_ignored or main is None:
                return
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main, signal.SIGINT)  # Also ends its system call.
            else:  # On Windows.
                signal.raise_signal(signal.SIGINT)


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
