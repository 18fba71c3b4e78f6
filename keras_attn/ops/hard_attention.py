"""Sampled locations of hard attention, and attention penalties over a whole text.

Legend: B batch, T steps, S locations.
"""

from keras import ops

# The smallest probability whose logarithm is taken, and the smallest random number.
_TINY = 1e-30


def sampled_places(weights, uniforms):
    """Samples one location for each row of probabilities.

    The location is the argmax of `log α_i - log(-log u_i)`, which has the probabilities
    α (Gumbel 1954). It has no gradient.

    Args:
        weights: α, (..., S), probabilities.
        uniforms: u, (..., S), independent random numbers in [0, 1).

    Returns:
        One-hot vectors, (..., S), in the dtype of the weights; zero where all
        probabilities are zero.
    """
    uniforms = ops.maximum(uniforms, ops.cast(_TINY, uniforms.dtype))
    noise = ops.negative(ops.log(ops.negative(ops.log(uniforms))))
    logits = ops.log(ops.maximum(weights, _TINY))
    return _one_hot(ops.add(logits, ops.cast(noise, weights.dtype)), weights)


def most_probable_places(weights):
    """One-hot vectors of the largest probabilities.

    Args:
        weights: α, (..., S), probabilities.

    Returns:
        (..., S), zero where all probabilities are zero.
    """
    return _one_hot(weights, weights)


def _one_hot(scores, weights):
    """One-hot vectors of the largest scores; zeros where all weights are zero."""
    locations = ops.arange(ops.shape(weights)[-1], dtype="int32")
    # Keras' `argmax` on TensorFlow uses operations that LiteRT and ONNX lack.
    best = ops.top_k(scores, 1)[1]
    is_best = ops.logical_and(ops.equal(locations, best), weights > 0)
    return ops.cast(is_best, weights.dtype)


def coverage_penalty(weights, is_real):
    """`Σ_i (1 - Σ_t α_ti)²`: each location should get a total attention of 1.

    Args:
        weights: α, (B, T, S), probabilities over the locations at each step.
        is_real: (B, T), 1 at steps that count, 0 elsewhere.

    Returns:
        (B,).

    Reference:
        Xu et al. 2015, section 4.2.1, equation 14 (arXiv:1502.03044).
    """
    counted = ops.multiply(weights, ops.expand_dims(is_real, -1))
    return ops.sum(ops.square(1.0 - ops.sum(counted, axis=1)), axis=-1)


def places_log_probability(places, weights, is_real):
    """`log p(s) = Σ_t log α_t,s_t`, for the locations that were sampled.

    Args:
        places: One-hot vectors of the locations s_t, (B, T, S).
        weights: α, (B, T, S).
        is_real: (B, T), 1 at steps that count, 0 elsewhere.

    Returns:
        (B,), in nats.
    """
    logs = ops.log(ops.maximum(weights, _TINY))
    return ops.sum(ops.sum(places * logs, axis=-1) * is_real, axis=-1)


def attention_entropy(weights, is_real):
    """`Σ_t H(α_t)`, with `H(α) = -Σ_i α_i log α_i`.

    Args:
        weights: α, (B, T, S).
        is_real: (B, T), 1 at steps that count, 0 elsewhere.

    Returns:
        (B,), in nats.
    """
    logs = ops.log(ops.maximum(weights, _TINY))
    return ops.sum(-ops.sum(weights * logs, axis=-1) * is_real, axis=-1)
