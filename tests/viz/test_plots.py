import io
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from viz.figures import panels, random_attention, tick_labels

from keras_attn.viz import plot_alignment, save_figure
from keras_attn.viz.drawing import labels
from keras_attn.viz.drawing.plots import figure_to_array

SOURCE = ["Das", "ist", "ein", "Haus", "."]
TARGET = ["This", "is", "<end>"]


def test_rows_are_targets_and_columns_are_sources():
    scores = random_attention(7, 11)
    figure = plot_alignment(scores, SOURCE, TARGET, title="one $ and $ two")
    (panel,) = panels(figure)
    # Trimmed to the tokens.
    np.testing.assert_array_equal(panel.images[0].get_array(), scores[:3, :5])
    assert tick_labels(panel.xaxis) == SOURCE
    assert tick_labels(panel.yaxis) == TARGET
    assert panel.get_aspect() == 1.0
    # The first target is at the top, the source above it.
    assert panel.yaxis_inverted()
    assert panel.xaxis.get_tick_params()["labeltop"]
    assert not panel.xaxis.get_tick_params()["labelbottom"]
    assert {label.get_rotation() for label in panel.get_xticklabels()} == {90.0}
    assert figure.get_suptitle() == "one $ and $ two"


def test_the_colour_bar_is_labelled_and_runs_from_0_to_1():
    figure = plot_alignment(random_attention(3, 5) * 0.1, SOURCE, TARGET)
    assert panels(figure)[0].images[0].get_clim() == (0.0, 1.0)
    (bar,) = (ax for ax in figure.axes if not ax.images)
    assert bar.get_ylabel() == "attention weight (probability)"


@pytest.mark.parametrize(
    ("heads", "rows", "columns"),
    [(1, 1, 1), (2, 1, 2), (3, 1, 3), (5, 2, 3), (7, 2, 4), (8, 2, 4), (13, 5, 3)],
)
def test_one_panel_per_head(heads, rows, columns):
    scores = random_attention(heads, 3, 5)
    figure = plot_alignment(scores, SOURCE, TARGET)
    drawn = panels(figure)
    assert len(drawn) == heads
    subplot = drawn[0].get_subplotspec()
    assert subplot is not None
    assert subplot.get_gridspec().get_geometry() == (rows, columns)
    for head, panel in enumerate(drawn):
        np.testing.assert_array_equal(panel.images[0].get_array(), scores[head])
        assert panel.get_xlabel() == (f"head {head}" if heads > 1 else "")
        first = head % columns == 0
        assert panel.yaxis.get_tick_params()["labelleft"] == first


def test_a_long_source_continues_below():
    source = [*"twenty-third of september, two thousand"]
    scores = random_attention(7, len(source))
    strip, square = (
        plot_alignment(scores, source, [*"23.9.20"], wrap=wrap)
        for wrap in (False, True)
    )
    assert len(panels(strip)) == 1 and len(panels(square)) == 2
    one, two = (np.asarray(ax.images[0].get_array()) for ax in panels(square))
    found = np.concatenate([one, two], axis=1)
    np.testing.assert_array_equal(found[:, : len(source)], scores)
    assert np.isnan(found[:, len(source) :]).all() and found.shape[1] == 40
    labels = [label for ax in panels(square) for label in tick_labels(ax.xaxis)]
    assert labels == [*"twenty-third␣of␣september,␣two␣thousand", ""]
    shapes = [np.divide(*figure_to_array(x).shape[1::-1]) for x in (strip, square)]
    assert shapes[0] > 3 and 0.5 < shapes[1] < 2
    # Heads are laid out alike; each is named once.
    heads = plot_alignment(random_attention(2, 7, 39), source, [*"23.9.20"], wrap=True)
    names = [ax.get_xlabel() for ax in panels(heads)]
    assert [name for name in names if name] == ["head 0", "head 1"]


def test_single_characters_are_not_rotated_and_spaces_are_visible():
    figure = plot_alignment(random_attention(3, 4), list("a b."), ["x\n", "é", "\t"])
    (panel,) = panels(figure)
    assert tick_labels(panel.xaxis) == ["a", "␣", "b", "."]
    assert tick_labels(panel.yaxis) == ["x\\n", "é", "\\t"]
    assert {label.get_rotation() for label in panel.get_xticklabels()} == {0.0}


def test_letters_shrink_with_the_cells():
    small = plot_alignment(random_attention(3, 211), ["w"] * 211, TARGET)
    large = plot_alignment(random_attention(3, 5), SOURCE, TARGET)
    labels = [panels(figure)[0].get_xticklabels()[0] for figure in (small, large)]
    sizes = [float(label.get_fontsize()) for label in labels]
    assert 4.0 <= sizes[0] < sizes[1] <= 10.0
    assert small.get_size_inches()[0] < 25


