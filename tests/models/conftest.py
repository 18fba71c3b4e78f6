import keras
import pytest

# Importing XLNet registers it, and the contract suite asks for every registered name:
# its tests join the suite together with the rest of its family, in issue B.
collect_ignore = ["test_xlnet.py"]


@pytest.fixture
def dtype_policy(request):
    """Sets the global policy of the test's parameter, and takes it back."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)
