"""Observe and replace, from outside a model, the locations that max pooling chooses.

Every `MaxPoolWithIndices` passes its indices through `chosen`, which returns them
unchanged unless a `watched_switches` block is active in its thread.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_local = threading.local()


@dataclass(frozen=True)
class Switches:
    """One call of a max pooling layer.

    Attributes:
        layer: The `MaxPoolWithIndices`.
        inputs: The map that was pooled, (B, H, W, C).
        maxima: The maximum of each window, (B, h, w, C).
        indices: The location in each window that was returned, int32 of the same shape.
    """

    layer: Any
    inputs: Any
    maxima: Any
    indices: Any


@contextlib.contextmanager
def watched_switches(given: Iterable[Any] | None = None) -> Iterator[list[Switches]]:
    """Collects the results of max pooling layers called or traced in this thread.

    Args:
        given: The indices that the layers return instead of their own, in the order of
            the calls. None leaves their indices unchanged.

    Yields:
        A list, which grows with each call.
    """
    outer = getattr(_local, "watched", None)
    _local.watched = [], None if given is None else iter(given)
    try:
        yield _local.watched[0]
    finally:
        _local.watched = outer


def chosen(layer, inputs, maxima, indices):
    """The indices that a max pooling layer returns.

    Args:
        layer: The `MaxPoolWithIndices`.
        inputs: (B, H, W, C).
        maxima: (B, h, w, C).
        indices: int32 of the same shape.
    """
    watched = getattr(_local, "watched", None)
    if watched is None:
        return indices
    calls, given = watched
    indices = indices if given is None else next(given)
    calls.append(Switches(layer, inputs, maxima, indices))
    return indices
