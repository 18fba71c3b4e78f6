"""Non-maximum suppression with outputs of a fixed size.

The usual algorithm visits boxes by descending score and keeps a box unless it overlaps
with a box that was kept before. Its result is the only solution of

    keep[j] = not any(keep[i] and overlap[i, j] for i < j)

and applying this equation repeatedly to all j at once, starting from "keep all", finds
it: after t rounds the first t boxes are right, and each later box is right as soon as
the boxes that decide about it are. So the number of rounds is the length of the longest
chain of boxes that decide about each other, which in practice is a few instead of one
for each box. A round is one product of a vector and a matrix, which every compiler and
runtime has.

Legend: B batch, N candidates, K outputs.
"""

import functools

from keras import ops

from keras_attn.kernels.devices import on_each_device
from keras_attn.kernels.gather import gather_rows
from keras_attn.ops.box_matching import first_true
from keras_attn.ops.boxes import pairwise_iou

# Below all scores. Finite, because exported ONNX graphs rank infinity wrongly.
LOWEST = -3e38


def non_max_suppression(
    boxes,
    scores,
    *,
    iou_threshold,
    max_outputs,
    is_candidate=None,
    groups=None,
    max_candidates=None,
):
    """The best boxes that do not overlap with better boxes.

    Boxes with equal scores are visited in their order. Memory grows with N².

    Args:
        boxes: (B, N, 4), with known N.
        scores: (B, N).
        iou_threshold: A box is left out if its intersection over union with a better
            box is larger than this.
        max_outputs: K.
        is_candidate: (B, N) bool, False = never chosen. Default: all boxes are
            candidates.
        groups: (B, N) integers, such as classes: boxes of different groups do not
            suppress each other.
        max_candidates: Only this many candidates with the highest scores are
            considered. Default: N.

    Returns:
        A tuple of indices (B, K) int32, by descending score, and the number of boxes
        chosen (B,) int32; indices after that number are meaningless. K is at most the
        number of candidates.
    """
    boxes, scores = ops.stop_gradient(boxes), ops.stop_gradient(scores)
    size = boxes.shape[1]
    # Not `nan`: comparisons with it would keep a box that no other box can suppress.
    is_number = scores == scores
    is_candidate = (
        is_number if is_candidate is None else ops.logical_and(is_candidate, is_number)
    )
    size = min(size, max_candidates or size)
    ranked, order = ops.top_k(ops.where(is_candidate, scores, LOWEST), size)
    order = ops.cast(order, "int32")
    is_candidate = ranked > LOWEST
    if groups is not None:
        groups = gather_rows(groups, order)
    is_kept = keep_best(gather_rows(boxes, order), is_candidate, iou_threshold, groups)
    count = min(max_outputs, size)
    chosen = gather_rows(order, first_true(is_kept, count))
    found = ops.sum(ops.cast(is_kept, "int32"), axis=-1)
    return chosen, ops.minimum(found, count)


def keep_best(boxes, is_candidate, iou_threshold, groups=None):
    """Which of the sorted boxes do not overlap with better boxes that are kept.

    With a batch on several devices, each of them stops when its own images are done.

    Args:
        boxes: (B, …, N, 4), with known N, sorted by descending score.
        is_candidate: (B, …, N) bool.
        iou_threshold: As in `non_max_suppression`.
        groups: (B, …, N) integers.

    Returns:
        (B, …, N) bool.
    """
    given = (boxes, is_candidate, *(() if groups is None else (groups,)))
    return on_each_device(functools.partial(_keep_best, iou_threshold), *given)


def _keep_best(iou_threshold, boxes, is_candidate, groups=None):
    size = boxes.shape[-2]
    overlaps = pairwise_iou(boxes, boxes) > iou_threshold  # (…, N, N)
    places = ops.arange(size)
    is_better = ops.expand_dims(places, 1) < ops.expand_dims(places, 0)
    decides = ops.logical_and(overlaps, is_better)
    if groups is not None:
        same = ops.equal(ops.expand_dims(groups, -1), ops.expand_dims(groups, -2))
        decides = ops.logical_and(decides, same)
    decides = ops.cast(decides, "float32")
    candidates = ops.cast(is_candidate, "float32")

    def is_changing(kept, previous):
        return ops.any(ops.not_equal(kept, previous))

    def decide(kept, previous):
        better = ops.matmul(ops.expand_dims(kept, -2), decides)  # (…, 1, N)
        free = ops.cast(ops.squeeze(better, -2) < 0.5, "float32")
        return candidates * free, kept

    kept, _ = ops.while_loop(
        is_changing,
        decide,
        (candidates, candidates - 1.0),
        maximum_iterations=size + 1,
    )
    return kept > 0.5
