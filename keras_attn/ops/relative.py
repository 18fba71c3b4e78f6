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

import math

from keras import ops

from keras_attn.ops.attention import dot_scores
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

    by_distance = dot_scores(biased(position_bias), position_key, scale)
    scores = ops.add(
        dot_scores(biased(content_bias), key, scale),
        relative_shift(by_distance, ops.shape(key)[2]),
    )
    if same_segment is None:
        return scores
    embedding = ops.cast(ops.transpose(segment_embedding, (1, 0, 2)), query.dtype)
    by_segment = dot_scores(biased(segment_bias), ops.expand_dims(embedding, 0), scale)
    same, different = ops.split(by_segment, 2, axis=-1)  # (B, N, T, 1) each
    is_same = ops.expand_dims(ops.cast(same_segment, "bool"), 1)
    return ops.add(scores, ops.where(is_same, same, different))
