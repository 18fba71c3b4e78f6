"""Attention: heads, scores and probabilities.

Legend: B batch, T query length, S key length, N heads, G key/value heads,
H head size, D width.

Masks are boolean, True = attend. Probabilities are computed in at least float32, for
inputs of any precision. A query whose keys are all masked gets probabilities of zero,
not NaN.
"""

import math
from typing import Any

from keras import ops

from keras_attn.kernels.lean_attention import lean_attention
from keras_attn.kernels.precision import at_least_float32
from keras_attn.kernels.recompute import recomputed
from keras_attn.ops.masks import causal_mask, merge_masks
from keras_attn.ops.weight_products import project

# Added to a masked score: finite, so that no row becomes NaN, and low enough that the
# probability is exactly zero in float32.
MASKED = -1e9


def dot_scores(query, key, scale=1.0):
    """`e_ts = scale · q_t · k_s`.

    With independent components of variance 1 a dot product over D components has
    variance D, and a softmax over such logits is nearly one-hot: hence the
    `scale = 1/√D` of scaled dot-product attention (Vaswani et al. 2017, 3.2.1).

    Args:
        query: (..., T, D).
        key: (..., S, D).
        scale: Factor of the scores, applied to the query before the product so that
            half precision does not overflow.

    Returns:
        Scores, (..., T, S).
    """
    if scale != 1.0:
        query = ops.multiply(query, ops.cast(scale, query.dtype))
    return ops.matmul(query, ops.swapaxes(key, -1, -2))


def additive_scores(query, key, weight):
    """`e_ts = vᵀ tanh(q_t + k_s)` (Bahdanau et al. 2015, A.1.2).

    Args:
        query: Projected queries `W s`, (B, T, D).
        key: Projected keys `U h`, (B, S, D).
        weight: `v`, (D, 1).

    Returns:
        Scores, (B, T, S).
    """
    return recomputed(_additive_scores, query, key, weight)


def _additive_scores(query, key, weight):
    hidden = ops.tanh(ops.add(ops.expand_dims(query, 2), ops.expand_dims(key, 1)))
    return ops.squeeze(project(hidden, weight), -1)


def attention_weights(scores, mask=None, bias=None):
    """Probabilities over the keys: `softmax(scores + bias)`, zero where masked.

    Args:
        scores: (..., T, S).
        mask: Boolean, broadcastable to `scores`; True = attend.
        bias: Added to the scores, broadcastable to them. Entries below -1e9, such as
            -inf, count as -1e9, so a row of them still attends: to exclude keys, use
            `mask`.

    Returns:
        Probabilities in at least float32, in the shape of `scores`. A row whose mask is
        False everywhere is zero everywhere.
    """
    scores = at_least_float32(scores)
    if bias is not None:
        # On TensorFlow `ops.add` takes a bias (1, 1, T, 1) for one of the columns, if
        # there are T of them.
        scores = scores + ops.maximum(ops.cast(bias, scores.dtype), MASKED)
    # Keras warns about a softmax over one element, which is a single key here.
    softmax = _softmax_of_one if scores.shape[-1] == 1 else ops.softmax
    if mask is None:
        return softmax(scores)
    visible = ops.cast(ops.cast(mask, "bool"), scores.dtype)
    # Subtracted: TensorFlow fuses a sum with the product before it into one operation,
    # which takes 250 times as long for a mask (1, 1, T, S), such as the causal mask
    # (8 x 8 heads of 77 x 64 on a CPU: 326 against 1.3 ms, TensorFlow 2.21).
    hidden = ops.multiply(ops.subtract(1, visible), -MASKED)
    weights = softmax(ops.subtract(scores, hidden))
    # The softmax of a fully masked row is not zero.
    return ops.multiply(weights, visible)


