"""Keep converters and TensorFlow quiet while all goes well, and quotable otherwise.

Imports neither: the command line has to mute TensorFlow before it is imported.
"""

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator

_LOGGERS = ("tensorflow", "absl", "tf2onnx", "tf2onnx.tfonnx", "tf2onnx.tf_loader")
_QUOTED_CHARACTERS = 2000


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Silences libraries: Python logs, warnings, and what C++ writes to stderr.

    An exception that passes through takes along, as a note, the end of what was
    said: the real reason is often there alone.
    """
    with contextlib.ExitStack() as stack:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        said = stack.enter_context(tempfile.TemporaryFile())
        stack.enter_context(_stderr_to(said.fileno()))
        try:
            yield
        except Exception as error:
            said.seek(0)
            text = said.read().decode(errors="replace").strip()
            if text:
                error.add_note("Said meanwhile: " + text[-_QUOTED_CHARACTERS:])
            raise


@contextlib.contextmanager
def _stderr_to(descriptor: int) -> Iterator[None]:
    """Points file descriptor 2 elsewhere: C++ does not ask for `sys.stderr`."""
    try:
        kept = os.dup(2)
    except OSError:  # A daemon may run without a stderr; then there is no noise.
        yield
        return
    sys.stderr.flush()
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
