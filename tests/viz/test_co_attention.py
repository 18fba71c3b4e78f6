"""Co-attention of words and regions: scores without padding, pictures, TensorBoard."""

from typing import Any

import keras
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from model_cases import inputs_for, tiny
from viz.figures import random_attention, tick_labels

from keras_attn import models
from keras_attn.viz import (
    capture_attention,
    capture_co_attention,
    plot_region_words,
    plot_word_regions,
    save_figure,
)
from keras_attn.viz.callbacks import CoAttentionMaps

RNG = np.random.default_rng(0)
IMAGE = RNG.random((12, 20, 3))
BOXES = np.array([[1, 2, 9, 8], [0, 0, 20, 12], [10, 3, 14, 11]], "float32")
WORDS = ["[CLS]", "$red$", "Straße", "ring"]
TO_REGIONS = random_attention(2, 4, 3)
TO_WORDS = random_attention(2, 3, 4)
HEADS = 13  # Of the co-attention of the tiny models.
PADDED = [True, False, True, True, False]


def sample():
    """A model, its inputs with padding of both kinds, and examples to draw."""
    model = tiny("vilbert_base")
    inputs = inputs_for(model)
    inputs["region_padding_mask"][1] = PADDED
    inputs["region_boxes"] = np.sort(RNG.random((2, 5, 2, 2)), axis=2).reshape(2, 5, 4)
    inputs["region_boxes"] = inputs["region_boxes"].astype("float32")
    inputs["padding_mask"] = inputs["padding_mask"][:, ::-1].copy()
    tokens = [list("abcde"), list("xyz")]
    return model, inputs, tokens


def test_scores_are_of_real_words_and_regions():
    model, inputs, _ = sample()
    scores = capture_attention(model, inputs)
    examples = capture_co_attention(model, inputs)
    is_word = inputs["padding_mask"][1].astype(bool)
    assert list(is_word) == [False, False, True, True, True]
    for number, example in enumerate(examples):
        assert list(example) == ["co_attention_0", "co_attention_1"]
        for found in example.values():
            total = found.to_regions.sum(-1) + found.to_whole
            np.testing.assert_allclose(total, 1, atol=1e-5)
            np.testing.assert_allclose(found.to_words.sum(-1), 1, atol=1e-5)
            count = (5, 3)[number]
            shape = (HEADS, count, count)
            assert found.to_regions.shape == found.to_words.shape == shape
    found = examples[1]["co_attention_1"]
    to_regions = scores["co_attention_1/text_attention"][1]  # (HEADS, 5, 1 + 5)
    real = 1 + np.flatnonzero(PADDED)
    np.testing.assert_array_equal(found.to_regions, to_regions[:, 2:, real])
    np.testing.assert_array_equal(found.to_whole, to_regions[:, 2:, 0])
    to_words = scores["co_attention_1/region_attention"][1]  # (HEADS, 1 + 5, 5)
    np.testing.assert_array_equal(found.to_words, to_words[:, real, 2:])


