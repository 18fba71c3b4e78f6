"""Attention by distance, as pure functions (Transformer-XL and XLNet).

How much query i attends to key j depends on what stands there, on how far apart
they are, and on whether both are of one segment:

    e_ij = ((q_i + u) · k_j  +  (q_i + v) · r_{i-j}  +  (q_i + w) · s_ij) / √H

`q_i · k_j` and `u · k_j` are the terms (a) and (c) of Transformer-XL, `q_i · r` and
`v · r` its (b) and (d); `s_ij` is XLNet's: one vector for "same segment", another for
"different segments". u, v and w are learned and the same for every query.

Reference: Dai et al. 2019, "Transformer-XL", section 3.3 (arXiv:1901.02860); Yang et
al. 2019, "XLNet", section 2.5 (arXiv:1906.08237).

Legend: B batch, T queries, S keys, of which the queries are the last T, R = T + S
distances, N heads, H head size, D width.
"""

import math

from keras import ops

from keras_attn.ops.attention import dot_scores


def relative_distances(query_length, key_length):
    """The distances `i - j` there are, the largest first: S, S-1, …, 1-T.

    Queries are the last T of the S keys, so no key is S away; the first distance is
    there for `relative_shift`, whose rows it makes one longer.

    Args:
        query_length: T.
        key_length: S.

    Returns:
        (R,) int32.
    """
    # A length that is not a symbol stays a number, which JAX needs for `arange`.
    steps = ops.arange(query_length + key_length, dtype="int32")
    return ops.subtract(key_length, steps)


def relative_sinusoids(distances, dim, max_wavelength=10_000):
    """All sines, then all cosines: `[sin(d / w^(2i/D)); cos(d / w^(2i/D))]`.

    Other than for the Transformer's positions, the two do not take turns.

    Args:
        distances: Whole numbers, (R,).
        dim: D; of an odd one the last cosine is left out.
        max_wavelength: w; wavelengths run from 2π to 2πw positions.

    Returns:
        (R, D) in float32.
    """
    exponents = ops.arange((dim + 1) // 2, dtype="float32") * (2.0 / dim)
    frequencies = ops.exp(exponents * -math.log(max_wavelength))
    angles = ops.expand_dims(ops.cast(distances, "float32"), -1) * frequencies
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)[:, :dim]


def relative_shift(scores, key_length):
    """From scores by distance to scores by key: `shifted_ij = scores_{i, i-j}`.

    Row i starts i places further right than the last row. Read as one long line,
    rows that are one shorter than they were start one place further left each, which
    is that very shift: no gather is needed.

    Args:
        scores: (B, N, T, R), the distances as `relative_distances` has them.
        key_length: S.

    Returns:
        (B, N, T, S).
    """
    batch, heads, length, distances = ops.shape(scores)
    line = ops.reshape(scores, (batch, heads, distances, length))
    line = line[:, :, 1:]
    rows = ops.reshape(line, (batch, heads, length, distances - 1))
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
    """The scores `e_ij` at the top of this file.

    Args:
        query: q, (B, N, T, H).
        key: k, (B, N, S, H).
        position_key: r, (1, N, R, H), of the distances of `relative_distances`.
        content_bias: u, (N, H).
        position_bias: v, (N, H).
        segment_bias: w, (N, H).
        segment_embedding: s of one and of different segments, (2, N, H).
        same_segment: (B, T, S), True = one segment. None leaves the third term out.

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
    same, different = ops.split(by_segment, 2, axis=-1)  # (B, N, T, 1) each.
    is_same = ops.expand_dims(ops.cast(same_segment, "bool"), 1)
    return ops.add(scores, ops.where(is_same, same, different))
