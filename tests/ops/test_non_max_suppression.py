"""Non-maximum suppression against the usual loop, in eager mode and compiled."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.ops.non_max_suppression import non_max_suppression

B, N = 3, 97


def overlap(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def loop(boxes, scores, threshold, candidates, groups):
    """Greedy: by descending score, equal scores in order."""
    kept = []
    for index in np.argsort(-scores, kind="stable"):
        if candidates[index] and not any(
            groups[index] == groups[other]
            and overlap(boxes[index], boxes[other]) > threshold
            for other in kept
        ):
            kept.append(int(index))
    return kept


def crowd(seed=0):
    """Many overlapping boxes, some equal, with repeated scores."""
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 40, (B, N, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 40, (B, N, 2))], axis=-1)
    boxes[:, 11:17] = boxes[:, 5:6]
    boxes[:, 20] = boxes[:, 20][:, [0, 1, 0, 1]]  # Empty.
    scores = rng.integers(0, 29, (B, N)) / 29
    return boxes.astype("float32"), scores.astype("float32"), rng


def check(found, boxes, scores, threshold, candidates, groups, most):
    indices, counts = map(ops.convert_to_numpy, found)
    assert indices.shape == (B, most)
    assert indices.dtype == counts.dtype == np.int32
    for b in range(B):
        expected = loop(boxes[b], scores[b], threshold, candidates[b], groups[b])
        expected = expected[:most]
        assert indices[b, : counts[b]].tolist() == expected
        assert (indices[b] >= 0).all() and (indices[b] < N).all()


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("most", [7, N])
def test_the_boxes_of_the_loop_are_kept(threshold, most):
    boxes, scores, rng = crowd()
    candidates = rng.random((B, N)) < 0.8
    candidates[1] = False
    groups = rng.integers(0, 3, (B, N)).astype("int32")
    every, same = np.ones((B, N), bool), np.zeros((B, N), int)
    options = {"iou_threshold": threshold, "max_outputs": most}
    found = non_max_suppression(boxes, scores, **options)
    check(found, boxes, scores, threshold, every, same, most)
    found = non_max_suppression(
        boxes, scores, is_candidate=candidates, groups=groups, **options
    )
    check(found, boxes, scores, threshold, candidates, groups, most)
    assert ops.convert_to_numpy(found[1])[1] == 0


def test_only_the_best_candidates_are_looked_at():
    boxes, scores, _ = crowd()
    indices, counts = non_max_suppression(
        boxes, scores, iou_threshold=0.5, max_outputs=N, max_candidates=13
    )
    assert indices.shape == (B, 13)
    for b in range(B):
        best = np.argsort(-scores[b], kind="stable")[:13]
        chosen = ops.convert_to_numpy(indices[b, : int(counts[b])])
        expected = loop(boxes[b][best], scores[b][best], 0.5, [True] * 13, [0] * 13)
        assert chosen.tolist() == best[expected].tolist()


def test_a_chain_in_which_each_box_suppresses_the_next():
    """The longest chain of decisions: every second box is kept."""
    starts = 4.0 * np.arange(31)
    boxes = np.stack([starts, 0 * starts, starts + 10, 0 * starts + 10], -1)
    boxes = boxes[None].astype("float32")
    scores = np.linspace(1, 0, 31, dtype="float32")[None]
    indices, counts = non_max_suppression(
        boxes, scores, iou_threshold=0.4, max_outputs=31
    )
    assert int(counts[0]) == 16
    np.testing.assert_array_equal(indices[0, :16], np.arange(0, 31, 2))


def test_a_box_that_overlaps_by_exactly_the_threshold_is_kept():
    boxes = np.array([[[0, 0, 8, 8], [0, 0, 8, 4], [0, 0, 8, 5]]], "float32")
    scores = np.array([[0.9, 0.8, 0.7]], "float32")
    for threshold, kept in ((0.5, [0, 1]), (0.49, [0])):
        indices, counts = non_max_suppression(
            boxes, scores, iou_threshold=threshold, max_outputs=3
        )
        assert ops.convert_to_numpy(indices)[0, : int(counts[0])].tolist() == kept


def test_scores_that_are_not_numbers_are_never_chosen():
    boxes, scores, _ = crowd()
    scores[0] = float("nan")
    scores[1, 3] = float("nan")
    scores[2] = -float("inf")
    indices, counts = map(
        ops.convert_to_numpy,
        non_max_suppression(boxes, scores, iou_threshold=0.5, max_outputs=N),
    )
    assert counts[0] == counts[2] == 0
    assert counts[1] > 3 and 3 not in indices[1, : counts[1]]


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="uses `tf.function`"
)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_compiled_graph_keeps_the_same_boxes(jit_compile):
    import tensorflow as tf

    boxes, scores, rng = crowd(seed=5)
    groups = rng.integers(0, 3, (B, N)).astype("int32")
    compiled = tf.function(
        lambda boxes, scores, groups: non_max_suppression(
            boxes, scores, groups=groups, iou_threshold=0.3, max_outputs=11
        ),
        jit_compile=jit_compile,
    )
    found = compiled(boxes, scores, groups)
    check(found, boxes, scores, 0.3, np.ones((B, N), bool), groups, 11)
