"""Fixtures of the fuzz tests: a time limit for each case."""

import contextlib
import faulthandler
import signal
from collections.abc import Iterator

import pytest

# Native code is not interrupted by a signal handler; this many seconds after the
# limit the process prints where every thread is, and ends.
_GRACE_SECONDS = 30


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    def stop(signum, frame):
        # No `Exception`, which the code under test might catch and report as its own.
        pytest.fail(f"the case took more than {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + _GRACE_SECONDS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def time_limit():
    """`with time_limit(seconds):` fails a case that hangs; main thread only."""
    return _within
