"""Where attention layers hand over their scores when somebody is looking.

A layer asks `is_recording()` and, if so, calls `record(layer, scores)`. Nobody
looking costs one attribute look-up. The recorder is thread-local, so a data
pipeline or another model in another thread is never recorded by accident.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from keras import ops

_local = threading.local()


@contextlib.contextmanager
def record_attention_scores() -> Iterator[dict[str, Any]]:
    """Collects the scores of every attention layer called in this thread.

    Only eager calls are seen: inside a compiled function there is no value yet.

    Yields:
        A dictionary that fills up as layers are called: the layer's `path` to its
        scores, (B, heads, T, S). A layer called again gets `path:1`, `path:2`, …

    Example:
        ```python
        with record_attention_scores() as scores:
            model(inputs)
        ```
    """
    outer = getattr(_local, "scores", None)
    _local.scores = {}
    try:
        yield _local.scores
    finally:
        _local.scores = outer


def is_recording() -> bool:
    """Whether a recorder is active in this thread."""
    return getattr(_local, "scores", None) is not None


def record(layer, scores) -> None:
    """Hands the scores of one call, (B, heads, T, S), to the active recorder.

    Args:
        layer: The layer that attends; its `path` becomes the key.
        scores: A tensor. A symbol of a function being compiled is left out.
    """
    if not _has_value(scores):
        return
    recorded = _local.scores
    key, repeat = layer.path, 0
    while key in recorded:
        repeat += 1
        key = f"{layer.path}:{repeat}"
    recorded[key] = scores


def _has_value(tensor) -> bool:
    try:
        bool(ops.any(tensor))
    except TypeError:  # TensorFlow and JAX can't tell of a symbol.
        return False
    return True
