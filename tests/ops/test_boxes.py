"""Boxes and anchors, against numbers derived by hand and plain loops."""

import numpy as np
import pytest
from box_formats import FORMATS, H, W
from keras import ops

from keras_attn.ops.anchors import base_anchors, grid_anchors
from keras_attn.ops.boxes import (
    BOX_FORMATS,
    box_areas,
    clip_boxes,
    convert_boxes,
    decode_boxes,
    encode_boxes,
    has_area,
    pairwise_iou,
    pyramid_levels,
)

NAN = float("nan")


def random_boxes(*shape, size=(61, 83), seed=0):
    rng = np.random.default_rng(seed)
    height, width = size
    x = np.sort(rng.uniform(-5, width + 5, (*shape, 2)), axis=-1)
    y = np.sort(rng.uniform(-5, height + 5, (*shape, 2)), axis=-1)
    boxes = np.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], axis=-1)
    return boxes.astype("float32")


def test_formats_of_one_box():
    assert set(FORMATS) == set(BOX_FORMATS)
    for source, box in FORMATS.items():
        for target, expected in FORMATS.items():
            boxes = np.tile(np.array(box, "float32"), (2, 3, 1))
            found = convert_boxes(boxes, source, target, (H, W))
            np.testing.assert_allclose(
                found, np.tile(expected, (2, 3, 1)), rtol=0, atol=1e-5
            )


def test_a_wrong_format_is_an_error():
    box = np.zeros((1, 4), "float32")
    with pytest.raises(ValueError, match="`source` must be one of.*'xyxx'"):
        convert_boxes(box, "xyxx", "xyxy")
    with pytest.raises(ValueError, match="`target` must be one of.*'rel'"):
        convert_boxes(box, "xyxy", "rel")
    with pytest.raises(ValueError, match="`image_size` is needed.*image_size=None"):
        convert_boxes(box, "xyxy", "rel_xywh")


def test_overlaps_are_those_of_a_loop():
    boxes, others = random_boxes(2, 7), random_boxes(2, 5, seed=1)
    boxes[0, 1] = [9, 9, 9, 20]  # Empty.
    boxes[0, 2] = [30, 9, 20, 5]  # Of negative size.
    boxes[1, 3] = [NAN, 9, 20, 25]
    found = ops.convert_to_numpy(pairwise_iou(boxes, others))
    for b in range(2):
        for n, box in enumerate(boxes[b]):
            for m, other in enumerate(others[b]):
                width = min(box[2], other[2]) - max(box[0], other[0])
                height = min(box[3], other[3]) - max(box[1], other[1])
                size = box[2:] - box[:2]
                expected = 0.0
                if width > 0 and height > 0 and (size > 0).all():
                    both = width * height
                    other_area = np.prod(other[2:] - other[:2])
                    expected = both / (np.prod(size) + other_area - both)
                np.testing.assert_allclose(found[b, n, m], expected, rtol=1e-4)
    assert (found > 0.1).any()
    same = np.diagonal(ops.convert_to_numpy(pairwise_iou(others[0], others[0])))
    np.testing.assert_allclose(same, 1, rtol=1e-6)


def test_areas_and_clipping():
    boxes = np.array(
        [[-3, 2, 8, 90], [90, 5, 95, 7], [5, 5, 3, 9], [NAN, 1, 2, 3]], "float32"
    )
    np.testing.assert_allclose(box_areas(boxes), [11 * 88, 10, 0, 0])
    clipped = ops.convert_to_numpy(clip_boxes(boxes, (61, 83)))
    np.testing.assert_allclose(clipped[:2], [[0, 2, 8, 61], [83, 5, 83, 7]])
    assert ops.convert_to_numpy(has_area(clipped)).tolist() == [
        *(True, False, False, False)
    ]
    assert not ops.convert_to_numpy(has_area(boxes, 11)).any()


def test_decoding_inverts_encoding():
    boxes, anchors = random_boxes(2, 7), random_boxes(7, seed=1)
    weights = (10.0, 10.0, 5.0, 5.0)
    deltas = encode_boxes(boxes, anchors, weights)
    decoded = decode_boxes(deltas, anchors, weights)
    np.testing.assert_allclose(decoded, boxes, rtol=0, atol=1e-3)
    # By hand: from 10 × 20 around (15, 30) to 20 × 20 around (20, 25).
    deltas = encode_boxes(
        np.array([[10.0, 15, 30, 35]]), np.array([[10.0, 20, 20, 40]]), (1, 2, 3, 4)
    )
    np.testing.assert_allclose(deltas, [[0.5, -0.5, 3 * np.log(2), 0]], atol=1e-6)


def test_deltas_are_finite_for_any_size():
    empty = np.array([[5.0, 5, 5, 5], [9, 9, 3, 2]], "float32")
    anchor = np.array([[0.0, 0, 10, 20]], "float32")
    assert np.isfinite(ops.convert_to_numpy(encode_boxes(empty, anchor))).all()
    large = decode_boxes(np.array([[0.0, 0, 80, 900]], "float32"), anchor)
    np.testing.assert_allclose(
        large, [[5 - 312.5, 10 - 625, 5 + 312.5, 10 + 625]], rtol=1e-5
    )


def test_anchors_are_the_published_ones():
    # Of torchvision's `AnchorGenerator` for sizes of 32 and 64.
    found = base_anchors((32,), (0.5, 1.0, 2.0))
    expected = [[-23, -11, 23, 11], [-16, -16, 16, 16], [-11, -23, 11, 23]]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32
    found = base_anchors((32, 64), (0.5, 1.0))
    np.testing.assert_array_equal(found[:, 2], [23, 45, 16, 32])
    np.testing.assert_array_equal(found[:, 3], [11, 23, 16, 32])
    grid = grid_anchors(found, (3, 5), (8, 7))
    assert grid.shape == (3 * 5 * 4, 4)
    np.testing.assert_array_equal(
        grid.reshape(3, 5, 4, 4)[2, 3], found + np.array([21, 16, 21, 16])
    )


def test_the_level_of_a_box_is_rounded_down():
    # Equation 1 of Lin et al. 2017: 224 pixels are on level 4, whose stride is 16.
    sides = [1, 55, 57, 111, 113, 200, 223, 225, 400, 449, 3000]
    boxes = np.array([[[5, 7, 5 + side, 7 + side] for side in sides]], "float32")
    levels = pyramid_levels(boxes, (4, 8, 16, 32))
    expected = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert ops.convert_to_numpy(levels)[0].tolist() == expected
    # A box of 112 × 448 pixels is as large as one of 224 × 224.
    wide = np.array([[[0, 0, 112, 448], [0, 0, 112, 440]]], "float32")
    assert ops.convert_to_numpy(pyramid_levels(wide, (4, 8, 16, 32))).tolist() == [
        [2, 1]
    ]
    assert ops.convert_to_numpy(pyramid_levels(wide, (16, 32))).tolist() == [[0, 0]]
