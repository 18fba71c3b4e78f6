"""Child processes that end when their parent does, however it ends.

The standard input of a child is a pipe from its parent, which the system closes when
the parent is gone, killed or not: a thread of the child waits for that. On Linux the
kernel kills the child at once, even inside a computation that lets no thread run.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

_PARENT = "KERAS_ATTN_PARENT"
# Of Linux: the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1
# Between asking children to end and ending them.
_GRACE_SECONDS = 5.0
# What ends a command from outside: `kill`, `timeout`, a container that is stopped, a
# terminal that is closed. Ctrl-C is handled by `interruption`.
_ENDING = ("SIGTERM", "SIGHUP")


class EndedError(BaseException):
    """A signal asks this process to end.

    Attributes:
        code: The exit code by which shells report that signal.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def start_child(
    program: Sequence[str], environment: Mapping[str, str], *, quiet: bool = False
) -> subprocess.Popen:
    """Starts a program that calls `end_with_parent`.

    Args:
        program: The program and its arguments.
        environment: Its environment variables.
        quiet: Whether its standard output is dropped.
    """
    variables = {**environment, _PARENT: str(os.getpid())}
    output = subprocess.DEVNULL if quiet else None
    return subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=output, env=variables
    )


def parent_id() -> int | None:
    """The process that has started this one by `start_child`; None if none has."""
    parent = os.environ.get(_PARENT)
    return int(parent) if parent and int(parent) == os.getppid() else None


def end_with_parent() -> None:
    """Makes this process end when its parent does, if `start_child` has started it."""
    if _PARENT not in os.environ:
        return
    if sys.platform == "linux":
        import ctypes

        # A system without it has the thread.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have ended before.
    if parent_id() is None:
        os._exit(1)
    threading.Thread(target=_wait_for_end, name="end_with_parent", daemon=True).start()


def _wait_for_end() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os._exit(1)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within this block a signal that would end the process raises an `EndedError`.

    So the block can end its children first. Only in the main thread; a process that was
    started to ignore a signal, as by `nohup`, goes on ignoring it.
    """

    def end(number, frame):
        # The next one ends the process, and with it the children.
        signal.signal(number, signal.SIG_DFL)
        raise EndedError(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in _ENDING:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_children(children: Sequence[subprocess.Popen], how: int) -> None:
    """Ends the children that still run, and waits for them.

    Args:
        children: From `start_child`.
        how: The signal that asks them to; what does not end within 5 s is killed.
    """
    for child in children:
        if child.poll() is None:
            child.send_signal(how)
    deadline = time.monotonic() + _GRACE_SECONDS
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdin is not None:
            child.stdin.close()