def test_vln_bert_has_no_region_of_the_whole_image():
    model = tiny("vln_bert_base")
    inputs = inputs_for(model)
    inputs["region_padding_mask"][1] = PADDED
    _, found = capture_co_attention(model, inputs)
    scores = found["co_attention_1"]
    assert scores.to_regions.shape[1:] == (3, 3) and not scores.to_whole.any()
    np.testing.assert_allclose(scores.to_regions.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(scores.to_words.sum(-1), 1, atol=1e-5)


def test_heads_have_the_scores_of_their_encoder():
    model, inputs, _ = sample()
    head = models.build_vilbert_scorer(model)
    (one, _), (same, _) = (capture_co_attention(each, inputs) for each in (model, head))
    for name, found in one.items():
        np.testing.assert_array_equal(found.to_words, same[name].to_words)


def test_only_models_with_co_attention_and_masks():
    model, inputs, _ = sample()
    del inputs["region_padding_mask"]
    with pytest.raises(ValueError, match="`inputs` must be a dictionary with padding_"):
        capture_co_attention(model, inputs)
    with pytest.raises(ValueError, match="padding_mask.*Received: <class 'list'>"):
        capture_co_attention(model, list(inputs.values()))  # pyright: ignore[reportArgumentType]
    words = tiny("bert_base")
    mask = keras.Input((None,), name="region_padding_mask")
    inputs = {**words.input, mask.name: mask}
    longer = keras.Model(inputs, words.output, name="longer")
    inputs = {name: np.ones((1, 5), "int32") for name in inputs}
    with pytest.raises(ValueError, match="blocks of co-attention, .*model='longer'"):
        capture_co_attention(longer, inputs)


def test_the_region_that_a_word_attends_to_most_is_the_most_opaque(tmp_path):
    figure = plot_word_regions(IMAGE, WORDS, BOXES, TO_REGIONS, title="block $0$")
    for ax, word, share in zip(figure.axes, WORDS, TO_REGIONS.mean(0), strict=True):
        assert ax.get_title() == f"{word} {share.max():.0%}"
        for box, frame, part in zip(BOXES, ax.patches, share, strict=True):
            size = frame.get_width(), frame.get_height()
            np.testing.assert_allclose(frame.get_xy(), box[:2] - 0.5)
            np.testing.assert_allclose(size, box[2:] - box[:2])
            opacity = part / share.max()
            assert to_rgba(frame.get_edgecolor())[3] == pytest.approx(opacity)
            assert frame.get_linewidth() == pytest.approx(2 * opacity)
    # The image fades to white as the share falls; of two regions, the larger counts.
    scores = np.array([[0.2, 0.0, 0.8]])
    (ax,) = plot_word_regions(IMAGE, ["word"], BOXES, scores).axes
    shown: Any = ax.images[0].get_array()
    bright = (IMAGE - IMAGE.min()) / (IMAGE.max() - IMAGE.min())
    for (row, column), share in {(4, 11): 1, (4, 5): 0.25, (11, 19): 0}.items():
        kept = 0.25 + 0.75 * share
        expected = kept * bright[row, column] + 1 - kept
        np.testing.assert_allclose(shown[row, column], expected, atol=1e-5)
    save_figure(figure, tmp_path / "words.png")
    one = plot_word_regions(IMAGE[..., :1], WORDS, BOXES, TO_REGIONS[1], chosen=[2])
    assert [ax.get_title()[:6] for ax in one.axes] == ["Straße"]


def test_regions_are_numbered_as_in_the_panel(tmp_path):
    names = ["ring", "$all$", "star"]
    figure = plot_region_words(IMAGE, WORDS, BOXES, TO_WORDS, names=names)
    picture, panel = figure.axes[:2]
    np.testing.assert_array_equal(panel.images[0].get_array(), TO_WORDS.mean(0))
    assert tick_labels(panel.yaxis) == ["0 ring", "1 $all$", "2 star"]
    assert tick_labels(panel.xaxis) == WORDS
    assert [text.get_text() for text in picture.texts] == ["0", "1", "2"]
    for box, frame, text in zip(BOXES, picture.patches, picture.texts, strict=True):
        np.testing.assert_allclose(frame.get_xy(), box[:2] - 0.5)
        np.testing.assert_allclose(text.xy, box[:2] - 0.5)
        label = text.get_bbox_patch()
        assert label is not None
        assert to_rgba(frame.get_edgecolor()) == to_rgba(label.get_facecolor())
    save_figure(figure, tmp_path / "regions.png")
    plain = plot_region_words(IMAGE, WORDS, BOXES, TO_WORDS[0])
    assert tick_labels(plain.axes[1].yaxis) == ["0", "1", "2"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image": IMAGE[None]}, "`image` must have the shape"),
        ({"boxes": BOXES[0]}, r"`boxes` must be \(regions, 4\), .*\(4,\)"),
        ({"boxes": BOXES[:0]}, r"`boxes` must be \(regions, 4\), at least one"),
        ({"boxes": BOXES[:, ::-1]}, "`boxes` must be finite: left, top, right"),
        ({"boxes": BOXES * np.nan}, "`boxes` must be finite: left, top, right"),
        ({"boxes": BOXES[:2]}, r"`scores` must be \((words|regions), "),
        ({"words": WORDS[:3]}, r"`scores` must be \((words|regions), "),
        ({"scale": 9}, r"`scores` must be probabilities in \[0, 1\]"),
        ({"scale": np.nan}, "`scores` must be finite"),
    ],
)
def test_other_values_are_refused(changes, message):
    changes = dict(changes)
    scale = changes.pop("scale", 1)
    for plot, scores in (
        (plot_word_regions, TO_REGIONS),
        (plot_region_words, TO_WORDS),
    ):
        arguments = {"image": IMAGE, "words": WORDS, "boxes": BOXES, **changes}
        with pytest.raises(ValueError, match=message):
            plot(**arguments, scores=scores * scale)


