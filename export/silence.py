"""Hide the output of converters and TensorFlow, and quote it if they fail.

Imports neither: the command line silences TensorFlow before it is imported.
"""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator

_LOGGERS = ("tensorflow", "absl", "tf2onnx", "tf2onnx.tfonnx", "tf2onnx.tf_loader")
_QUOTED_CHARACTERS = 2000


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Silences libraries: Python logs, warnings, and what C++ writes to stderr.

    If the block raises an exception, the end of the output is added to it as a note:
    often only the output states the cause.
    """
    with contextlib.ExitStack() as stack:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        import tempfile  # Here, so that `keras-attn --help` starts quickly.

        captured = stack.enter_context(tempfile.TemporaryFile())
        stack.enter_context(_stderr_to(captured.fileno()))
        try:
            yield
        except Exception as error:
            captured.seek(0)
            text = captured.read().decode(errors="replace").strip()
            if text:
                error.add_note("Captured output: " + text[-_QUOTED_CHARACTERS:])
            raise


@contextlib.contextmanager
def _stderr_to(descriptor: int) -> Iterator[None]:
    """Redirects file descriptor 2, because C++ does not use `sys.stderr`."""
    try:
        original = os.dup(2)
    except OSError:  # A daemon may run without stderr.
        yield
        return
    sys.stderr.flush()
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
