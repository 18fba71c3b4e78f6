import numpy as np
import pytest
from viz.figures import panels

from keras_attn.viz import plot_segmentation
from keras_attn.viz.drawing.panels import class_colors
from keras_attn.viz.drawing.plots import figure_to_array

RNG = np.random.default_rng(0)
B, H, W, C = 2, 7, 11, 3
IMAGES = RNG.random((B, H, W, 3)).astype("float32")
LABELS = RNG.integers(0, C, (B, H, W))
LABELS[:, 0] = 255
LOGITS = RNG.normal(size=(B, H, W, C))
NAMES = ["sky", "road $x_1$", "漢字 \U0001f9ff"]
COLORS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]])


def drawn(figure):
    """Pixels of each panel, (rows, columns, H, W, 3)."""
    pixels = np.array([panel.images[0].get_array() for panel in panels(figure)])
    return pixels.reshape(B, -1, H, W, 3)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_classes_are_painted_over_the_image():
    figure = plot_segmentation(
        IMAGES,
        LABELS,
        LOGITS,
        class_names=NAMES,
        colors=COLORS.tolist(),
        opacity=0.25,
        errors=True,
        title="epoch $3",
    )
    titles = [ax.get_title() for ax in figure.axes[:4]]
    assert titles == ["image", "truth", "prediction", "wrong pixels"]
    pixels = drawn(figure)
    np.testing.assert_allclose(pixels[:, 0], IMAGES, atol=1e-6)
    predicted = LOGITS.argmax(-1)
    for column, classes in ((1, LABELS), (2, predicted)):
        known = classes != 255
        expected = 0.75 * IMAGES[known] + 0.25 * COLORS[classes[known]] / 255
        np.testing.assert_allclose(pixels[:, column][known], expected, atol=1e-6)
    ignored = LABELS == 255
    painted = pixels[:, 1][ignored] - 0.75 * IMAGES[ignored]
    assert np.ptp(painted, axis=-1).max() < 1e-6  # Gray.
    wrong = (LABELS != predicted) & ~ignored
    is_red = (np.abs(pixels[:, 3] - [0.86, 0.08, 0.24]) < 0.01).all(-1)
    np.testing.assert_array_equal(is_red, wrong)
    assert figure.get_suptitle() == "epoch $3"
    assert figure_to_array(figure).std() > 1


def test_the_legend_has_the_classes_that_occur():
    figure = plot_segmentation(IMAGES, LABELS, LOGITS, class_names=NAMES)
    # A character that no font has is drawn as a box.
    assert legend(figure)[:2] == NAMES[:2] and legend(figure)[3] == "ignored"
    one = np.ones((B, H, W), bool)
    figure = plot_segmentation(IMAGES, one, class_names=NAMES)
    assert legend(figure) == [NAMES[1]]
    assert drawn(figure).shape[1] == 2
    figure_to_array(figure)
    assert plot_segmentation(IMAGES, class_names=NAMES).legends == []


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_usual_ranges_are_kept(scale):
    dark = IMAGES[..., :1] * 0.3
    figure = plot_segmentation(dark * scale, class_names=NAMES)
    np.testing.assert_allclose(drawn(figure)[:, 0, ..., 1], dark[..., 0], atol=1e-6)


def test_other_ranges_are_stretched():
    figure = plot_segmentation(IMAGES * 7 - 3, class_names=NAMES)
    pixels = drawn(figure)
    assert pixels.min() == 0 and pixels.max() == pytest.approx(1)


def test_many_classes_have_different_colors():
    colors = class_colors(150)
    assert len(np.unique(colors.round(3), axis=0)) == 150
    assert colors.min() >= 0 and colors.max() <= 1
    np.testing.assert_array_equal(colors[:5], class_colors(5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": IMAGES[0]}, "pass one image as `image"),
        ({"images": IMAGES[..., :2]}, "must have the shape"),
        ({"images": IMAGES * np.nan}, "`images` must be finite"),
        ({"labels": LABELS[:, 1:]}, r"`labels` must be integers of the shape \(2, 7"),
        ({"labels": LABELS * 1.0}, "`labels` must be integers"),
        ({"labels": LABELS + 3}, r"`labels` must be below 3.*\[3, 4"),
        ({"labels": LABELS * 0 - 1}, r"or 255. Received: \[-1\]"),
        ({"predictions": LOGITS[..., :2]}, "logits of 3 classes"),
        ({"predictions": LOGITS[0]}, "`predictions` must be integers"),
        ({"colors": COLORS[:2]}, "`colors` must be 3 colors"),
        ({"colors": COLORS + 1}, "from 0 to 255"),
        ({"opacity": 1.5}, r"`opacity` must be in \[0, 1\]"),
        ({"labels": None, "errors": True}, r"to draw errors. Received: \['prediction"),
    ],
)
def test_arguments_that_are_refused(change, message):
    given = {"images": IMAGES, "labels": LABELS, "predictions": LOGITS, **change}
    with pytest.raises(ValueError, match=message):
        plot_segmentation(given.pop("images"), class_names=NAMES, **given)
