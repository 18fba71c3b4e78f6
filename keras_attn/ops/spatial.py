"""Attention over the locations of an image, guided by a question.

Legend: B batch, T words, S locations, D width, U hidden units, C glimpses.
"""

from keras import ops

from keras_attn.kernels.precision import at_least_float32
from keras_attn.ops.attention import MASKED, attention_weights, dot_scores
from keras_attn.ops.weight_products import project


def word_guided_weights(words, places, padding_mask=None):
    """`softmax_s(max_t w_t · p_s)`: each location is scored by the word that fits best.

    Args:
        words: (B, T, D).
        places: (B, S, D).
        padding_mask: (B, T), True = a real word.

    Returns:
        The probabilities over the locations, (B, S), zeros for a row without a real
        word, and the correlations `w_t · p_s`, (B, T, S), zeros for padding. Both are
        in at least float32.

    Reference:
        Xu and Saenko 2016, equations 2 and 3 (arXiv:1511.05234).
    """
    correlations = at_least_float32(dot_scores(words, places))
    if padding_mask is None:
        return attention_weights(ops.max(correlations, axis=1)), correlations
    real = ops.expand_dims(ops.cast(padding_mask, "bool"), -1)  # (B, T, 1)
    visible = ops.cast(real, correlations.dtype)
    correlations = ops.multiply(correlations, visible)
    hidden = ops.multiply(ops.subtract(1, visible), MASKED)
    best = ops.max(ops.add(correlations, hidden), axis=1)
    return attention_weights(best, ops.any(real, axis=1)), correlations


def glimpse_scores(query, places, weight, dropout=None):
    """`e_cs = v_cᵀ relu(q + p_s)`: one score per location and glimpse.

    Args:
        query: A projected question, (B, U).
        places: Projected locations, (B, S, U).
        weight: The vectors v, (U, C).
        dropout: A function to apply to the hidden units, or None.

    Returns:
        Scores, (B, C, S).

    Reference:
        Kazemi and Elqursh 2017, section 3 (arXiv:1704.03162).
    """
    hidden = ops.relu(ops.add(ops.expand_dims(query, 1), places))
    if dropout is not None:
        hidden = dropout(hidden)
    return ops.swapaxes(project(hidden, weight), 1, 2)
