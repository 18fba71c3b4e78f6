"""The reconstruction loss of DALL·E's discrete VAE.

Legend: B batch, H and W pixels, C channels.
"""

import math

from keras import ops

from keras_attn.kernels.precision import at_least_float32


def logit_laplace_loss(pixels, statistics):
    """`-log p(x)` of pixels whose logit has a Laplace distribution, in nats.

    `log(2b) + log(x (1 - x)) + |logit(x) - μ| / b`. Unlike the density of a Laplace
    or a normal distribution, `p` has no mass outside of (0, 1), the range of pixels.

    Args:
        pixels: x, in (0, 1), as from `ops.map_pixels`, (B, H, W, C).
        statistics: μ in the first C channels, `log b` in the others, (B, H, W, 2C).

    Returns:
        (B, H, W, C), one number per sub-pixel, in at least float32.

    Reference:
        Ramesh et al. 2021, "Zero-Shot Text-to-Image Generation", appendix A.3
        (arXiv:2102.12092).
    """
    pixels = at_least_float32(pixels)
    mean, log_scale = ops.split(ops.cast(statistics, pixels.dtype), 2, axis=-1)
    log_x, log_rest = ops.log(pixels), ops.log1p(ops.negative(pixels))
    distance = ops.abs(ops.subtract(ops.subtract(log_x, log_rest), mean))
    return (
        math.log(2.0)
        + log_scale
        + log_x
        + log_rest
        + ops.multiply(distance, ops.exp(ops.negative(log_scale)))
    )
