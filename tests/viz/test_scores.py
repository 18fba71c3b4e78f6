"""Curves of scores over the length."""

import numpy as np
import pytest

from keras_attn.viz import plot_scores_by_length, save_figure

SCORES = {"with $ attention": [[90, 80, 30], [96, 70, 10]], "without": [[50, 20, 10]]}


def test_curves_are_means_and_bands_are_extremes(tmp_path):
    figure = plot_scores_by_length(
        [4, 8, 20],
        SCORES,
        score_name="digits right (%)",
        length_name="digits",
        trained_length=8,
        chance=10,
        note="word " * 60,
        title="Copying",
    )
    (axis,) = figure.axes
    curves = {line.get_label(): line for line in axis.lines}
    np.testing.assert_allclose(curves["with $ attention"].get_ydata(), [93, 75, 20])
    np.testing.assert_allclose(curves["without"].get_xdata(), [4, 8, 20])
    band = next(x for x in axis.collections).get_paths()[0].vertices
    for length, column in zip((4, 8, 20), np.transpose(SCORES["with $ attention"])):  # noqa: B905
        edges = band[band[:, 0] == length, 1]
        assert (edges.min(), edges.max()) == (column.min(), column.max())
    assert {curves[x].get_color() for x in SCORES}.isdisjoint({curves["chance: 10"]})
    assert curves["with $ attention"].get_color() != curves["without"].get_color()
    assert curves["chance: 10"].get_ydata()[0] == 10
    assert [text.get_text() for text in axis.texts] == ["longest in training: 8"]
    assert any(list(line.get_xdata()) == [8, 8] for line in axis.lines)
    # Everything longer is shaded, up to the edge.
    shade = axis.patches[0]
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (8, axis.get_xlim()[1])
    assert axis.get_xlabel() == "digits" and axis.get_ylabel() == "digits right (%)"
    legend = axis.get_legend()
    assert legend.get_title().get_text() == "2 runs: mean, min–max"
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == [*SCORES, "chance: 10"]
    assert figure.get_suptitle() == "Copying"
    assert figure.get_supxlabel().count("\n") > 2
    save_figure(figure, tmp_path / "scores.png")


def test_nothing_is_marked_that_is_not_given():
    figure = plot_scores_by_length([1, 2], {"one": [[0, 0]]})
    (axis,) = figure.axes
    assert len(axis.lines) == 1 and not axis.texts and not axis.patches
    assert axis.get_legend().get_title().get_text() == "one run"


@pytest.mark.parametrize(
    ("lengths", "scores", "match"),
    [
        ([4], {"a": [[1]]}, r"`lengths` must be two .*lengths=\[4.0\]"),
        ([4, 4], {"a": [[1, 2]]}, "increasing"),
        ([4, 8], {}, "`scores` must be a dictionary of 1 to 6"),
        ([4, 8], {str(n): [[1, 2]] for n in range(7)}, "of 1 to 6 models"),
        ([4, 8], [[1, 2]], "`scores` must be a dictionary"),
        ([4, 8], {"a": [1, 2]}, r"\(runs, 2\) numbers.*'a' of shape \(2,\)"),
        ([4, 8], {"a": [[1, 2, 3]]}, r"Received: 'a' of shape \(1, 3\)"),
        ([4, 8], {"a": [[1, 2], [3]]}, r"Received: 'a' of shape \(\)"),
        ([4, 8], {"a": [[1, float("nan")]]}, "finite. Received: 'a' with 1 of 2"),
    ],
)
def test_what_cannot_be_drawn(lengths, scores, match):
    with pytest.raises(ValueError, match=match):
        plot_scores_by_length(lengths, scores)
