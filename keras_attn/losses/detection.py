"""The losses of a two-stage detector.

Each is a mean over the samples of an image, then over the images, so that two devices
with half of the images each give the same loss as one device. torchvision divides by
the samples of all images, which is the same if all images have equally many.

Legend: B batch, A anchors, S samples, C classes without the background.
"""

from keras import ops

from keras_attn.kernels.gather import gather_rows

_BETA = 1 / 9  # Where the box loss changes from a parabola to a line.


def proposal_losses(objectness, deltas, targets):
    """The losses of the region proposal network at sampled anchors.

    Args:
        objectness: Logits, (B, A).
        deltas: Predicted deltas, (B, A, 4).
        targets: From `RegionProposal.targets`.

    Returns:
        A dictionary of two scalars.
    """
    is_sample, is_object = targets["is_sample"], targets["is_object"]
    chosen = gather_rows(objectness, targets["indices"])
    errors = gather_rows(deltas, targets["indices"]) - targets["deltas"]
    entropies = binary_losses(chosen, ops.cast(is_object, "float32"))
    return {
        "objectness_loss": mean_over_samples(entropies, is_sample, is_sample),
        "proposal_box_loss": mean_over_samples(smooth_l1(errors), is_object, is_sample),
    }


def head_losses(logits, deltas, samples):
    """The class and box losses of sampled proposals.

    Args:
        logits: (B, S, 1 + C).
        deltas: Deltas for each class, (B, S, 4 (1 + C)).
        samples: From `SelectDetections.targets`.

    Returns:
        A dictionary of two scalars.
    """
    labels, is_sample = samples["labels"], samples["is_sample"]
    logits, deltas = ops.cast(logits, "float32"), ops.cast(deltas, "float32")
    by_class = ops.reshape(deltas, (-1, *labels.shape[1:], logits.shape[-1], 4))
    own = ops.one_hot(labels, logits.shape[-1], dtype="float32")
    errors = ops.sum(by_class * ops.expand_dims(own, -1), axis=2) - samples["deltas"]
    entropies = class_losses(logits, labels)
    return {
        "class_loss": mean_over_samples(entropies, is_sample, is_sample),
        "box_loss": mean_over_samples(smooth_l1(errors), labels > 0, is_sample),
    }


def mask_loss(logits, true_masks, labels):
    """The mean cross entropy of the pixels of the masks of objects.

    Args:
        logits: A mask of each class, (B, S, h, w, 1 + C).
        true_masks: (B, S, h, w).
        labels: (B, S), 0 for the background.

    Returns:
        A scalar.
    """
    own = ops.one_hot(labels, logits.shape[-1], dtype="float32")
    chosen = ops.sum(ops.cast(logits, "float32") * own[:, :, None, None, :], axis=-1)
    per_object = ops.mean(binary_losses(chosen, true_masks), axis=(2, 3))
    return mean_over_samples(per_object, labels > 0, labels > 0)


def smooth_l1(errors):
    """`x² / (2 β)` below β = 1/9, `|x| - β / 2` above, summed over the last axis.

    Reference:
        Girshick 2015, equation 3 (arXiv:1504.08083).
    """
    sizes = ops.abs(errors)
    parabola = 0.5 / _BETA * ops.square(sizes)
    return ops.sum(ops.where(sizes < _BETA, parabola, sizes - 0.5 * _BETA), axis=-1)


def mean_over_samples(values, is_counted, is_sample):
    """Each image's sum of counted values over its number of samples; their mean.

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
