"""Rendered words: characters where they are said to be, the same for the same seed."""

import math
import string
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from refusals import refuses

from keras_attn.data import FONTS, RenderedWords, hold_out, random_words
from keras_attn.data.synthetic.word_drawing import Look, draw_color, draw_word
from keras_attn.data.synthetic.word_fonts import font_characters, font_path

skip_module_without_tensorflow("tf.data feeds TensorFlow")

TEXTS = ["g", "Wij", "kitten", "Zebra7", "minimum", "i"]
WORDS = RenderedWords(TEXTS, max_length=7, image_size=(31, 97), seed=3)
EXAMPLES = [WORDS.example(index) for index in range(24)]
LUMA = np.array([0.299, 0.587, 0.114])


def plain(**changes):
    """White characters on black without any change of shape, but for `changes`."""
    straight: dict[str, Any] = {
        "angle": 0.0,
        "curvature": 0.0,
        "perspective": (0.0, 0.0),
        "fill": 1.0,
        "text": np.ones(3),
        "background": np.zeros(3),
        "blur": 0.0,
        "noise": 0.0,
    }
    return Look(**{**straight, **changes})


def drawn(word="nnnnn", font="DejaVuSansMono", size=(61, 211), **changes):
    """The image in [0, 1] of a look, and the ink of each character."""
    random = np.random.default_rng(0)
    image, ink = draw_word(word, font_path(font), plain(**changes), size, random)
    return image / 255, ink


def centers_of(ink):
    rows, columns = np.indices(ink.shape[1:]) + 0.5
    total = ink.sum((1, 2))
    return (ink * columns).sum((1, 2)) / total, (ink * rows).sum((1, 2)) / total


def test_characters_have_the_boxes_of_their_pixels():
    for index, example in enumerate(EXAMPLES):
        assert example.word == TEXTS[index % len(TEXTS)]
        height, width, _ = example.image.shape
        assert height == 31 and 0 < width <= 97 and example.image.dtype == np.uint8
        assert example.masks.shape == (len(example.word), height, width)
        for box, center, mask in zip(
            example.boxes, example.centers, example.masks, strict=True
        ):
            left, top, right, bottom = box.astype(int)
            assert mask[top:bottom, left:right].sum() == mask.sum()
            assert mask[top].any() and mask[bottom - 1].any()
            assert mask[:, left].any() and mask[:, right - 1].any()
            assert left < center[0] < right and top < center[1] < bottom
            # The word is whole: its margin is free.
            assert left >= 1 and top >= 1 and right <= width - 1
            assert bottom <= height - 1
        # From left to right.
        assert (np.diff(example.centers[:, 0]) > 0).all()


def test_the_image_shows_what_the_masks_say():
    """A word of one character: its box can be seen in the image."""
    words = RenderedWords(
        list("gWi7Q"), image_size=(31, 97), contrast=(0.9, 1), blur=0, noise=0, seed=5
    )
    for index in range(20):
        example = words.example(index)
        brightness = example.image @ LUMA
        ink = np.abs(brightness - brightness[0, 0])
        rows, columns = np.nonzero(ink >= 0.5 * ink.max())
        found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        np.testing.assert_allclose(found, example.boxes[0], atol=1)
        contrast = ink.max() / 255
        assert 0.85 < contrast <= 1.001


def test_a_straight_word_is_that_of_pillow():
    """Drawn once more in one piece, without this library."""
    from PIL import Image, ImageDraw, ImageFont

    image, ink = drawn("kitten", "DejaVuSerif")
    np.testing.assert_allclose(image[..., 0], ink.max(0), atol=0.5 / 255 + 1e-6)
    areas = []
    for size in np.arange(20, 80, 0.5):
        font = ImageFont.truetype(font_path("DejaVuSerif"), size)
        left, top, right, bottom = font.getbbox("kitten")
        if right - left <= 207 and bottom - top <= 57:
            canvas = Image.new("L", (300, 150))
            ImageDraw.Draw(canvas).text((9, 9), "kitten", 255, font)
            areas.append(np.asarray(canvas).sum() / 255)
    # As large as fits into the image and its margin, and with as much ink.
    np.testing.assert_allclose(ink.sum(), areas[-1], rtol=0.06)