def test_texts_are_not_parsed_as_formulas_and_no_glyph_is_missing():
    # pytest turns the warnings of matplotlib, if any, into errors.
    source = ["$5", "$6_x", "漢字", "▁Büsche", "\U0001f9ff", "\u200d"]
    figure = plot_alignment(
        random_attention(3, 6), source, TARGET, title="漢 $x_$ \x00"
    )
    assert figure_to_array(figure).std() > 0


def test_characters_that_cannot_be_drawn_are_replaced(monkeypatch):
    assert labels.readable("a \x07é") == "a␣\\x07é"
    assert labels.drawable("a \U0010fffd") == "a \\U0010fffd"
    monkeypatch.setattr(labels, "_fonts", lambda: [])
    monkeypatch.setattr(labels, "_drawable", labels._drawable.__wrapped__)
    monkeypatch.setattr(labels, "_advise", labels._advise.__wrapped__)
    for text, font in [
        ("漢", "Noto Sans CJK SC"),
        ("한", "Noto Sans CJK SC"),
        ("a", "Unifont"),
        ("\U0001f9ff", "Noto Emoji"),
    ]:
        with pytest.warns(UserWarning, match=f'Install the font "{font}"'):
            assert labels.drawable(text) == "□"
    assert labels.drawable("□") == "□"


def test_axes_can_be_given():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    out = plot_alignment(
        random_attention(1, 3, 5), SOURCE, TARGET, title="$ here", ax=right
    )
    assert out is figure
    assert not left.images
    assert len(right.images) == 1
    assert right.get_title() == "$ here"
    assert len(figure.axes) == 2
    assert figure_to_array(figure).std() > 0


def test_axes_hold_one_head():
    ax = Figure().subplots()
    with pytest.raises(ValueError, match="one panel. Received: scores of 2 heads"):
        plot_alignment(random_attention(2, 3, 5), SOURCE, TARGET, ax=ax)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5, 7), (0, 5)])
def test_scores_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"`scores` must have the shape \(T, S\) or"):
        plot_alignment(np.zeros(shape), SOURCE, TARGET)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.nan, "`scores` must be finite.*1 of 15"),
        (np.inf, "`scores` must be finite.*1 of 15"),
        (-0.5, r"`scores` must be probabilities in \[0, 1\]"),
        (1.5, r"`scores` must be probabilities in \[0, 1\]"),
    ],
)
def test_scores_must_be_probabilities(bad, message):
    scores = random_attention(3, 5)
    scores[1, 2] = bad
    with pytest.raises(ValueError, match=message):
        plot_alignment(scores, SOURCE, TARGET)


def test_rounded_probabilities_are_accepted():
    plot_alignment(np.full((3, 5), 1.004), SOURCE, TARGET)


@pytest.mark.parametrize("tokens", [["w"] * 6, [], "Haus"])
def test_tokens_must_fit_the_scores(tokens):
    with pytest.raises(ValueError, match="`source_tokens` must be a list of 1 to 5"):
        plot_alignment(random_attention(3, 5), tokens, TARGET)
    with pytest.raises(ValueError, match="`target_tokens` must be a list of 1 to 3"):
        plot_alignment(random_attention(3, 7), SOURCE, tokens)


def test_a_figure_is_saved_in_the_format_of_its_suffix(tmp_path):
    figure = plot_alignment(random_attention(3, 5), SOURCE, TARGET)
    heads = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    for suffix, head in heads.items():
        path = tmp_path / "new" / f"figure.{suffix}"
        save_figure(figure, path)
        assert path.read_bytes().startswith(head)
    assert len(list((tmp_path / "new").iterdir())) == 3


@pytest.mark.parametrize("name", ["figure", "figure.bmpx"])
def test_an_unknown_suffix_is_refused(tmp_path, name):
    figure = plot_alignment(random_attention(3, 5), SOURCE, TARGET)
    with pytest.raises(ValueError, match=rf"`path` must end in one of .*png.*{name}'"):
        save_figure(figure, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_notebook_shows_a_figure():
    # Of two figures: the layout of a figure moves when it is drawn again.
    one, two = (
        plot_alignment(random_attention(3, 5), SOURCE, TARGET) for _ in range(2)
    )
    shown: Any = one
    picture = Image.open(io.BytesIO(shown._repr_png_())).convert("RGB")
    np.testing.assert_array_equal(np.asarray(picture), figure_to_array(two))


def test_pixels_are_red_green_and_blue():
    figure = Figure(figsize=(3, 2), dpi=50, facecolor=(1.0, 0.0, 0.2))
    canvas = figure.canvas
    pixels = figure_to_array(figure)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (100, 150, 3)
    assert (pixels == [255, 0, 51]).all()
    assert figure.canvas is canvas


def test_pyplot_is_not_needed():
    figure_to_array(plot_alignment(random_attention(3, 5), SOURCE, TARGET))
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()
