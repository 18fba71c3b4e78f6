"""Matching and sampling of boxes, against plain loops."""

from typing import Any

import numpy as np
import pytest
from keras import ops

from keras_attn.ops.box_matching import (
    IGNORED,
    NEGATIVE,
    first_true,
    match_boxes,
    sample_matches,
)
from keras_attn.ops.boxes import pairwise_iou


def jittered(count, true_boxes, seed=0):
    """Boxes near the true ones, and far from them."""
    rng = np.random.default_rng(seed)
    boxes = true_boxes[rng.integers(0, len(true_boxes), count)]
    return (boxes + rng.normal(0, 5, boxes.shape)).astype("float32")


TRUE = np.array(
    [
        [[3, 5, 23, 34], [20, 11, 61, 40], [45, 2, 59, 19]],
        [[7, 1, 48, 43], [0, 0, 0, 0], [0, 0, 0, 0]],
    ],
    "float32",
)
REAL = np.array([[True, True, True], [True, False, False]])


def matched(overlap, is_real, positive, negative, low_quality):
    result = np.full(len(overlap), IGNORED)
    candidates = np.flatnonzero(is_real)
    for n, row in enumerate(overlap):
        best = max(row[candidates], default=-1)
        if best < negative:
            result[n] = NEGATIVE
        keeps = low_quality and any(
            row[m] > 0 and row[m] == overlap[:, m].max() for m in candidates
        )
        if best >= positive or keeps:
            result[n] = candidates[np.argmax(row[candidates])]
    return result


def test_an_overlap_of_exactly_a_threshold():
    boxes = np.array([[[0, 0, 8, 8]]], "float32")
    true = np.array([[[0, 0, 8, 4]]], "float32")

    def found(positive, negative):
        thresholds = {"positive_threshold": positive, "negative_threshold": negative}
        return int(match_boxes(boxes, true, np.ones((1, 1), bool), **thresholds)[0, 0])

    assert found(0.5, 0.5) == 0
    assert found(0.6, 0.5) == IGNORED
    assert found(0.6, 0.51) == NEGATIVE


@pytest.mark.parametrize("low_quality", [False, True])
def test_matches_are_those_of_a_loop(low_quality):
    boxes = np.stack([jittered(53, TRUE[0]), jittered(53, TRUE[1, :1], seed=1)])
    found = ops.convert_to_numpy(
        match_boxes(
            boxes,
            TRUE,
            REAL,
            positive_threshold=0.6,
            negative_threshold=0.4,
            low_quality_matches=low_quality,
        )
    )
    overlap = ops.convert_to_numpy(pairwise_iou(boxes, TRUE))
    for b in range(2):
        expected = matched(overlap[b], REAL[b], 0.6, 0.4, low_quality)
        np.testing.assert_array_equal(found[b], expected)
    assert {NEGATIVE, IGNORED, 0, 1, 2} == set(found.flat)
    assert found.dtype == np.int32


def test_an_object_that_nothing_overlaps_much_is_matched_at_low_quality_only():
    boxes = np.array([[0, 0, 40, 10], [5, 0, 50, 10], [80, 80, 90, 90]], "float32")
    true = np.array([[[0, 0, 10, 10], [300, 300, 310, 310]]], "float32")
    options: Any = {"positive_threshold": 0.7, "negative_threshold": 0.3}
    real = np.array([[True, True]])
    found = match_boxes(boxes, true, real, **options)
    assert ops.convert_to_numpy(found).tolist() == [[-1, -1, -1]]
    found = match_boxes(boxes, true, real, low_quality_matches=True, **options)
    # The second ground-truth box, outside of everything, makes no match.
    assert ops.convert_to_numpy(found).tolist() == [[0, -1, -1]]


def test_an_image_without_objects_has_negatives_only():
    thresholds = {"positive_threshold": 0.5, "negative_threshold": 0.5}
    none = np.zeros((2, 3), bool)
    boxes = jittered(11, TRUE[0])
    found = match_boxes(boxes, TRUE, none, low_quality_matches=True, **thresholds)
    np.testing.assert_array_equal(found, np.full((2, 11), NEGATIVE))


@pytest.mark.parametrize("shared_noise", [True, False])
def test_samples_have_the_published_shares(shared_noise):
    rng = np.random.default_rng(2)
    matches = np.stack(
        [
            np.where(np.arange(71) < 40, 3, NEGATIVE),  # Many positives.
            np.where(np.arange(71) < 2, 1, NEGATIVE),  # Two.
            np.where(
                np.arange(71) < 2, 0, np.where(np.arange(71) < 9, NEGATIVE, IGNORED)
            ),
            np.full(71, IGNORED),
        ]
    ).astype("int32")
    noise = rng.random(71 if shared_noise else (4, 71)).astype("float32")
    indices, is_sample = map(
        ops.convert_to_numpy, sample_matches(matches, noise, 23, 0.25)
    )
    assert indices.shape == is_sample.shape == (4, 23)
    for row, (positives, negatives) in enumerate([(5, 18), (2, 21), (2, 7), (0, 0)]):
        chosen = indices[row][is_sample[row]]
        assert len(set(chosen)) == len(chosen) == positives + negatives
        labels = matches[row][chosen]
        # Positives come first.
        assert (labels[:positives] >= 0).all()
        assert (labels[positives:] == NEGATIVE).all()
        own = noise if shared_noise else noise[row]
        left = np.setdiff1d(np.flatnonzero(matches[row] >= 0), chosen)
        if len(left):
            assert own[left].max() <= own[chosen[:positives]].min()


def test_no_positives_are_chosen_if_their_share_is_zero():
    matches = np.array([[0, NEGATIVE, 1, NEGATIVE, NEGATIVE]], "int32")
    noise = np.linspace(0, 0.9, 5, dtype="float32")
    indices, is_sample = sample_matches(matches, noise, 2, 0.0)
    assert ops.convert_to_numpy(indices).tolist() == [[4, 3]]
    assert ops.convert_to_numpy(is_sample).all()


def test_first_true_values_are_in_order():
    mask = np.array(
        [[False, True, False, True, True], [True, False, False, False, False]]
    )
    found = ops.convert_to_numpy(first_true(mask, 3))
    assert found.tolist() == [[1, 3, 4], [0, 1, 2]]
