"""Where a reader looks: maps, panels, and TensorBoard."""

import keras
import numpy as np
import pytest
from model_cases import create
from viz.figures import panels

from keras_attn.data import CharacterTokenizer
from keras_attn.viz import plot_reading_attention, reading_attention
from keras_attn.viz.callbacks import ReadingAttentionMaps

RNG = np.random.default_rng(0)
TOKENIZER = CharacterTokenizer("abcdefghijklmno")  # V tokens with the special ones.
INPUTS = {
    "images": RNG.random((2, 19, 26, 3)).astype("float32"),
    "widths": np.array([26, 14], "int32"),
    "decoder_token_ids": np.array([[1, 4, 5, 6], [1, 7, 0, 0]], "int32"),
}
BOXES = np.array([[[1, 2, 8, 9], [9, 2, 12, 9], [13, 1, 20, 8]]] * 2, "float32")
IMAGE, MAPS = INPUTS["images"][0], RNG.random((4, 3, 7)).astype("float32")


@pytest.fixture(scope="module")
def model():
    return create("show_attend_read")


def test_maps_are_the_scores_of_the_model(model):
    maps = reading_attention(model, INPUTS)
    assert maps.shape == (2, 4, 3, 7)
    scored = create("show_attend_read", return_attention_scores=True)
    scores = scored(INPUTS)["attention_scores"]
    np.testing.assert_allclose(
        maps.reshape(2, 1, 4, -1), keras.ops.convert_to_numpy(scores), atol=1e-6
    )
    # The second image has 14 columns of pixels, 4 of the map.
    assert not maps[1, ..., 4:].any() and maps[1, ..., :4].any()
    with pytest.raises(ValueError, match="one `AdditiveAttention2D`.*'plain' with 0"):
        reading_attention(keras.Sequential(name="plain"), INPUTS)


def test_a_panel_for_each_character():
    figure = plot_reading_attention(
        IMAGE, MAPS, "abc", width=14, boxes=BOXES[0], title="abc"
    )
    image, *heats = panels(figure)
    assert [panel.get_title() for panel in heats] == ["a", "b", "c"]
    # 14 of 26 columns of pixels are 4 of 7 of the map, which cover 15.
    assert image.images[0].get_size() == (19, 15)
    for panel, heat, box in zip(heats, MAPS, BOXES[0], strict=False):
        np.testing.assert_array_equal(panel.images[1].get_array(), heat[:, :4])
        (patch,) = panel.patches
        left, top, right, bottom = box - 0.5
        assert patch.get_bbox().extents.tolist() == [left, top, right, bottom]
    whole = plot_reading_attention(IMAGE, MAPS, ["a", "<end>"])
    assert whole.axes[0].images[0].get_size() == IMAGE.shape[:2]
    assert not whole.axes[1].patches


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": INPUTS["images"]}, "`image` must have the shape .height, width"),
        ({"maps": MAPS[0]}, "`maps` must be .characters, rows, columns"),
        ({"maps": MAPS * np.nan}, "`maps` must be finite"),
        ({"characters": ""}, "a map for each of `characters`.*0 characters"),
        ({"characters": "abcde"}, "a map for each of `characters`.*5 characters"),
        ({"width": 0}, "`width` must be from 1 to 26"),
        ({"width": 27}, "`width` must be from 1 to 26.*width=27"),
        ({"boxes": BOXES}, "`boxes` must be finite, .characters, 4"),
        ({"boxes": BOXES[0] * np.nan}, "`boxes` must be finite"),
    ],
)
def test_bad_arguments(options, message):
    given = {"image": IMAGE, "maps": MAPS, "characters": "ab", **options}
    with pytest.raises(ValueError, match=message):
        plot_reading_attention(**given)


def test_the_callback_draws_words_up_to_their_widths(model, tmp_path):
    maps = ReadingAttentionMaps(tmp_path, INPUTS, TOKENIZER, boxes=BOXES)
    maps.set_model(model)
    figures = dict(maps._figures())
    titles = [
        (len(panels(figure)) - 1, figure.get_suptitle()) for figure in figures.values()
    ]
    # The characters and the end of each word.
    assert titles == [(4, "abc"), (2, "d")]
    assert figures["reading/1"].axes[0].images[0].get_size()[1] == 15
