"""Records the scores of attention layers, without changing their outputs.

Every attention layer calls `record(layer, scores)`, which does nothing unless a
`record_attention_scores` block is active; `is_recording()` is for layers that would
have to compute the scores first. The recorder is thread-local, so a model that runs in
a different thread is not recorded.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from keras import ops

_local = threading.local()


@contextlib.contextmanager
def record_attention_scores() -> Iterator[dict[str, Any]]:
    """Collects the scores of every attention layer that is called in this thread.

    Only eager calls are recorded: a function that is being compiled has no values.

    Yields:
        A dictionary from a layer's `path` to its scores, (B, heads, T, S), which grows
        as layers are called. Later calls of a layer get the keys `path:1`, `path:2`, ….

    Example:
        ```python
        import numpy as np
        from keras_attn import layers
        from keras_attn.layers.recorder import record_attention_scores

        attention = layers.MultiHeadAttention(num_heads=2, key_dim=4)
        with record_attention_scores() as scores:
            attention(np.random.normal(size=(1, 3, 8)))
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
    """Adds the scores of one call to the active recorder, if there is one.

    Args:
        layer: The attention layer; its `path` is the key.
        scores: (B, heads, T, S). Symbolic tensors are not recorded.
    """
    if not is_recording() or not has_value(scores):
        return
    recorded = _local.scores
    key, repeat = layer.path, 0
    while key in recorded:
        repeat += 1
        key = f"{layer.path}:{repeat}"
    recorded[key] = scores


def has_value(tensor) -> bool:
    """Whether a tensor is not symbolic."""
    try:
        bool(ops.any(tensor))
    except TypeError:  # TensorFlow's and JAX's error for a symbolic tensor.
        return False
    return True
