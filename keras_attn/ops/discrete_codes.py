"""Discrete codes of images: their relaxation, prior, schedules and pixels.

Legend: B batch, H and W pixels, h and w codes, V vocabulary.
"""

import math

from keras import ops

from keras_attn.kernels.precision import at_least_float32

# Pixels stay this far from 0 and 1, where a logit is infinite.
_MARGIN = 0.1


def gumbel_softmax(logits, uniform, temperature):
    """`softmax((logits + g) / τ)` with Gumbel noise `g = -log(-log u)`.

    A sample of a relaxed one-hot vector. As τ goes to 0, it becomes one-hot, and its
    position is a sample of `softmax(logits)`.

    Args:
        logits: (..., V).
        uniform: u, uniform random numbers in [0, 1), (..., V).
        temperature: τ, above 0: a scalar.

    Returns:
        (..., V), in at least float32; the last axis sums to 1.

    Reference:
        Jang et al. 2017 (arXiv:1611.01144); Maddison et al. 2017 (arXiv:1611.00712).
    """
    logits = at_least_float32(logits)
    # In float32 the largest u below 1 is 1 - 6e-8; 0 would give a logarithm of 0.
    uniform = ops.clip(ops.cast(uniform, logits.dtype), 1e-20, 1.0 - 6e-8)
    noise = ops.negative(ops.log(ops.negative(ops.log(uniform))))
    return ops.softmax(ops.divide(ops.add(logits, noise), temperature), axis=-1)


def most_probable_codes(logits):
    """The index of the largest logit, the first one of several.

    Args:
        logits: (..., V).

    Returns:
        int32 (...).
    """
    # Of integers: Keras' `argmax` of floats on TensorFlow uses operations that LiteRT
    # and ONNX lack.
    is_largest = ops.greater_equal(logits, ops.max(logits, axis=-1, keepdims=True))
    return ops.cast(ops.argmax(ops.cast(is_largest, "int32"), axis=-1), "int32")


def divergence_from_uniform(logits):
    """`KL(p ‖ uniform) = log V + Σ_v p_v log p_v` of `p = softmax(logits)`, in nats.

    Args:
        logits: (..., V).

    Returns:
        (...), in at least float32.
    """
    log_p = ops.log_softmax(at_least_float32(logits), axis=-1)
    negative_entropy = ops.sum(ops.multiply(ops.exp(log_p), log_p), axis=-1)
    return ops.add(negative_entropy, math.log(logits.shape[-1]))


def cosine_annealing(step, start, end, num_steps):
    """From `start` to `end` along half a cosine.

    `end + (start - end) · (1 + cos(π · min(step / num_steps, 1))) / 2`.

    Args:
        step: Number of updates made so far, a scalar.
        start: Value at step 0.
        end: Value from step `num_steps` on.
        num_steps: Number of updates in between.

    Returns:
        A float32 scalar.
    """
    progress = ops.divide(ops.cast(step, "float32"), float(num_steps))
    angle = ops.multiply(math.pi, ops.clip(progress, 0.0, 1.0))
    left = ops.multiply(0.5, ops.add(1.0, ops.cos(angle)))
    return ops.add(end, ops.multiply(start - end, left))


def map_pixels(images):
    """Pixels in [0, 1] to [0.1, 0.9], `0.8 x + 0.1`, whose logits are finite.

    Args:
        images: (B, H, W, channels).

    Returns:
        The same shape.
    """
    return ops.add(ops.multiply(images, 1 - 2 * _MARGIN), _MARGIN)


def unmap_pixels(pixels):
    """The inverse of `map_pixels`, `clip((x - 0.1) / 0.8, 0, 1)`.

    Args:
        pixels: (B, H, W, channels).

    Returns:
        The same shape.
    """
    scaled = ops.divide(ops.subtract(pixels, _MARGIN), 1 - 2 * _MARGIN)
    return ops.clip(scaled, 0.0, 1.0)
