"""Building a model without allocating it, and undoing a build."""

import collections
import contextlib
from collections.abc import Iterator

import keras
from keras.src.backend.common import global_state


@contextlib.contextmanager
def undone(only_on_error: bool = False) -> Iterator[None]:
    """Puts Keras' global state back as it was at the end.

    Of this thread: its scopes, the names it has given, and the variables that are
    still to get their first values, which the end of any later scope would make.

    Args:
        only_on_error: Whether to do so only where an exception passes through.
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
    # Others, such as scopes and random generators, are replaced and never changed.
    if isinstance(value, list | dict | collections.Counter):
        return value.copy()
    return value


@contextlib.contextmanager
def without_allocating() -> Iterator[None]:
    """Variables made here get their first values by `allocate`."""
    with keras.StatelessScope(initialize_variables=False):
        yield


def allocate() -> None:
    """Gives the variables made `without_allocating` their first values."""
    # The end of a scope does so, unless it is inside of another.
    with keras.StatelessScope():
        pass
