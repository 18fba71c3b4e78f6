"""Hinge losses of a generator and a discriminator.

Legend: B batch.
"""

from keras import ops


def hinge_discriminator_loss(real, fake):
    """`mean(max(0, 1 - D(x))) + mean(max(0, 1 + D(G(z))))`.

    Args:
        real: Scores of real images, (B, 1).
        fake: Scores of generated images, (B, 1).

    Returns:
        A scalar.

    Reference:
        Lim and Ye 2017 (arXiv:1705.02894); Zhang et al. 2019, equation 4
        (arXiv:1805.08318).
    """
    return ops.mean(ops.relu(1.0 - real)) + ops.mean(ops.relu(1.0 + fake))


def hinge_generator_loss(fake):
    """`-mean(D(G(z)))` of the scores (B, 1) of generated images: a scalar.

    Args:
        fake: The scores D(G(z)), (B, 1).
    """
    return -ops.mean(fake)
