"""Attention with relative positions (Transformer-XL and XLNet).

The score of query i and key j depends on the content of both, on their distance, and
on whether they are in the same segment:

    e_ij = ((q_i + u) · k_j  +  (q_i + v) · r_{i-j}  +  (q_i + w) · s_ij) / √H

`q_i · k_j` and `u · k_j` are the terms (a) and (c) of Transformer-XL, `q_i · r` and
`v · r` its terms (b) and (d). `s_ij` is XLNet's: one vector for the same segment, a
second one for different segments. u, v and w are learned biases, shared by all queries.

Reference: Dai et al. 2019, "Transformer-XL", section 3.3 (arXiv:1901.02860); Yang et
al. 2019, "XLNet", section 2.5 (arXiv:1906.08237).

Legend: B batch, T queries, which are the last T of the S keys, R = T + S distances,
N heads, H head size, D width.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_attn.kernels.dropout import dropout, fold_in
from keras_attn.kernels.lean_attention import attend_by_length
from keras_attn.kernels.query_chunks import attend_in_chunks
from keras_attn.ops.attention import attention_weights, dot_scores
from keras_attn.ops.positions import sinusoid_angles


def relative_distances(query_length, key_length):
    """All distances `i - j` between queries and keys, descending: S, S-1, …, 1-T.

    The queries are the last T of the S keys, so the distance S does not occur;
    `relative_shift` needs its column.

    Args:
        query_length: T.
        key_length: S.

    Returns:
        (R,) int32.
    """
    # JAX's `arange` needs known lengths as Python numbers.
    steps = ops.arange(query_length + key_length, dtype="int32")
    return ops.subtract(key_length, steps)


def relative_sinusoids(distances, dim, max_wavelength: float = 10_000):
    """All sines, then all cosines: `[sin(d / w^(2i/D)); cos(d / w^(2i/D))]`.

    In contrast to the Transformer's encoding, the two are not interleaved.

    Args:
        distances: Integers, (R,).
        dim: D. If it is odd, the last cosine is left out.
        max_wavelength: w; wavelengths run from 2π to 2πw positions.

    Returns:
        (R, D) in float32.
    """
    angles = sinusoid_angles(distances, dim, max_wavelength)
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)[:, :dim]


def relative_shift(scores, key_length):
    """Indexes scores by key instead of by distance: `shifted_ij = scores_{i, i-j}`.

    Each row must move one column further to the left than the row below it. Reading the
    flattened scores with rows that are one column shorter does exactly that, without a
    gather (Transformer-XL, appendix B).

    Args:
        scores: (B, N, T, R), the distances in the order of `relative_distances`.
        key_length: S.

    Returns:
        (B, N, T, S).
    """
    batch, heads, length, distances = ops.shape(scores)
    flattened = ops.reshape(scores, (batch, heads, distances, length))[:, :, 1:]
    rows = ops.reshape(flattened, (batch, heads, length, distances - 1))
    return rows[:, :, :, :key_length]


def relative_scores(
    query,
    key,
    position_key,
    content_bias,
    position_bias,
    *,
    segment_bias=None,
    segment_embedding=None,
    same_segment=None,
):
    """The scores `e_ij` of this module's equation.

    Args:
        query: q, (B, N, T, H).
        key: k, (B, N, S, H).
        position_key: r, (1, N, R, H), for the distances of `relative_distances`.
        content_bias: u, (N, H).
        position_bias: v, (N, H).
        segment_bias: w, (N, H).
        segment_embedding: s for the same and for different segments, (2, N, H).
        same_segment: (B, T, S), True = the same segment. None leaves out the third
            term.

    Returns:
        (B, N, T, S).
    """
    scale = 1.0 / math.sqrt(query.shape[-1])

    def biased(bias):
        return ops.add(query, ops.expand_dims(ops.cast(bias, query.dtype), 1))

    position_key = _of_each_row(position_key, query)
    by_distance = dot_scores(biased(position_bias), position_key, scale)
    scores = ops.add(
        dot_scores(biased(content_bias), key, scale),
        relative_shift(by_distance, ops.shape(key)[2]),
    )
    if same_segment is None:
        return scores
    embedding = ops.cast(ops.transpose(segment_embedding, (1, 0, 2)), query.dtype)
    embedding = _of_each_row(ops.expand_dims(embedding, 0), query)
    by_segment = dot_scores(biased(segment_bias), embedding, scale)
    same, different = ops.split(by_segment, 2, axis=-1)  # (B, N, T, 1) each
    is_same = ops.expand_dims(ops.cast(same_segment, "bool"), 1)
    return ops.add(scores, ops.where(is_same, same, different))


def _of_each_row(keys, query):
    """Keys of all rows, (1, N, R, H), as (B, N, R, H) if N is 1.

    TensorFlow 2.21 on a CPU with oneDNN multiplies (B, 1, T, H) by (1, 1, H, R) beyond
    its memory: wrong scores, or the end of the process.
    """
    if query.shape[1] != 1:
        return keys
    return ops.broadcast_to(keys, (ops.shape(query)[0], *ops.shape(keys)[1:]))


def relative_attention(
    query,
    key,
    value,
    position_key,
    content_bias,
    position_bias,
    *,
    segment_bias,
    segment_embedding,
    same_segment=None,
    mask=None,
    dropout=None,
    return_weights=True,
) -> tuple[Any, Any]:
    """The values, weighted by the softmax of the scores `e_ij`.

    Without `return_weights`, long sequences are attended to a chunk of queries at a
    time: the outputs are the same up to rounding, and the memory grows with the number
    of keys, not with the product of both lengths.

    Args:
        query: q, (B, N, T, H).
        key: k, (B, N, S, H).
        value: (B, N, S, H).
        position_key: As for `relative_scores`, like the arguments up to `same_segment`.
        content_bias: u.
        position_bias: v.
        segment_bias: w.
        segment_embedding: s.
        same_segment: (B, T, S) or None.
        mask: Boolean, broadcastable to (B, N, T, S); True = attend; or None.
        dropout: A function to apply to the probabilities, or None. In chunks only a
            `kernels.dropout.RandomDropout` can be applied.
        return_weights: Whether to return the probabilities.

    Returns:
        The weighted sums, (B, N, T, H), and the probabilities before dropout,
        (B, N, T, S), or None if they were not requested.
    """
    tensors = (key, value, position_key, content_bias, position_bias)
    if same_segment is not None:
        tensors += (segment_bias, segment_embedding)

    def at_once(dropout):
        scores = _scores(query, tensors, same_segment)
        weights = attention_weights(scores, mask)
        dropped = ops.cast(weights, value.dtype)
        if dropout is not None:
            dropped = dropout(dropped)
        return ops.matmul(dropped, value), weights

    if return_weights or not (mask is None or len(mask.shape) == 4):
        outputs, weights = at_once(dropout)
        return outputs, weights if return_weights else None
    pairs = () if same_segment is None else (ops.expand_dims(same_segment, 1),)
    pairs += () if mask is None else (mask,)

    def in_chunks(rate, seed):
        seeds = () if seed is None else (seed,)
        function = _chunk_function(rate, same_segment is not None, mask is not None)
        return attend_in_chunks(function, query, tensors, pairs, seeds)

    outputs = attend_by_length(
        (query, key, value), in_chunks, lambda dropout: at_once(dropout)[0], dropout
    )
    return outputs, None


def _scores(query, tensors, same_segment):
    """`relative_scores`, of the tensors in the order of `relative_attention`."""
    key, _, position_key, content_bias, position_bias, *segments = tensors
    segment_bias, segment_embedding = segments or (None, None)
    return relative_scores(
        query,
        key,
        position_key,
        content_bias,
        position_bias,
        segment_bias=segment_bias,
        segment_embedding=segment_embedding,
        same_segment=same_segment,
    )


@functools.cache
def _chunk_function(rate, has_segments, has_mask) -> Callable:
    """Attention of a chunk of queries to all keys, for `attend_in_chunks`."""

    def attend(start, query, tensors, pairs, seeds):
        key, value, position_key, *others = tensors
        rows, keys, distances = (ops.shape(x)[2] for x in (query, key, position_key))
        # Their distances, of which the first is not one of theirs: see
        # `relative_distances`. Queries of padding are after the last one.
        padded = ops.pad(position_key, [(0, 0), (0, 0), (rows, 0), (0, 0)])
        begin = (0, 0, distances - keys - start, 0)
        size = (*position_key.shape[:2], rows + keys, position_key.shape[3])
        near = ops.slice(padded, begin, size)
        same_segment = pairs[0][:, 0] if has_segments else None
        scores = _scores(query, (key, value, near, *others), same_segment)
        weights = attention_weights(scores, pairs[-1] if has_mask else None)
        weights = ops.cast(weights, value.dtype)
        if seeds:
            weights = dropout(weights, rate, fold_in(seeds[0], start))
        return ops.matmul(weights, value)

    return attend
