"""Ctrl-C while a library is at work that does not let it through."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """Ends the block with `KeyboardInterrupt` if Ctrl-C was pressed in it.

    The converters call Python from C++ and back. An interrupt that is raised in there
    comes out as an error of their own, or not at all.

    Raises:
        KeyboardInterrupt: in place of what the block raised, or at its end.
    """
    previous = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    # Only the main thread has handlers; one that is no function ignores Ctrl-C.
    if not in_main or not callable(previous):
        yield
        return
    interrupted = False

    def handler(number, frame):
        nonlocal interrupted
        try:
            previous(number, frame)
        except KeyboardInterrupt:
            interrupted = True
            raise

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, previous)
    if interrupted:
        raise KeyboardInterrupt
