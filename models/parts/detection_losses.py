"""The losses of a two-stage detector.

Each is a mean over the samples of an image, then over the images, so that two devices
with half of the images each have the loss of one. torchvision divides by the samples of
all images, which is the same if all images have as many.

Legend: B batch, S samples, C classes without the background.
"""

from keras import ops

_BETA = 1 / 9  # Where the loss of boxes turns from a parabola into a line.


def smooth_l1(errors):
    """`x² / (2 β)` below β = 1/9, `|x| - β / 2` above, summed over the last axis.

    Reference:
        Girshick 2015, equation 3 (arXiv:1504.08083).
    """
    sizes = ops.abs(errors)
    parabola = 0.5 / _BETA * ops.square(sizes)
    return ops.sum(ops.where(sizes < _BETA, parabola, sizes - 0.5 * _BETA), axis=-1)


def mean_over_samples(values, is_counted, is_sample):
    """Sums of the counted values of an image divided by its samples; their mean.

    Args:
        values: (B, S).
        is_counted: (B, S) bool, which values count.
        is_sample: (B, S) bool; an image without samples has a loss of 0.

    Returns:
        A scalar.
    """
    # Not a product: a value that does not count may be infinite.
    total = ops.sum(ops.where(is_counted, values, 0.0), axis=-1)
    count = ops.sum(ops.cast(is_sample, "float32"), axis=-1)
    return ops.mean(total / ops.maximum(count, 1.0))


def binary_losses(logits, targets):
    """The cross entropies of independent probabilities, of the shape of the logits."""
    return ops.relu(logits) - logits * targets + ops.softplus(-ops.abs(logits))


def class_losses(logits, labels):
    """The cross entropies (B, S) of logits (B, S, 1 + C) and labels (B, S)."""
    chosen = ops.one_hot(labels, logits.shape[-1], dtype="float32")
    return -ops.sum(chosen * ops.log_softmax(logits), axis=-1)
