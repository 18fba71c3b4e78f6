import pytest
from viz.figures import tick_labels

from keras_attn import models
from keras_attn.viz import plot_model_scores, plot_model_sizes
from keras_attn.viz.drawing.plots import figure_to_array


def cards(*patterns):
    names = [name for each in patterns for name in models.list_models(each)]
    return [models.describe(name) for name in names]


def points_of(ax):
    """The points of each line."""
    return [tuple(map(tuple, line.get_xydata())) for line in ax.lines]


def drawn(figure):
    """The points of each line of a figure that has one axes."""
    (ax,) = figure.axes
    return points_of(ax)


def notes(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_points_are_above_their_years():
    figure = plot_model_sizes(cards("gpt*", "megatron_*"))
    (ax,) = figure.axes
    assert ax.get_yscale() == "log" and ax.get_ylabel() == "parameters"
    assert tick_labels(ax.xaxis) == ["2018", "2019", "2020"]
    points = [point for line in drawn(figure) for point in line]
    assert len(points) == len(notes(figure)) == 17
    assert (2020.0, 175e9) in points and (2018.0, 117e6) in points
    # GPT, GPT-2, Megatron, GPT-3.
    assert len({str(line.get_color()) for line in ax.lines}) == 4
    assert "gpt3_175b  175B" in notes(figure)
    # No label covers the one below it.
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            width = min(one.x1, other.x1) - max(one.x0, other.x0)
            height = min(one.y1, other.y1) - max(one.y0, other.y0)
            assert width <= 0 or height <= 0.25 * one.height


def test_of_many_models_the_largest_are_named():
    every = cards("*")
    figure = plot_model_sizes(every)
    known = [card for card in every if card.parameters is not None]
    assert len(drawn(figure)) == len(known) > 60 > len(notes(figure))
    named = [text.split()[0] for text in notes(figure)]
    assert {"gpt3_175b", "gpt2_xl", "megatron_8p3b", "swin_large"} <= set(named)
    assert not {"gpt3_13b", "gpt2_large", "swin_base"} & set(named)


def test_models_are_rows_from_small_to_large():
    figure = plot_model_sizes(cards("swin_*", "rnnsearch_*"), "model", title="Swin $")
    (ax,) = figure.axes
    # The paper of the others gives no number.
    assert tick_labels(ax.yaxis) == [
        f"swin_{size}, 2021" for size in ("tiny", "small", "base", "large")
    ]
    assert notes(figure) == ["28.3M", "49.6M", "87.8M", "197M"]
    assert [point for line in drawn(figure) for point in line] == [
        (28_288_354, 0),
        (49_606_258, 1),
        (87_768_224, 2),
        (196_532_476, 3),
    ]
    assert ax.yaxis_inverted() and ax.get_xscale() == "log"
    assert figure_to_array(figure).std() > 0


def test_scores_have_a_panel_per_setting_and_a_line_per_series():
    figure = plot_model_scores(cards("vit_*", "deit3_*", "swin_*", "convnext_*"))
    settings = [
        "at 224",
        "at 384",
        "from ImageNet-21k, at 224",
        "from ImageNet-21k, at 384",
        "from JFT-300M, at 384",
    ]
    assert [ax.get_title() for ax in figure.axes] == [*settings, ""]
    assert not figure.axes[5].axison
    assert figure.get_supxlabel() == "parameters"
    assert figure.get_supylabel() == "ImageNet top-1 (%)"
    lines = dict(zip(settings, map(points_of, figure.axes), strict=False))
    # From ImageNet alone, the larger ViT is worse; patches of 16 and 32 are apart.
    assert ((86e6, 77.91), (307e6, 76.53)) in lines["at 384"]
    assert ((88e6, 73.38), (306e6, 71.16)) in lines["at 384"]
    convnext, deit3, swin = lines["at 224"]
    assert swin == ((28_288_354, 81.3), (49_606_258, 83.0), (87_768_224, 83.5))
    assert deit3[:3] == ((22e6, 81.4), (39e6, 83.1), (86.6e6, 83.8))
    # All panels can be compared: they share their axes, and a series its color.
    assert len({ax.get_ylim() for ax in figure.axes[:5]}) == 1
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    patches = [f"vit patch{size}" for size in (14, 16, 32)]
    assert legend == ["convnext", "deit3", "swin", *patches]
    colors = {str(line.get_color()) for ax in figure.axes for line in ax.lines}
    assert len(colors) == 6


def test_ticks_within_a_decade_are_few_and_named():
    figure = plot_model_scores(cards("swin_*"))
    figure.draw_without_rendering()
    low, high = figure.axes[0].get_xlim()
    axis = figure.axes[0].xaxis
    ticks = zip(axis.get_majorticklocs(), tick_labels(axis), strict=True)
    assert [text for at, text in ticks if low < at < high] == ["50M", "100M", "200M"]


def test_error_messages():
    with pytest.raises(ValueError, match="`by` must be one of .*by='size'"):
        plot_model_sizes(cards("swin_*"), by="size")  # pyright: ignore
    with pytest.raises(ValueError, match=r"`cards` must have .*\['rnnsearch_30', 'r"):
        plot_model_sizes(cards("rnnsearch_*"))
    with pytest.raises(ValueError, match="`measure` must be .* ImageNet top-1.*='top'"):
        plot_model_scores(cards("swin_*"), "top")
    with pytest.raises(ValueError, match="number of parameters: none. Received: "):
        plot_model_scores(cards("rnnsearch_*"), "BLEU En-Fr")