def test_the_shape_of_the_word():
    x, y = centers_of(drawn()[1])
    np.testing.assert_allclose(np.diff(x), np.diff(x).mean(), atol=0.6)
    np.testing.assert_allclose(y, y[0], atol=0.1)
    # Clockwise: the right end is lower.
    for angle in (0.3, -0.2):
        x, y = centers_of(drawn(angle=angle)[1])
        slope = np.polyfit(x, y, 1)[0]
        np.testing.assert_allclose(slope, math.tan(angle), atol=0.02)
    # A parabola, with the ends lower.
    x, y = centers_of(drawn(curvature=0.3)[1])
    u = x - x[2]
    bend = np.polyfit(u, y, 2)[0]
    assert bend > 0 and abs(np.polyfit(u, y, 2)[1]) < 0.02
    # The height of the arc over half of the length, which is 2.5 characters.
    np.testing.assert_allclose(bend * 2.5 * np.diff(x).mean(), 0.3, rtol=0.1)
    # The right end is smaller, then the left.
    for perspective, order in (((0.2, 0.0), -1), ((-0.2, 0.0), 1)):
        ink = drawn(perspective=perspective)[1]
        sizes = np.sqrt(ink.sum((1, 2)))
        assert (np.sign(np.diff(sizes)) == order).all()
    upright, _ = drawn(fill=1.0)
    small, _ = drawn(fill=0.5)
    assert 1.7 < upright.shape[1] / small.shape[1] < 2.1


def test_colors_have_the_given_brightness():
    random = np.random.default_rng(0)
    colors = [draw_color(luma, random) for luma in np.linspace(0, 1, 21)]
    np.testing.assert_allclose(np.stack(colors) @ LUMA, np.linspace(0, 1, 21))
    assert np.min(colors) >= -1e-9 and np.max(colors) <= 1 + 1e-9
    assert np.std(colors[10]) > 0.01
    low = RenderedWords(["ab"], contrast=(0.1, 0.2), blur=0, noise=0)
    for index in range(9):
        example = low.example(index)
        brightness = example.image @ LUMA / 255
        difference = np.abs(brightness - brightness[0, 0]).max()
        assert 0.09 < difference < 0.21


def test_blur_and_noise():
    sharp, _ = drawn()
    blurred, _ = drawn(blur=2.0)
    assert (
        np.abs(np.diff(blurred, axis=1)).max() < 0.4 < np.abs(np.diff(sharp)).max() + 1
    )
    noisy, _ = drawn("i", background=np.full(3, 0.5), noise=10.0)
    assert 9 < 255 * noisy[:, :2].std() < 11


def test_images_are_functions_of_seed_and_number():
    again = RenderedWords(TEXTS, max_length=7, image_size=(31, 97), seed=3)
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(again.example, reversed(range(24))))
    for index, example in zip(reversed(range(24)), made, strict=True):
        np.testing.assert_array_equal(example.image, EXAMPLES[index].image)
        np.testing.assert_array_equal(example.boxes, EXAMPLES[index].boxes)
        assert example.font == EXAMPLES[index].font
    assert len({example.font for example in EXAMPLES}) > 9
    other = RenderedWords(TEXTS, max_length=7, image_size=(31, 97), seed=4)
    assert [other.example(i).font for i in range(24)] != [x.font for x in EXAMPLES]


