"""Builds a model without allocating its weights, and undoes a build."""

import collections
import contextlib
from collections.abc import Iterator

import keras
from keras.src.backend.common import global_state


@contextlib.contextmanager
def undone(only_on_error: bool = False) -> Iterator[None]:
    """Restores the global state of Keras on exit.

    This is the state of the current thread: scopes, counters of layer names, and
    variables that are not initialized yet, which the end of any later scope would
    allocate.

    Args:
        only_on_error: Whether to restore it only after an exception.
    """
    state = vars(global_state.GLOBAL_STATE_TRACKER)
    before = {name: _copied(value) for name, value in state.items()}
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        if not (succeeded and only_on_error):
            state = vars(global_state.GLOBAL_STATE_TRACKER)
            state.clear()
            state.update(before)


def _copied(value):
    # Other values, such as scopes and random generators, are never modified in place.
    if isinstance(value, list | dict | collections.Counter):
        return value.copy()
    return value


@contextlib.contextmanager
def without_allocating() -> Iterator[None]:
    """Variables created here are not initialized until `allocate` is called."""
    with keras.StatelessScope(initialize_variables=False):
        yield


def allocate() -> None:
    """Initializes the variables created `without_allocating`."""
    # The end of an outermost scope allocates them.
    with keras.StatelessScope():
        pass
