import keras
import pytest


@pytest.fixture
def dtype_policy(request):
    """Sets the global policy of the test's parameter, and takes it back."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)
