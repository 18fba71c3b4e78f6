"""Selects the form of attention where the probabilities are not returned.

On a CPU blocks (`blocked_attention`), on a TPU Splash (`splash_attention`), on an
NVIDIA GPU cuDNN (`cudnn_attention`), and blocks for what these two do not have: all in
memory that grows with the lengths, and not with their product. Each is chosen only
where it is measured to gain, on accelerators in memory.
"""

import threading
from contextlib import AbstractContextManager
from typing import Any

import keras

from keras_attn.kernels.blocked_attention import are_blocks_compiled, blocked_attention
from keras_attn.kernels.cudnn_attention import cudnn_attends_to, cudnn_attention
from keras_attn.kernels.devices import platform
from keras_attn.kernels.dropout import RandomDropout
from keras_attn.kernels.dropout import dropout as kernels_dropout
from keras_attn.kernels.runtime import (
    has_fixed_shape,
    infers_shapes,
    is_compiled_by_xla,
    is_differentiated_twice,
    is_tensorflow,
    is_tracing,
    thread_setting,
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
# The same where a graph learns the lengths when it runs: XLA does not compile it anew
# for each.
_UNKNOWN_PAIRS = 1024**2
# The same for cuDNN (`benchmarks/gpu.py`, an H100, from the smallest length measured).
_CUDNN_PAIRS = 512**2
# The same for Splash. No TPU was at hand: it is the compiler's memory that gains.
_SPLASH_PAIRS = 1024**2
# The same for blocks on GPUs and TPUs, where neither applies: with a bias, another mask
# or dropout. For their memory too: there the scores of 8 heads take 512 MiB.
_ACCELERATOR_PAIRS = 4096**2

# The scope of the operations that `whole_scores` has in place of parts: `models.plan`
# counts their products, and no memory for what parts compute again.
SCOPE = "attended_in_parts"

_local = threading.local()


def whole_scores() -> AbstractContextManager[None]:
    """Within this block attention computes all scores at once, as exported files do."""
    return thread_setting(_local, "whole", True)


def attend_by_length(tensors, in_parts, at_once, dropout=None) -> Any:
    """Attention a chunk of queries at a time (`query_chunks`), or by all scores.

    Args:
        tensors: Queries (B, N, T, H), keys (B, N, S, H) and values (B, N, S, V).
        in_parts: Computes the outputs in chunks; gets the rate of the dropout and its
            seed, which is None without any.
        at_once: Computes the outputs by all scores; gets the dropout, a function or
            None.
        dropout: A function that drops probabilities, or None.

    Returns:
        What one of the functions returns. A graph that does not know the lengths has
        both, and runs one of them.
    """
    if not (dropout is None or isinstance(dropout, RandomDropout)):
        return at_once(dropout)
    if getattr(_local, "whole", False):
        return _whole(tensors, _CHUNKED_PAIRS, at_once, dropout)
    return _by_length(tensors, _CHUNKED_PAIRS, in_parts, at_once, dropout)


def _whole(tensors, least, at_once, dropout):
    """All scores at once, in a scope where parts would take their place."""
    query, key, *_ = tensors
    is_long = all(has_fixed_shape(tensor) for tensor in tensors)
    if not is_long or query.shape[2] * key.shape[2] < least:
        return at_once(dropout)
    with keras.name_scope(SCOPE):
        return at_once(dropout)


def _by_length(tensors, least, in_parts, at_once, dropout):
    """`in_parts` from a number of pairs of a query and a key on, else `at_once`."""
    query, key, value = tensors
    if all(has_fixed_shape(tensor) for tensor in tensors):
        pairs = query.shape[2] * key.shape[2]
        if pairs < least or query.shape[0] == 0:  # Empty tensors have no maximum.
            return at_once(dropout)
        return in_parts(*_drawn(dropout))
    # Elsewhere than in a graph of TensorFlow a length is unknown only to shapes.
    if not is_tracing() or infers_shapes():
        return at_once(dropout)
    shape = (*query.shape[:3], value.shape[3])
    if is_compiled_by_xla():
        outputs = in_parts(*_drawn(dropout))
        outputs.set_shape(shape)
        return outputs
    # TensorFlow cannot differentiate twice what chooses between two gradients.
    if is_differentiated_twice(tensors):
        return at_once(dropout)
    import tensorflow as tf

    rate, seed = _drawn(dropout)

    def drop(weights):
        return kernels_dropout(weights, rate, seed)

    lengths = [tf.shape(tensor, tf.int64)[2] for tensor in (query, key)]
    outputs = tf.cond(
        lengths[0] * lengths[1] >= least,
        lambda: in_parts(rate, seed),
        lambda: at_once(None if seed is None else drop),
    )
    outputs.set_shape(shape)
    return outputs


def _drawn(dropout):
    """The rate and the seed of a dropout; 0 and None without any."""
    return (0.0, None) if dropout is None else (dropout.rate, dropout.next_seed())


def lean_attention(
    query,
    key,
    value,
    at_once,
    *,
    scale,
    bias=None,
    mask=None,
    padding_mask=None,
    is_causal=False,
    dropout=None,
) -> Any:
    """Attention without a tensor of all scores, if one of its forms gains.

    Where a graph of TensorFlow does not know the lengths, it chooses when it runs.

    Args:
        query: (B, N, T, H).
        key: (B, G, S, H), N a multiple of G.
        value: (B, G, S, V).
        at_once: Computes the outputs by all scores; gets the dropout, a function or
            None.
        scale: Factor of the scores.
        bias: Added to the scores, (B, N, T, S) or 1 along any axis; or None.
        mask: Boolean, (B, N, T, S) or 1 along any axis, True = attend; or None.
        padding_mask: Boolean, (B, S), True = a real key; or None.
        is_causal: Whether query t attends to the keys 0 … t only.
        dropout: A function that drops probabilities, or None.

    Returns:
        (B, N, T, V) in the dtype of `value`.
    """
    tensors = (query, key, value)
    if getattr(_local, "whole", False):
        return _whole(tensors, _PAIRS[True, bool(is_causal)], at_once, dropout)
    is_known = all(has_fixed_shape(tensor) for tensor in tensors)
    kind = platform()
    is_plain = bias is None and mask is None and dropout is None
    masks = {"padding_mask": padding_mask, "is_causal": is_causal}
    if is_known and kind != "cpu" and is_plain and not is_tensorflow():
        if not isinstance(query.shape[0], int):  # Keras infers shapes.
            return at_once(dropout)
        pairs = query.shape[2] * key.shape[2]
        if kind == "tpu" and pairs >= _SPLASH_PAIRS:
            return splash_attention(query, key, value, scale=scale, **masks)
        if (
            kind == "gpu"
            and pairs >= _CUDNN_PAIRS
            and cudnn_attends_to(query, key, value, **masks)
        ):
            return cudnn_attention(query, key, value, scale=scale, **masks)
    if not (dropout is None or isinstance(dropout, RandomDropout)):
        return at_once(dropout)
    least = _ACCELERATOR_PAIRS
    if kind == "cpu":
        known = _PAIRS[are_blocks_compiled(), bool(is_causal)]
        least = known if is_known else _UNKNOWN_PAIRS

    def in_blocks(rate, seed):
        return blocked_attention(
            *tensors, scale=scale, bias=bias, mask=mask, **masks, rate=rate, seed=seed
        )

    return _by_length(tensors, least, in_blocks, at_once, dropout)
