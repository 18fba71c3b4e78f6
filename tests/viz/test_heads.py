"""The heads of all layers side by side."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from model_cases import tiny
from viz.figures import panels, random_attention, tick_labels

from keras_attn.viz import capture_attention, plot_attention_heads, save_figure

TOKENS = ["[CLS]", "a $", "dog", "[SEP]"]
TARGETS = ["ein", "Hund", "<end>"]


def notes(ax):
    return [text.get_text() for text in ax.texts]


def test_one_row_per_layer_and_one_column_per_head():
    scores = {
        "block_0": random_attention(1, 3, 5, 5),
        "block_1": random_attention(2, 5, 5),
    }
    figure = plot_attention_heads(scores, TOKENS, title="a $ dog")
    drawn = panels(figure)
    expected = [*scores["block_0"][0], *scores["block_1"]]
    assert len(drawn) == len(expected)
    for panel, weights in zip(drawn, expected, strict=True):
        # Cut to the tokens.
        np.testing.assert_array_equal(panel.images[0].get_array(), weights[:4, :4])
        assert panel.images[0].get_clim() == (0.0, 1.0)
    assert [notes(panel) for panel in drawn] == [
        ["head 0", "block_0"],
        ["head 1"],
        ["head 2"],
        ["head 0", "block_1"],
        ["head 1"],
    ]
    corners = np.round([panel.get_position().p0 for panel in drawn], 6)
    (lefts, tops) = corners.T.tolist()
    assert lefts[0] == lefts[3] < lefts[1] == lefts[4] < lefts[2]
    assert tops[0] == tops[1] == tops[2] > tops[3] == tops[4]
    # Each label once: left of its row, above its column.
    shown = ["[CLS]", "a␣$", "dog", "[SEP]"]
    assert [tick_labels(panel.yaxis) for panel in drawn] == [shown, [], [], shown, []]
    below = [tick_labels(panel.xaxis) for panel in drawn]
    assert below == [shown] * 3 + [[]] * 2
    assert figure.get_suptitle() == "a $ dog"


def test_layers_and_heads_are_filtered_and_keep_their_numbers():
    scores = {
        f"block_{index}": random_attention(5, 4, 4) + index / 100 for index in (0, 1)
    }
    figure = plot_attention_heads(scores, TOKENS, layers=[1], heads=[4, 2])
    first, second = panels(figure)
    assert notes(first) == ["head 2", "block_1"] and notes(second) == ["head 4"]
    np.testing.assert_array_equal(first.images[0].get_array(), scores["block_1"][2])
    np.testing.assert_array_equal(second.images[0].get_array(), scores["block_1"][4])


def test_the_heads_of_one_layer_are_wrapped():
    drawn = panels(plot_attention_heads({"block": random_attention(8, 4, 4)}, TOKENS))
    tops = np.array([panel.get_position().y0 for panel in drawn]).reshape(2, 4)
    np.testing.assert_allclose(tops, np.repeat(tops[:, :1], 4, axis=1))
    assert tops[0, 0] > tops[1, 0]


def test_an_encoder_decoder_has_its_own_labels_in_each_kind_of_layer():
    model = tiny("transformer_base")
    inputs = {
        "token_ids": np.array([[1, 2, 3, 4]]),
        "padding_mask": np.ones((1, 4), bool),
        "decoder_token_ids": np.array([[5, 6, 7]]),
    }
    scores = capture_attention(model, inputs)
    sources = [str(index) for index in range(4)]
    figure = plot_attention_heads(scores, sources, TARGETS)
    shown = {
        notes(panel)[1]: (tick_labels(panel.yaxis), tick_labels(panel.xaxis))
        for panel in panels(figure)
        if len(notes(panel)) > 1
    }
    assert shown["encoder_block_0/attention"] == (sources, sources)
    assert shown["encoder_block_1/attention"] == (sources, [])  # Those above.
    assert shown["decoder_block_0/self_attention"] == (TARGETS, TARGETS)
    assert shown["decoder_block_0/cross_attention"] == (TARGETS, sources)


def test_nothing_overlaps(tmp_path):
    scores = {f"block_{index}": random_attention(4, 4, 4) for index in range(3)}
    figure = plot_attention_heads(scores, TOKENS, title="a dog")
    save_figure(figure, tmp_path / "heads.png")
    renderer = FigureCanvasAgg(figure).get_renderer()
    # Left, bottom, right and top of each panel with its labels, in pixels.
    boxes = []
    for panel in panels(figure):
        box = panel.get_tightbbox(renderer)
        assert box is not None
        boxes.append(np.array(box.extents))
    for index, one in enumerate(boxes):
        assert (one[:2] >= 0).all() and (one[2:] <= figure.bbox.size).all()
        for two in boxes[index + 1 :]:
            common = np.minimum(one[2:], two[2:]) - np.maximum(one[:2], two[:2])
            assert common.min() <= 1


def test_long_texts_have_no_labels_and_a_bounded_size():
    scores = {"block": random_attention(4, 211, 211)}
    figure = plot_attention_heads(scores, ["token"] * 211)
    assert max(figure.get_size_inches()) < 45
    assert tick_labels(panels(figure)[0].xaxis) == []


@pytest.mark.parametrize(
    "scores, options, message",
    [
        ({}, {}, "`scores` must have at least one layer"),
        ({"a": np.ones((2, 1, 4, 4)) / 4}, {}, "`scores` must have the shape"),
        ({"a": np.ones((1, 3, 3)) / 3}, {}, "`source_tokens` must be a list of 1 to 3"),
        ({"a": np.ones((1, 4, 4)) / 4}, {"layers": [1]}, "`layers` must be .* 0 to 0"),
        ({"a": np.ones((2, 4, 4)) / 4}, {"heads": [2]}, "`heads` must be .* 0 to 1"),
        ({"a": np.ones((2, 4, 4)) / 4}, {"heads": []}, r"Received: heads=\[\]"),
    ],
)
def test_arguments_that_are_refused(scores, options, message):
    with pytest.raises(ValueError, match=message):
        plot_attention_heads(scores, TOKENS, **options)
