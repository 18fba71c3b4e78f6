"""What a test needs of Keras' backend."""

import keras
import pytest


def skip_module_without_tensorflow(reason):
    """Skips the rest of the calling module on every other backend."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip(reason, allow_module_level=True)
