"""Importing Keras and TensorFlow, which takes seconds: only in a command that runs."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Literal

from keras_attn.cli.terminal import debugging, working
from keras_attn.console import interruption


@contextlib.contextmanager
def importing_tensorflow(
    backend: Literal["tensorflow", "jax"] = "tensorflow",
) -> Iterator[None]:
    """Configures TensorFlow and silences what it prints while it is imported.

    A command puts its slow imports in the block:

        with importing_tensorflow():
            from keras_attn import models

    Args:
        backend: Keras' backend, unless Keras is imported already. Data and export need
            TensorFlow whichever it is.

    Raises:
        KeyboardInterrupt: if Ctrl-C was pressed and an import has swallowed it.
    """
    # Whichever backend Keras is configured for: most commands need TensorFlow's.
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = backend
    # TensorFlow leaves oneDNN off on CPUs without AVX512-VNNI; it is faster there, too.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if not debugging():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        # Retracing warnings and the like: nothing that a user of the command can act
        # on.
        logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
    with working("Starting TensorFlow"), interruption.ending_at_once():
        yield
        import tensorflow as tf

        if backend == "jax":
            # TensorFlow would take all of a GPU's memory.
            tf.config.set_visible_devices([], "GPU")
        # TensorFlow also logs when it first enumerates the devices.
        tf.config.list_logical_devices()
    # Some modules ignore any exception while they import an optional dependency.
    interruption.check()
