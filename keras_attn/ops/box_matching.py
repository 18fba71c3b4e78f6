"""Matching of anchors and proposals to ground-truth boxes, and sampling of matches.

Legend: B batch, N boxes (anchors or proposals), M ground-truth boxes with padding, S
samples.
"""

from keras import ops

from keras_attn.ops.boxes import pairwise_iou

NEGATIVE = -1  # Background.
IGNORED = -2  # Neither object nor background.


def match_boxes(
    boxes,
    true_boxes,
    is_real,
    *,
    positive_threshold,
    negative_threshold,
    low_quality_matches=False,
):
    """The ground-truth box of each box, by intersection over union (IoU).

    Args:
        boxes: (B, N, 4) or (N, 4).
        true_boxes: (B, M, 4); padding may hold any finite numbers.
        is_real: (B, M) bool, False = padding, which is never matched.
        positive_threshold: Minimum IoU of a box with the ground-truth box that it is
            matched to.
        negative_threshold: A box whose largest IoU is below it is background.
        low_quality_matches: Whether the boxes that overlap most with a ground-truth box
            match too, if their IoU is below `positive_threshold`. Each is matched to
            the ground-truth box that *it* overlaps most, as in torchvision.

    Returns:
        (B, N) int32: the index of a ground-truth box, `NEGATIVE` or `IGNORED`.

    Reference:
        Ren et al. 2015, section 3.1.2 (arXiv:1506.01497).
    """
    overlap = pairwise_iou(boxes, true_boxes)  # (B, N, M)
    overlap = ops.where(ops.expand_dims(is_real, 1), overlap, -1.0)
    best = ops.max(overlap, axis=-1)  # (B, N)
    matches = ops.cast(ops.argmax(overlap, axis=-1), "int32")
    found = best >= positive_threshold
    if low_quality_matches:
        largest = ops.max(overlap, axis=1, keepdims=True)  # (B, 1, M)
        # A margin, because a compiler may compute the two sides in different orders.
        is_largest = ops.logical_and(overlap >= largest * (1 - 1e-6), overlap > 0)
        found = ops.logical_or(found, ops.any(is_largest, axis=-1))
    others = ops.where(best < negative_threshold, NEGATIVE, IGNORED)
    return ops.where(found, matches, ops.cast(others, "int32"))


def sample_matches(matches, noise, num_samples, positive_fraction):
    """A random sample of positives and negatives, of a fixed size.

    Args:
        matches: (B, N) int32, from `match_boxes`.
        noise: (N,) or (B, N), in [0, 1): boxes with larger numbers are chosen first.
        num_samples: S, at most N.
        positive_fraction: Maximum fraction of positives; negatives fill the rest.

    Returns:
        A tuple of indices (B, S) int32, positives first, and whether each is a sample,
        (B, S) bool: an image may have too few boxes of both kinds.

    Reference:
        Ren et al. 2015, section 3.1.3 (arXiv:1506.01497).
    """
    largest = int(num_samples * positive_fraction)
    # (B, N): noise of the candidates, below zero for all others.
    positive_noise = ops.where(matches >= 0, noise, -1.0)
    negative_noise = ops.where(matches == NEGATIVE, noise, -1.0)
    chosen, indices = ops.top_k(positive_noise, max(largest, 1))
    is_positive = ops.logical_and(chosen >= 0, ops.arange(max(largest, 1)) < largest)
    chosen, negatives = ops.top_k(negative_noise, num_samples)
    count = ops.sum(ops.cast(is_positive, "int32"), axis=-1, keepdims=True)
    ranks = ops.arange(num_samples, dtype="int32")
    is_negative = ops.logical_and(chosen >= 0, ranks < num_samples - count)
    indices = ops.concatenate(
        [ops.cast(indices, "int32"), ops.cast(negatives, "int32")], axis=-1
    )
    is_sample = ops.concatenate([is_positive, is_negative], axis=-1)
    first = first_true(is_sample, num_samples)
    return (
        ops.take_along_axis(indices, first, axis=-1),
        ops.take_along_axis(is_sample, first, axis=-1),
    )


def first_true(mask, count):
    """Indices of the first True values of each row, in order, then of False values.

    Args:
        mask: (B, N) bool, with known N.
        count: K, at most N.

    Returns:
        (B, K) int32.
    """
    size = mask.shape[-1]
    order = size - ops.arange(size, dtype="float32")
    _, indices = ops.top_k(ops.where(mask, order, order - size), count)
    return ops.cast(indices, "int32")
