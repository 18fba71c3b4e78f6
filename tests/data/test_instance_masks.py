"""Masks of objects, against pycocotools and against their definition."""

from typing import Any, cast

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from keras_attn.data.images.instance_masks import decode_mask, encode_mask

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("density", [0.0, 0.03, 0.5, 0.97, 1.0])
def test_run_lengths_are_those_of_pycocotools(density):
    for height, width in [(7, 11), (1, 13), (131, 1), (101, 97)]:
        mask = RNG.random((height, width)) < density
        encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
        for counts in (encoded["counts"], encoded["counts"].decode()):
            given = {"size": [height, width], "counts": counts}
            np.testing.assert_array_equal(decode_mask(given, height, width), mask)
        written = encode_mask(mask)
        assert written == {"size": [height, width], "counts": counts}


def test_polygons_are_joined():
    polygons = [[1, 1, 4, 1, 4, 5, 1, 5], [6, 2, 9, 2, 9, 4, 6, 4]]
    expected = np.zeros((7, 11), bool)
    expected[1:5, 1:4] = expected[2:4, 6:9] = True
    np.testing.assert_array_equal(decode_mask(polygons, 7, 11), expected)


def test_polygons_are_clipped_as_pycocotools_does():
    """They may leave the image on any side, or lie outside of it."""
    height, width = 13, 17
    for number in range(200):
        rng = np.random.default_rng(number)
        points = rng.uniform(-30, 45, (int(rng.integers(3, 9)), 2)).round(2)
        polygon = points.ravel().tolist()
        runs: Any = coco_mask.frPyObjects(cast(Any, [polygon]), height, width)
        expected = coco_mask.decode(coco_mask.merge(runs)).astype(bool)
        np.testing.assert_array_equal(decode_mask([polygon], height, width), expected)
    large = [[-4000, -3000, 9000, -3000, 9000, 8000, -4000, 8000]]
    assert decode_mask(large, height, width).all()
    assert not decode_mask([[100, 1, 120, 1, 120, 9]], height, width).any()


def test_outlines_of_too_many_pixels_are_refused():
    zigzag = [[0, 0, 1e6, 1e6] * 8]
    for polygon in (zigzag, [[0, 0, 1e7, 0, 3, 3]]):
        with pytest.raises(ValueError, match="in or near its image of 13 x 17 pixels"):
            decode_mask(polygon, 13, 17)