def test_datasets_hold_the_examples():
    options = {"batch_size": 5, "start": 6, "normalize": None}
    dataset = WORDS.dataset("characters", 12, **options)
    assert int(dataset.cardinality()) == 3
    batches = list(dataset.as_numpy_iterator())
    assert [len(batch["words"]) for batch in batches] == [5, 5, 2]
    tokenizer = WORDS.tokenizer
    for number in range(12):
        batch, row = batches[number // 5], number % 5
        example = EXAMPLES[6 + number]
        count, width = len(example.word), example.image.shape[1]
        assert batch["words"][row].decode() == example.word
        assert batch["fonts"][row].decode() == example.font
        assert batch["widths"][row] == width
        assert batch["images"].shape[1:] == (31, 97, 3)
        np.testing.assert_array_equal(batch["images"][row, :, :width], example.image)
        assert not batch["images"][row, :, width:].any()
        for name in ("boxes", "centers"):
            found = batch[name][row]
            np.testing.assert_array_equal(found[:count], getattr(example, name))
            assert len(found) == 7 and not found[count:].any()
        masks = batch["masks"][row]
        np.testing.assert_array_equal(masks[:count, :, :width], example.masks)
        assert not masks[count:].any() and not masks[..., width:].any()
        ids = tokenizer.encode(example.word)
        labels = [*ids, 2, *(7 - count) * [0]]
        assert batch["labels"][row].tolist() == labels
        assert batch["decoder_token_ids"][row].tolist() == [1, *ids, *(7 - count) * [0]]
        assert tokenizer.decode(batch["labels"][row]) == example.word
    inputs, labels = next(WORDS.dataset("reading", 5, **options).as_numpy_iterator())
    assert set(inputs) == {"images", "widths", "decoder_token_ids"}
    for name, value in {**inputs, "labels": labels}.items():
        np.testing.assert_array_equal(value, batches[0][name])


def test_epochs_have_an_order_of_their_own():
    def words_of(epoch):
        dataset = WORDS.dataset(
            "characters", 12, batch_size=12, shuffle=True, epoch=epoch
        )
        batch = next(dataset.as_numpy_iterator())
        assert batch["images"].max() <= 1
        return batch["words"].tolist()

    assert words_of(0) == words_of(0) != words_of(1)
    assert sorted(words_of(0)) == sorted(words_of(1))


def test_words_and_fonts_can_be_held_out():
    known, unseen = hold_out(FONTS, 0.2)
    assert len(unseen) == 4 and sorted(known + unseen) == sorted(FONTS)
    assert known == [font for font in FONTS if font in known]
    other, same = hold_out(FONTS[::-1], 0.2)
    assert set(same) == set(unseen) and set(other) == set(known)
    assert set(hold_out(FONTS, 0.2, seed=1)[1]) != set(unseen)
    assert [len(part) for part in hold_out(["a", "b"], 0.01)] == [1, 1]
    assert [len(part) for part in hold_out(["a", "b"], 0.99)] == [1, 1]


def test_random_words_are_different():
    words = random_words(300, "abc", (1, 6), seed=2)
    assert len(set(words)) == 300 and words == random_words(300, "abc", (1, 6), 2)
    assert {len(word) for word in words} == {1, 2, 3, 4, 5, 6}
    assert set("".join(words)) == set("abc")
    assert words != random_words(300, "abc", (1, 6), seed=3)


def test_every_font_draws_letters_and_digits():
    used = set(string.ascii_letters + string.digits)
    for font in FONTS:
        assert used <= font_characters(font)
    assert "<" in font_characters("DejaVuSans") and "<" not in font_characters("cmr10")
    # Fonts differ, also where a file of one is given.
    one, two = (drawn("kitten", font)[0] for font in ("DejaVuSans", "cmr10"))
    assert one.shape != two.shape or (one != two).any()
    path = font_path("cmr10")
    mine = RenderedWords(["kitten"], fonts=[path])
    assert mine.example(0).font == "cmr10"
    named = RenderedWords(["kitten"], fonts=["cmr10"])
    np.testing.assert_array_equal(mine.example(0).image, named.example(0).image)


def test_a_file_that_is_no_font_is_refused(tmp_path):
    damaged = tmp_path / "damaged.ttf"
    damaged.write_bytes(font_path("cmr10").read_bytes()[:900])
    text = tmp_path / "text.ttf"
    text.write_text("A font.")
    for path in (damaged, text):
        message = "`fonts` must be TrueType.*cannot be read"
        refuses(message, RenderedWords, ["ab"], fonts=[path])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": []}, "`words` must be a list that is not empty"),
        ({"words": "ab"}, "`words` must be a list that is not empty"),
        ({"words": ["ab", ""]}, "`words` must be texts of at least one character"),
        ({"words": ["ab", 3]}, "`words` must be texts of at least one character"),
        ({"words": ["a b"]}, "`words` must have no blanks. Received: 'a b'"),
        ({"words": ["aäb"]}, "characters of the `alphabet`. Received: 'aäb', with 'ä'"),
        ({"words": ["abcd"]}, "at most 3 characters, the `max_length`.*'abcd', of 4"),
        ({"alphabet": "aab"}, "`characters` must not repeat a character"),
        ({"max_length": 0}, "`max_length` must be a positive integer"),
        ({"fonts": []}, "`fonts` must be a list that is not empty"),
        ({"fonts": ["Arial"]}, "`fonts` must be names of `data.FONTS`.*'Arial'"),
        ({"fonts": ["no/file.ttf"]}, "`fonts` must be names of.*'no/file.ttf'"),
        (
            {"words": ["a<"], "alphabet": "a<", "fonts": ["cmr10"]},
            "every character of the words. Received: 'cmr10', which lacks '<'",
        ),
        ({"image_size": 0}, "`image_size` must be a positive integer"),
        ({"rotation": 90}, "`rotation` must be from 0 to 89"),
        ({"rotation": math.nan}, "`rotation` must be from 0 to 89.*nan"),
        ({"curvature": -0.1}, "`curvature` must be from 0 to 0.5"),
        ({"perspective": 0.3}, "`perspective` must be from 0 to 0.25"),
        ({"blur": math.inf}, "`blur` must be from 0 to inf"),
        ({"noise": -1}, "`noise` must be from 0 to inf"),
        ({"fill": (0, 1)}, "`fill` must be two fractions above 0"),
        ({"contrast": (0.5, 0.4)}, "`contrast` must be two fractions.*smaller"),
        ({"contrast": (0.5, math.nan)}, "`contrast` must be two fractions"),
    ],
)
def test_invalid_options(options, message):
    refuses(message, RenderedWords, **{"words": ["ab"], "max_length": 3, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: WORDS.dataset("boxes", 3, batch_size=2), "`kind` must be one of"),
        (lambda: WORDS.dataset("reading", 0, batch_size=2), "`count` must be a pos"),
        (lambda: WORDS.dataset("reading", 3, batch_size=0), "`batch_size` must be a"),
        (
            lambda: WORDS.dataset("reading", 3, batch_size=2, normalize="x"),
            "`normalize` must be one of",
        ),
        (lambda: hold_out(["a", "b"], 1.0), "`share` must be above 0 and below 1"),
        (lambda: hold_out(["a", "b"], math.nan), "`share` must be above 0"),
        (lambda: hold_out(["a"], 0.5), "`values` must be at least two"),
        (lambda: hold_out(["a", "b", "a"], 0.5), "3 values, of which 2 differ"),
        (lambda: random_words(0), "`count` must be a positive integer"),
        (lambda: random_words(3, lengths=(3, 2)), "`lengths` must have the small"),
        (lambda: random_words(3, alphabet=""), "`alphabet` must not be empty"),
        (lambda: random_words(4, "ab", (1, 2)), "at most half of the 6 words"),
        (
            lambda: RenderedWords(["a" * 25], image_size=(4, 8)).example(0),
            "must fit in a font of at least 3 pixels.*Received: 'aaa",
        ),
        (
            lambda: RenderedWords(["a\u200b"], ["DejaVuSans"], "a\u200b").example(0),
            "Every character must have ink.*of 'a.u200b', font='DejaVuSans.ttf'",
        ),
    ],
)
def test_invalid_arguments(call, message):
    refuses(message, call)
