import numpy as np
import pytest
from matplotlib.patches import Rectangle
from viz.figures import panels

from keras_attn.viz import plot_detections
from keras_attn.viz.drawing.plots import figure_to_array

B, H, W = 2, 31, 43
IMAGES = np.random.default_rng(0).random((B, H, W, 3)).astype("float32")
NAMES = ["cat $1", "dog"]
COLORS = [[255, 0, 0], [0, 0, 255]]
BOXES = np.array([[[3, 17, 11, 29], [20, 0, 43, 7], [0, 0, 0, 0]]] * B, dtype="float32")
TRUTH = {"boxes": BOXES, "classes": np.array([[1, 0, -1]] * B)}
FOUND = {
    "boxes": BOXES + 1,
    "classes": np.array([[1, 0, 1], [0, -1, -1]]),
    "scores": np.array([[0.9, 0.625, 0.3], [0.7, 0.8, 0.9]]),
    "num_detections": np.array([3, 1]),
}


def boxes_of(ax):
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def test_boxes_names_and_scores():
    figure = plot_detections(
        IMAGES, FOUND, TRUTH, class_names=NAMES, colors=COLORS, title="a $ b"
    )
    truth, found, truth_2, found_2 = panels(figure)
    assert [truth.get_title(), found.get_title()] == [
        "truth",
        "detections, score ≥ 0.5",
    ]
    # Corners of boxes lie between the centers of pixels.
    corners = [patch.get_xy() for patch in boxes_of(truth)]
    assert corners == [(2.5, 16.5), (19.5, -0.5)]
    assert boxes_of(truth)[0].get_width() == 8 and boxes_of(truth)[0].get_height() == 12
    assert [text.get_text() for text in truth.texts] == ["dog", "cat $1"]
    # The most certain on top; the third has too low a score.
    assert [text.get_text() for text in found.texts] == ["cat $1 0.62", "dog 0.90"]
    assert boxes_of(found)[1].get_edgecolor() == (0, 0, 1, 1)
    assert len(boxes_of(truth_2)) == 2 and len(boxes_of(found_2)) == 1
    # Nothing moves the limits of the axes.
    assert found.get_xlim() == (-0.5, W - 0.5) and found.get_ylim() == (H - 0.5, -0.5)
    assert figure_to_array(figure).std() > 1


def test_boxes_of_another_format():
    relative = {
        **TRUTH,
        "boxes": TRUTH["boxes"][..., [1, 0, 3, 2]] / [H, W, H, W],
    }
    figures = (
        plot_detections(IMAGES, truth=TRUTH, class_names=NAMES),
        plot_detections(
            IMAGES, truth=relative, class_names=NAMES, bounding_box_format="rel_yxyx"
        ),
    )
    drawn = [boxes_of(panels(figure)[0]) for figure in figures]
    for one, other in zip(*drawn, strict=True):
        np.testing.assert_allclose(one.get_xy(), other.get_xy(), atol=1e-4)
        assert one.get_width() == pytest.approx(other.get_width(), abs=1e-4)


def test_masks_are_painted():
    masks = np.zeros((B, 3, H, W), bool)
    masks[:, 0, 20:25, 5:9] = True
    figure = plot_detections(
        IMAGES,
        {**FOUND, "masks": np.ones((B, 3, 28, 28))},
        {**TRUTH, "masks": masks},
        class_names=NAMES,
        colors=COLORS,
        min_score=0.8,
    )
    truth, found, *_ = panels(figure)
    pixels = np.asarray(truth.images[0].get_array())
    expected = IMAGES[0].copy()
    expected[20:25, 5:9] = 0.55 * expected[20:25, 5:9] + 0.45 * np.array([0, 0, 1])
    np.testing.assert_allclose(pixels, expected, atol=1e-6)
    # A small mask fills its box, 4 to 12 and 18 to 30.
    changed = (np.asarray(found.images[0].get_array()) != IMAGES[0]).any(-1)
    expected = np.zeros((H, W), bool)
    expected[18:30, 4:12] = True
    np.testing.assert_array_equal(changed, expected)
    figure_to_array(figure)


def test_one_of_both_is_enough_and_what_is_not_finite_is_not_drawn():
    figure = plot_detections(IMAGES, truth=TRUTH, class_names=NAMES)
    assert [panel.get_title() for panel in panels(figure)] == ["truth", ""]
    broken = {**FOUND, "boxes": FOUND["boxes"].copy(), "scores": FOUND["scores"].copy()}
    broken["boxes"][0, 0, 1] = np.nan
    broken["scores"][0, 1] = np.nan
    figure = plot_detections(IMAGES, broken, class_names=NAMES)
    assert boxes_of(panels(figure)[0]) == []
    figure_to_array(figure)


def test_images_with_many_objects():
    rng = np.random.default_rng(1)
    corner = rng.uniform(0, 25, (B, 40, 2))
    many = {
        "boxes": np.concatenate([corner, corner + 5], -1),
        "classes": np.zeros((B, 40), int),
    }
    figure = plot_detections(IMAGES, truth=many, class_names=["漢"])
    texts = panels(figure)[0].texts
    assert len(texts) == 40 and float(texts[0].get_fontsize()) < 6
    figure_to_array(figure)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"detections": None, "truth": None}, "must be given. Received: neither"),
        ({"detections": TRUTH}, r"`detections` must have \['scores'\]"),
        ({"truth": {"boxes": BOXES}}, r"`truth` must have \['classes'\]"),
        ({"truth": {**TRUTH, "boxes": BOXES[:1]}}, "of 2 images"),
        ({"truth": {**TRUTH, "masks": BOXES}}, r"masks \(B, M, height, width\)"),
        ({"class_names": ["cat"]}, "must be below 1.*class 1"),
        ({"images": IMAGES[0]}, "pass one image as"),
        ({"colors": COLORS[:1]}, "`colors` must be 2 colors"),
    ],
)
def test_arguments_that_are_refused(change, message):
    given = {"images": IMAGES, "class_names": NAMES, "truth": TRUTH, **change}
    with pytest.raises(ValueError, match=message):
        plot_detections(given.pop("images"), given.pop("detections", FOUND), **given)
