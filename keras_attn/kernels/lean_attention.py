"""Which form of attention to compute where nobody asks for its probabilities.

On a CPU blocks (`blocked_attention`), on a TPU Splash (`splash_attention`), on an
NVIDIA GPU cuDNN (`cudnn_attention`), and blocks for what these two do not have: all in
memory that grows with the lengths, and not with their product. Each is chosen only
where it is measured to gain, on accelerators in memory.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from keras_attn.kernels.blocked_attention import are_blocks_compiled, blocked_attention
from keras_attn.kernels.cudnn_attention import cudnn_attends_to, cudnn_attention
from keras_attn.kernels.devices import platform
from keras_attn.kernels.dropout import RandomDropout
from keras_attn.kernels.runtime import (
    has_fixed_shape,
    is_tensorflow,
)
from keras_attn.kernels.splash_attention import splash_attention

# From how many pairs of a query and a key on blocks take about as long as all scores at
# once, or less (`benchmarks/lean.py`): (compiled by XLA, causal).
_PAIRS = {
    (True, True): 512**2,
    (True, False): 1024**2,
    (False, True): 1024**2,
    (False, False): 2048**2,
}
# The same for chunks of queries, where scores are not products of queries and keys.
_CHUNKED_PAIRS = 1024**2
# The same for cuDNN (`benchmarks/gpu.py`, an H100, from the smallest length measured).
_CUDNN_PAIRS = 512**2
# The same for Splash. No TPU was at hand: it is the compiler's memory that gains.
_SPLASH_PAIRS = 1024**2
# The same for blocks on GPUs and TPUs, where neither applies: with a bias, another mask
# or dropout. For their memory too: there the scores of 8 heads take 512 MiB.
_ACCELERATOR_PAIRS = 4096**2

_local = threading.local()


@contextlib.contextmanager
def whole_scores() -> Iterator[None]:
    """Within it, attention computes all scores at once, as exported files do."""
    before = getattr(_local, "whole", False)
    _local.whole = True
    try:
        yield
    finally:
        _local.whole = before


def prefers_chunks(query, key, dropout=None) -> bool:
    """Whether to attend a chunk of queries at a time, as in `query_chunks`.

    Args:
        query: (B, N, T, H).
        key: (B, N, S, H).
        dropout: A function that drops probabilities, or None.
    """
    if getattr(_local, "whole", False):
        return False
    if dropout is not None and not isinstance(dropout, RandomDropout):
        return False
    if not all(has_fixed_shape(tensor) for tensor in (query, key)):
        return False
    return query.shape[2] * key.shape[2] >= _CHUNKED_PAIRS


def lean_attention(
    query,
    key,
    value,
    *,
    scale,
    bias=None,
    mask=None,
    padding_mask=None,
    is_causal=False,
    dropout=None,
) -> Any:
    """Attention without a tensor of all scores, if one of its forms gains.

    Never for unknown lengths: which form is the better one depends on them.

    Args:
        query: (B, N, T, H).
        key: (B, G, S, H), N a multiple of G.
        value: (B, G, S, V).
        scale: Factor of the scores.
        bias: Added to the scores, (B, N, T, S) or 1 along any axis; or None.
        mask: Boolean, (B, N, T, S) or 1 along any axis, True = attend; or None.
        padding_mask: Boolean, (B, S), True = a real key; or None.
        is_causal: Whether query t attends to the keys 0 … t only.
        dropout: A function that drops probabilities, or None.

    Returns:
        (B, N, T, V) in the dtype of `value`, or None if all scores at once are the
        better form, or the only one.
    """
    if getattr(_local, "whole", False):
        return None
    if not all(has_fixed_shape(tensor) for tensor in (query, key, value)):
        return None
    pairs = query.shape[2] * key.shape[2]
    kind = platform()
    is_plain = bias is None and mask is None and dropout is None
    if kind != "cpu" and is_plain and not is_tensorflow():
        if not isinstance(query.shape[0], int):  # Keras infers shapes.
            return None
        masks = {"padding_mask": padding_mask, "is_causal": is_causal}
        if kind == "tpu" and pairs >= _SPLASH_PAIRS:
            return splash_attention(query, key, value, scale=scale, **masks)
        if (
            kind == "gpu"
            and pairs >= _CUDNN_PAIRS
            and cudnn_attends_to(query, key, value, **masks)
        ):
            return cudnn_attention(query, key, value, scale=scale, **masks)
    least = _ACCELERATOR_PAIRS
    if kind == "cpu":
        least = _PAIRS[are_blocks_compiled(), bool(is_causal)]
    if pairs < least:
        return None
    rate, seed = 0.0, None
    if isinstance(dropout, RandomDropout):
        rate, seed = dropout.rate, dropout.next_seed()
    elif dropout is not None:
        return None
    return blocked_attention(
        query,
        key,
        value,
        scale=scale,
        bias=bias,
        mask=mask,
        padding_mask=padding_mask,
        is_causal=is_causal,
        rate=rate,
        seed=seed,
    )