def scaled_dot_product_attention(
    query,
    key,
    value,
    *,
    cache=None,
    mask=None,
    padding_mask=None,
    is_causal=False,
    bias=None,
    scale=None,
    dropout=None,
    return_weights=True,
) -> tuple[Any, Any]:
    """`softmax(q kᵀ / √H) v` for each head (Vaswani et al. 2017, 3.2).

    With fewer key/value heads than query heads, consecutive query heads share one
    (grouped-query attention, Ainslie et al. 2023, arXiv:2305.13245) without repeating
    the keys in memory. Cached keys are not concatenated with the new keys, which would
    copy the cache; their scores are concatenated instead.

    Without `return_weights`, long sequences are attended to in blocks, or by a kernel
    of the accelerator: the outputs are the same up to rounding, and the memory grows
    with the length, not with its square (`kernels.lean_attention`).

    Args:
        query: (B, N, T, H).
        key: (B, G, S, H), N a multiple of G.
        value: (B, G, S, V).
        cache: Keys (B, G, L, H) and values (B, G, L, V) of earlier positions, or None.
            They come before `key` and `value` in the mask, the bias and the
            probabilities, whose last axis then has the length L + S.
        mask: Boolean, broadcastable to (B, N, T, S); True = attend.
        padding_mask: (B, S), True = a real key, or None.
        is_causal: Whether query t attends to the keys 0 … t only.
        bias: Added to the scores, broadcastable to (B, N, T, S).
        scale: Factor of the scores. None = 1/√H.
        dropout: A function to apply to the probabilities, or None. In blocks only a
            `kernels.dropout.RandomDropout` can be applied.
        return_weights: Whether to return the probabilities.

    Returns:
        The weighted sums of the values, (B, N, T, V), and the probabilities before
        dropout, (B, N, T, S), or None if they were not requested.
    """
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    if (
        not return_weights
        and cache is None
        and all(x is None or len(x.shape) == 4 for x in (mask, bias))
    ):
        options = {"scale": scale, "bias": bias, "mask": mask}
        options |= {"padding_mask": padding_mask, "is_causal": is_causal}

        def at_once(dropout):
            return _by_all_scores(query, key, value, dropout=dropout, **options)[0]

        outputs = lean_attention(query, key, value, at_once, dropout=dropout, **options)
        return outputs, None
    outputs, weights = _by_all_scores(
        query,
        key,
        value,
        cache=cache,
        mask=mask,
        padding_mask=padding_mask,
        is_causal=is_causal,
        bias=bias,
        scale=scale,
        dropout=dropout,
    )
    return outputs, weights if return_weights else None


def _by_all_scores(
    query,
    key,
    value,
    *,
    scale,
    bias,
    mask,
    padding_mask,
    is_causal,
    dropout,
    cache=None,
):
    """Outputs and probabilities of `scaled_dot_product_attention`."""
    batch, heads, length, size = ops.shape(query)
    groups = key.shape[1]
    causal = causal_mask(length, ops.shape(key)[2]) if is_causal else None
    mask = merge_masks(padding_mask=padding_mask, attention_mask=mask, causal=causal)
    rows = _known_or_rest(heads // groups * length)
    if groups != heads:
        # The queries of a group side by side: (B, N, T, H) -> (B, G, N/G·T, H).
        query = ops.reshape(query, (batch, groups, rows, size))
    scores = dot_scores(query, key, scale)
    if cache is not None:
        cached_scores = dot_scores(query, cache[0], scale)
        scores = ops.concatenate([cached_scores, scores], axis=-1)
    if groups != heads:
        keys = _known_or_rest(ops.shape(scores)[-1])
        scores = ops.reshape(scores, (batch, heads, length, keys))
    weights = attention_weights(scores, mask, bias)
    dropped = ops.cast(weights, value.dtype)
    if dropout is not None:
        dropped = dropout(dropped)
    if groups != heads:
        dropped = ops.reshape(dropped, (batch, groups, rows, ops.shape(dropped)[-1]))
    if cache is None:
        outputs = ops.matmul(dropped, value)
    else:
        new = ops.shape(value)[2]
        outputs = ops.add(
            ops.matmul(dropped[..., :-new], cache[1]),
            ops.matmul(dropped[..., -new:], value),
        )
    if groups != heads:  # (B, G, N/G·T, V) -> (B, N, T, V)
        outputs = ops.reshape(outputs, (batch, heads, length, value.shape[-1]))
    return outputs, weights


def _known_or_rest(size):
    """A size for `reshape`: -1 if it is unknown. JAX infers none of an empty batch."""
    return size if isinstance(size, int) else -1


def split_heads(inputs, num_heads):
    """(B, T, N·H) -> (B, N, T, H).

    Args:
        inputs: (B, T, N·H).
        num_heads: N.
    """
    batch, length, width = ops.shape(inputs)
    heads = ops.reshape(inputs, (batch, length, num_heads, width // num_heads))
    return ops.transpose(heads, (0, 2, 1, 3))


def merge_heads(inputs):
    """(B, N, T, H) -> (B, T, N·H).

    Args:
        inputs: (B, N, T, H).
    """
    batch, heads, length, size = ops.shape(inputs)
    return ops.reshape(
        ops.transpose(inputs, (0, 2, 1, 3)), (batch, length, heads * size)
    )


def maxout(inputs, pieces=2):
    """The maximum of every `pieces` consecutive units (Goodfellow et al. 2013).

    Args:
        inputs: (..., D·pieces).
        pieces: Number of units per output.

    Returns:
        (..., D).
    """
    shape = ops.shape(inputs)
    split = ops.reshape(inputs, (*shape[:-1], shape[-1] // pieces, pieces))
    return ops.max(split, axis=-1)


def _softmax_of_one(scores):
    """Ones, with a gradient of zero for the scores."""
    return ops.exp(ops.subtract(scores, scores))
