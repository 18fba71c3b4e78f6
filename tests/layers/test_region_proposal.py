"""Proposals of two maps by hand.

The first map has 4 × 6 locations and anchors of 4 pixels, the second 2 × 3 locations
and anchors of 20 pixels.
"""

from typing import Any

import keras
import numpy as np
import pytest

from keras_attn.layers import RegionProposal

NAN = float("nan")


def proposer(**options):
    options = {"num_proposals": 3, "aspect_ratios": [1.0], **options}
    layer = RegionProposal([[4], [20]], [8, 16], (32, 48), **options)
    layer.build([(None, 4, 6, 5), (None, 2, 3, 5)])
    return layer


def predictions():
    """Logits (1, 30) and deltas (1, 30, 4) of which few anchors have high ones."""
    objectness = np.linspace(-5, -6, 30, dtype="float32")[None]
    deltas = np.zeros((1, 30, 4), "float32")
    # Around (40, 0): the box ends at the border of the image.
    objectness[0, 5] = 3
    # From (16, 8) onto the same place, where the better one of this map suppresses it.
    objectness[0, 8], deltas[0, 8, :2] = 2.5, (6, -2)
    # Of the second map around (16, 16), moved two pixels to the right.
    objectness[0, 24 + 4], deltas[0, 24 + 4, 0] = 2, 0.1
    # From (8, 8) onto the same place, and enlarged: of the other map, so both stay.
    objectness[0, 7], deltas[0, 7] = 1, (2.5, 2, np.log(5), np.log(5))
    # Beyond the image, and no number.
    objectness[0, 9], deltas[0, 9, 0] = 4, 100
    objectness[0, 10] = NAN
    return objectness, deltas


BOXES = [[38, 0, 42, 2], [8, 6, 28, 26], [8, 6, 28, 26]]


def numpy(tensors):
    return tuple(keras.ops.convert_to_numpy(tensor) for tensor in tensors)


def test_the_best_boxes_of_all_maps():
    boxes, scores, count = numpy(proposer().propose(*predictions()))
    np.testing.assert_allclose(boxes[0], BOXES, atol=1e-4)
    np.testing.assert_allclose(scores[0], 1 / (1 + np.exp([-3.0, -2, -1])), rtol=1e-5)
    assert count.tolist() == [3]
    # Of 30 all but the suppressed one, that beyond the image and the NaN.
    boxes, scores, (count,) = numpy(
        proposer(num_proposals=40, iou_threshold=1.0).propose(*predictions())
    )
    assert count == 28 and (scores[0, :28] > 0).all()
    assert not scores[0, 28:].any() and not boxes[0, 28:].any()


def test_training_has_numbers_of_its_own():
    # Two candidates of each map, of which the first map suppresses one.
    layer = proposer(num_training_proposals=7, training_candidates_per_level=3)
    boxes, scores, count = numpy(layer.propose(*predictions(), training=True))
    assert boxes.shape == (1, 7, 4) and scores.shape == (1, 7)
    # Those of the first map are the one beyond the image, the first and the suppressed
    # one; so the one with a logit of 1 is no candidate.
    assert count.tolist() == [4]
    np.testing.assert_allclose(boxes[0, :2], BOXES[:2], atol=1e-4)
    assert (scores[0, 2:4] < 0.01).all()


def test_an_image_does_not_depend_on_the_others():
    objectness, deltas = predictions()
    other = np.random.default_rng(1).normal(size=deltas.shape).astype("float32")
    both = proposer().propose(
        np.concatenate([other[..., 0], objectness]), np.concatenate([other, deltas])
    )
    for found, expected in zip(
        both, proposer().propose(objectness, deltas), strict=True
    ):
        np.testing.assert_allclose(*numpy((found[1:], expected)), rtol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="uses `tf.GradientTape`"
)
def test_no_gradient_flows_from_proposals():
    import tensorflow as tf

    inputs: Any = tuple(map(tf.constant, predictions()))
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        boxes, scores, _ = proposer().propose(*inputs)
        total = tf.reduce_sum(boxes) + tf.reduce_sum(scores)
    assert tape.gradient(total, inputs) == (None, None)
