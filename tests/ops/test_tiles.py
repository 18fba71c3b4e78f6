"""Where the tiles of an image are, and how what they found is joined."""

import numpy as np
import pytest

from keras_attn.ops.tiles import Tile, average_tiles, cut_into_tiles, join_boxes


@pytest.mark.parametrize("overlap", [0, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("size", [(23, 41), (7, 41), (23, 11), (5, 3), (7, 11)])
def test_tiles_cover_the_image(size, overlap):
    tiles = cut_into_tiles(size, (7, 11), overlap)
    assert tiles == sorted(set(tiles))
    covered = np.zeros(size, int)
    for top, left, bottom, right in tiles:
        assert (bottom - top, right - left) == (min(7, size[0]), min(11, size[1]))
        assert 0 <= top and bottom <= size[0] and 0 <= left and right <= size[1]
        covered[top:bottom, left:right] += 1
    assert covered.min() == 1
    for axis, side in enumerate((7, 11)):
        starts = sorted({tile[axis] for tile in tiles})
        gaps = np.diff(starts)
        assert not len(gaps) or side - gaps.max() >= np.floor(overlap * side)
    if size[0] <= 7 and size[1] <= 11:
        assert tiles == [Tile(0, 0, *size)]


@pytest.mark.parametrize("overlap", [-0.1, 1, 1.5])
def test_an_overlap_that_is_no_share(overlap):
    with pytest.raises(ValueError, match="`overlap` must be a share of a tile's side"):
        cut_into_tiles((5, 7), (3, 3), overlap)


@pytest.mark.parametrize("overlap", [0, 0.3, 0.8])
@pytest.mark.parametrize("size", [(23, 41), (6, 29), (19, 5), (5, 3)])
def test_scores_that_tiles_agree_on_are_kept(size, overlap):
    """Integers, whose sums are exact."""
    scores = np.random.default_rng(0).integers(-99, 99, (*size, 3)).astype("float32")
    tiles = cut_into_tiles(size, (7, 11), overlap)
    rows = list(
        average_tiles(tiles, (scores[y:to_y, x:to_x] for y, x, to_y, to_x in tiles))
    )
    assert len(rows) == len({tile.top for tile in tiles})
    np.testing.assert_allclose(np.concatenate(rows), scores, rtol=1e-6)


def test_scores_that_tiles_disagree_on_are_averaged():
    tiles = [Tile(0, 0, 2, 3), Tile(0, 2, 2, 5)]
    first, second = np.full((2, 3, 1), 4.0), np.full((2, 3, 1), 1.0)
    (rows,) = average_tiles(tiles, [first, second])
    np.testing.assert_array_equal(rows[..., 0], [[4, 4, 2.5, 1, 1]] * 2)


# Two tiles of 100 x 100 pixels that share the columns 75 to 100.
PAIR = [Tile(0, 0, 100, 100), Tile(0, 75, 100, 175)]


def joined(*found):
    """Indices of (tile, class, score, box)."""
    numbers, classes, scores, boxes = map(np.array, zip(*found, strict=True))
    return join_boxes(PAIR, boxes, scores, classes, numbers).tolist()


def test_a_box_over_a_seam_is_found_once():
    whole = [70, 10, 95, 30]
    # The second tile has a fifth less of it, or a sliver, which it is surer of.
    assert joined((0, 3, 0.7, whole), (1, 3, 0.9, [75, 10, 95, 30])) == [0]
    assert joined((0, 3, 0.7, whole), (1, 3, 0.9, [75.3, 11, 79, 29])) == [0]
    # Both have all of it: the surer one.
    assert joined((0, 3, 0.7, [80, 10, 95, 30]), (1, 3, 0.9, [81, 10, 96, 30])) == [1]


def test_what_are_different_objects():
    box, near = [80, 10, 95, 30], [81, 10, 96, 30]
    assert joined((0, 3, 0.7, box), (1, 4, 0.9, near)) == [1, 0]  # Classes.
    # Of one tile: the model has decided.
    assert joined((0, 3, 0.7, box), (0, 3, 0.9, near)) == [1, 0]
    # A small one in front of a large one, both whole.
    assert joined((0, 3, 0.7, [40, 5, 97, 60]), (1, 3, 0.6, [80, 10, 95, 30])) == [0, 1]
    # At the border of the image, and beside a seam.
    assert joined((0, 3, 0.2, [0, 0, 9, 9]), (1, 3, 0.6, [140, 0, 175, 9])) == [1, 0]
    # Larger than what tiles share: two parts.
    assert joined((0, 3, 0.7, [20, 5, 100, 60]), (1, 3, 0.6, [75, 5, 150, 60])) == [
        0,
        1,
    ]


def test_no_boxes():
    empty = np.zeros(0, int)
    found = join_boxes(PAIR, np.zeros((0, 4)), empty, empty, empty)
    assert found.shape == (0,)
