"""The errors of an export, and Ctrl-C while a converter runs."""

import contextlib
import signal
import threading
from collections.abc import Iterator

LEAVE_OUT = (
    "Leave this layer out: compute what it returns before the model, as in a "
    "`dataset.map`, and export `keras.Model(new_input, outputs)` of the layers after "
    "it; or export a SavedModel, which has such operators"
)
_LONGEST = 400


def in_one_line(error: BaseException) -> str:
    """The message of a converter or a runtime, without line breaks, cut if long."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


class ExportError(RuntimeError):
    """An artefact could not be written, does not run, or does not agree with Keras.

    Nothing is left on disk; an artefact that was at the target before is unchanged.
    """


class RefusedError(ExportError):
    """A converter or runtime does not support these operators at these shapes.

    Attributes:
        locations: Name scopes of the rejected operators in the traced graph.
        signatures: The signatures that contain them, where known.
        advice: What the caller may try.
        at_any_shape: Whether no other shape helps.
    """

    def __init__(
        self,
        message: str,
        locations: tuple[str, ...] = (),
        signatures: tuple[str, ...] = (),
        advice: str = "Build the layer from other operations, or export a SavedModel",
        at_any_shape: bool = False,
    ):
        super().__init__(message)
        self.locations = locations
        self.signatures = signatures
        self.advice = advice
        self.at_any_shape = at_any_shape


@contextlib.contextmanager
def reraising_interrupts() -> Iterator[None]:
    """Ends the block with `KeyboardInterrupt` if Ctrl-C was pressed in it.

    The converters call Python from C++. An interrupt that is raised in such a callback
    surfaces as an error of the converter, or not at all.

    Raises:
        KeyboardInterrupt: If Ctrl-C was pressed; replaces the block's exception, or is
            raised at its end.
    """
    previous = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    # Only the main thread has signal handlers; SIG_IGN and SIG_DFL are not callable.
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