def test_chosen_words_and_names_must_exist():
    chosen: Any
    for chosen in ([], [4], [-1], [0.5]):
        with pytest.raises(ValueError, match="`chosen` must be numbers of words, from"):
            plot_word_regions(IMAGE, WORDS, BOXES, TO_REGIONS, chosen=chosen)
    for names in (["a"], "abc"):
        with pytest.raises(ValueError, match="`names` must be 3, one for each of"):
            plot_region_words(IMAGE, WORDS, BOXES, TO_WORDS, names=names)


def test_the_callback_draws_the_real_regions_of_one_head(tmp_path):
    model, inputs, tokens = sample()
    images = [IMAGE, IMAGE]
    options = {"names": [list("12345"), list("678")], "layer": "_1$", "head": 1}
    maps = CoAttentionMaps(tmp_path, inputs, images, tokens, **options)
    maps.set_model(model)
    figures = dict(maps._figures())
    assert list(figures) == [
        *("words/co_attention_1/0", "regions/co_attention_1/0"),
        *("words/co_attention_1/1", "regions/co_attention_1/1"),
    ]
    picture, panel = figures["regions/co_attention_1/1"].axes[:2]
    found = capture_co_attention(model, inputs)[1]["co_attention_1"]
    shown: Any = panel.images[0].get_array()
    np.testing.assert_allclose(shown, found.to_words[1])
    box = inputs["region_boxes"][1, 2] * [20, 12, 20, 12]  # The second real region.
    np.testing.assert_allclose(picture.patches[1].get_xy(), box[:2] - 0.5, rtol=1e-5)
    ax = figures["words/co_attention_1/1"].axes[0]
    assert ax.get_title() == f"x {found.to_regions[1, 0].max():.0%}"
    options: Any
    for options, message in (
        ({"head": HEADS}, "`head` must be below 13, the heads of co_attention_0"),
        ({"layer": "self"}, "`layer` must match the path of at least one"),
    ):
        wrong = CoAttentionMaps(tmp_path, inputs, images, tokens, **options)
        wrong.set_model(model)
        with pytest.raises(ValueError, match=message):
            wrong.on_train_begin()
    wrong = CoAttentionMaps(tmp_path, inputs, images, [tokens[1], tokens[0]])
    wrong.set_model(model)
    with pytest.raises(ValueError, match=r"`scores` must be \(words, regions\), \(3, "):
        wrong.on_train_begin()
    with pytest.raises(TypeError, match="`inputs` must be a dictionary"):
        CoAttentionMaps(tmp_path, [IMAGE], [IMAGE], tokens)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="the same examples. .*'tokens': 1"):
        CoAttentionMaps(tmp_path, inputs, images, tokens[:1])
    with pytest.raises(ValueError, match="the same examples. .*'names': 1"):
        CoAttentionMaps(tmp_path, inputs, images, tokens, names=[["a"]])
    for head in (-1, 0.5):
        with pytest.raises(ValueError, match="`head` must be the number of a head, or"):
            CoAttentionMaps(tmp_path, inputs, images, tokens, head=head)  # pyright: ignore[reportArgumentType]
