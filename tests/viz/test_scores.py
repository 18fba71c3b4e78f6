"""Curves of scores over the length."""

import pytest
from viz.figures import band_edges, line_values

from keras_attn.viz import plot_scores_by_length, save_figure

SCORES = {"with $ attention": [[90, 80, 30], [96, 70, 10]], "without": [[50, 20, 10]]}


def legend_of(axis):
    """Title and labels of the legend."""
    legend = axis.get_legend()
    return [text.get_text() for text in (legend.get_title(), *legend.get_texts())]


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
    lengths, means = line_values(curves["with $ attention"])
    assert lengths.tolist() == [4, 8, 20] and means.tolist() == [93, 75, 20]
    for length, extremes in ((4, (90, 96)), (8, (70, 80)), (20, (10, 30))):
        assert band_edges(axis.collections[0], length) == extremes
    assert {curves[x].get_color() for x in SCORES}.isdisjoint({curves["chance: 10"]})
    assert curves["with $ attention"].get_color() != curves["without"].get_color()
    assert line_values(curves["chance: 10"])[1].tolist() == [10, 10]
    assert [text.get_text() for text in axis.texts] == ["longest in training: 8"]
    assert any(line_values(line)[0].tolist() == [8, 8] for line in axis.lines)
    # Everything longer is shaded, up to the edge.
    shade = axis.patches[0]
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (8, axis.get_xlim()[1])
    assert axis.get_xlabel() == "digits" and axis.get_ylabel() == "digits right (%)"
    assert legend_of(axis) == ["1 to 2 runs: mean, min–max", *SCORES, "chance: 10"]
    assert figure.get_suptitle() == "Copying"
    assert figure.get_supxlabel().count("\n") > 2
    save_figure(figure, tmp_path / "scores.png")


def test_nothing_is_marked_that_is_not_given():
    figure = plot_scores_by_length([1, 2], {"one": [[0, 0]]})
    (axis,) = figure.axes
    assert len(axis.lines) == 1 and not axis.texts and not axis.patches
    assert legend_of(axis) == ["one run", "one"]
    assert axis.get_ylim() == (0, 1)


def test_everything_is_inside_the_axes():
    scores = {"one": [[-3, -5], [-2, -7]]}
    figure = plot_scores_by_length([10, 20], scores, trained_length=2, chance=-8)
    (axis,) = figure.axes
    left, right = axis.get_xlim()
    low, high = axis.get_ylim()
    assert left < 2 and right > 20 and low < -8 and high == 0
    assert legend_of(axis)[0] == "2 runs: mean, min–max"


@pytest.mark.parametrize(
    ("lengths", "scores", "match"),
    [
        ([4], {"a": [[1]]}, r"`lengths` must be two .*lengths=\[4\]"),
        ([4, 4], {"a": [[1, 2]]}, "increasing"),
        ([4, float("inf")], {"a": [[1, 2]]}, "increasing"),
        (["a", "b"], {"a": [[1, 2]]}, r"increasing.*Received: lengths=\['a', 'b'\]"),
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
