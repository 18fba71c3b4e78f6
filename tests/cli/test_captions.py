"""`keras-attn attention` of captioners: words over an image, as a picture or a page."""

import base64
import io
import json
import re
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from model_cases import randomize, tiny
from PIL import Image

from keras_attn import models
from keras_attn.cli import image_maps
from keras_attn.cli.image_maps import _as_maps, _join_pieces, _write_caption
from keras_attn.data import CharacterTokenizer
from keras_attn.decoding import generate
from keras_attn.viz import capture_attention

SIZE = (12, 16)
PREPROCESSING = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": SIZE[0], "width": SIZE[1]},
    "do_normalize": False,
}
TOKENIZER = CharacterTokenizer("ab c")


def captioner(seed, **options):
    """Show, attend and tell with a CNN whose map has 3 × 4 locations."""
    images = keras.Input((*SIZE, 3))
    maps = keras.layers.Conv2D(5, 4, strides=4)(images)
    sizes = {"embedding_dim": 5, "hidden_dim": 7, "attention_dim": 3, "initial_dim": 5}
    model = models.build_caption_show_attend_tell(
        backbone=keras.Model(images, maps),
        vocabulary_size=TOKENIZER.vocabulary_size,
        **sizes,
        **options,
    )
    return randomize(model, seed=seed, scale=1.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captioners")
    model = captioner(seed=0)
    model.preprocessing = PREPROCESSING
    model.save(folder / "cap.keras")
    TOKENIZER.save(folder / "tokenizer.json")
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3))
    keras.utils.save_img(folder / "photo.png", pixels, scale=False)
    return folder


def data_of(page):
    found = re.findall(r'<script type="application/json" id="attention">(.*)</', page)
    return json.loads(found[0])


def test_the_words_of_a_captioner(command, folder, tmp_path, monkeypatch):
    """Of a given caption: what random weights write has no words."""
    caption = "ab c bca"
    ids = TOKENIZER.encode(caption)
    monkeypatch.setattr(image_maps, "_write_caption", lambda *given: ids)
    model = keras.saving.load_model(folder / "cap.keras")
    pixels = np.asarray(keras.utils.load_img(folder / "photo.png"), "float32")
    images = pixels[None] / 255
    inputs = {"images": images, "decoder_token_ids": np.array([[1, *ids[:-1]]])}
    (scores,) = capture_attention(model, inputs).values()
    words, maps = _join_pieces(TOKENIZER, ids, scores[0, 0].reshape(-1, 3, 4))

    page, plot = tmp_path / "cap.html", tmp_path / "cap.svg"
    attention = ["attention", folder / "cap.keras", "--image", folder / "photo.png"]
    assert command(*attention, "--output", page) == 0
    assert command.out.startswith(f"{caption}\n") and command.err == ""
    text = page.read_text("utf-8")
    data = data_of(text)
    assert data["title"] == caption and data["words"] == words == caption.split()
    np.testing.assert_allclose(data["maps"], maps, atol=5.1e-5)
    assert np.std(data["maps"]) > 1e-3
    assert command(*attention, "--head", 0, "--output", plot) == 0
    assert f"Attention of decoder at each word: {plot}" in command.out
    drawn = plot.read_text("utf-8")
    assert all(f"<!-- {word} -->" in drawn for word in ["image", *words])


def test_pieces_of_words_are_joined():
    maps = np.arange(9.0).reshape(9, 1, 1)
    ids = TOKENIZER.encode("ab c  bca")
    words, found = _join_pieces(TOKENIZER, ids, maps)
    assert words == ["ab", "c", "bca"]
    # A space belongs to what is after it.
    np.testing.assert_array_equal(found.ravel(), [0.5, 2.5, 6.0])
    words, found = _join_pieces(TOKENIZER, ids[:5], maps[:5])
    assert words == ["ab", "c"] and found.shape == (2, 1, 1)
    words, found = _join_pieces(TOKENIZER, ids[:2], maps[:2])
    assert words == ["a", "b"] and found.shape == (2, 1, 1)


def test_the_grid_has_the_proportions_of_the_image():
    weights = np.arange(2 * 25.0).reshape(2, 25)
    opened: Any = SimpleNamespace(path="cap.keras")
    np.testing.assert_array_equal(
        _as_maps(weights[:, :24], (20, 30), opened), weights[:, :24].reshape(2, 4, 6)
    )
    # After the location of a class token.
    maps = _as_maps(weights, (20, 30), opened)
    np.testing.assert_array_equal(maps, weights[:, 1:].reshape(2, 4, 6))
    with pytest.raises(ValueError, match="MODEL must attend to a grid .* 23 locations"):
        _as_maps(weights[:, :23], (20, 30), opened)


def test_a_caption_without_words(monkeypatch):
    nothing = SimpleNamespace(token_ids=np.array([[2, 0, 0]]))
    monkeypatch.setattr(
        "keras_attn.decoding.generate", lambda *args, **options: nothing
    )
    logits = SimpleNamespace(shape=(None, None, TOKENIZER.vocabulary_size))
    model = SimpleNamespace(output={"logits": logits})
    opened: Any = SimpleNamespace(path="a", model=model)
    with pytest.raises(ValueError, match="must write a word to draw.*Received: 'a'"):
        _write_caption(opened, np.zeros((2, 2, 3)), TOKENIZER)
    other = SimpleNamespace(vocabulary_size=5, start_token_id=1, end_token_id=None)
    with pytest.raises(ValueError, match="a start and an end token.*end_token_id=None"):
        _write_caption(opened, np.zeros((2, 2, 3)), other)


def test_a_transformer_is_drawn_by_its_cross_attention(command, folder, tmp_path):
    model = tiny("caption_vit_transformer")
    characters = "".join(map(chr, range(97, 93 + model.output.shape[-1])))
    tokenizer = CharacterTokenizer(characters)
    tokenizer.save(tmp_path / "tokenizer.json")
    model.save(tmp_path / "model.keras")
    page = tmp_path / "cap.html"
    options = ["--image", folder / "photo.png", "--pixels", "unit", "--output", page]
    assert command("attention", tmp_path, *options) == 0
    assert command.err == "" and "Attention of 2 layers at each word" in command.out
    size = model.input["images"].shape[1:3]
    picture = Image.open(folder / "photo.png").resize(size[::-1], Image.BICUBIC)
    images = np.asarray(picture, "float32")[None] / 255
    special: dict[str, Any] = {"start_token_id": 1, "end_token_id": 2}
    found = generate(model, {"images": images}, model.max_length - 1, **special)
    ids = found.token_ids[0]
    caption = tokenizer.decode(ids)
    assert caption and command.out.startswith(f"{caption}\n")
    maps = np.array(data_of(page.read_text("utf-8"))["maps"])
    assert maps.ndim == 3 and maps.std() > 0
    # Over the photo as it is, not as the model takes it.
    (drawn,) = re.findall(r'image/png;base64,([^"]*)"', page.read_text("utf-8"))
    assert Image.open(io.BytesIO(base64.b64decode(drawn))).size == SIZE[::-1]
    assert SIZE != size
    one = [*options, "--layer", 1, "--head", 2]
    assert command("attention", tmp_path, *one) == 0
    assert "Attention of decoder_block_1/cross_attention at" in command.out
    other = np.array(data_of(page.read_text("utf-8"))["maps"])
    assert other.shape == maps.shape and np.abs(other - maps).max() > 1e-3
    command.refuses_each(
        ["attention", tmp_path, *options],
        ("--layer must be from 0 to 1", "--layer", 2),
        ("--head must be from 0 to 2", "--head", 3),
    )
    # Without the range of values, a note says which is taken.
    assert command("attention", tmp_path, *options[:2], "--output", page) == 0
    assert "--pixels" in command.err


def test_captioners_that_are_refused(command, folder, tmp_path):
    image = ["--image", folder / "photo.png"]
    for case in ("caption_show_attend_tell", "caption_cnn_transformer"):
        tiny(case).save(folder / "features.keras")
        line = command.refuses("attention", folder / "features.keras", *image)
        assert "MODEL must read images for --image; this captioner reads feat" in line
    captioner(seed=1).save(tmp_path / "alone.keras")
    other = tmp_path / "other"
    other.mkdir()
    CharacterTokenizer("abcdefgh").save(other / "tokenizer.json")
    command.refuses_each(
        ["attention", tmp_path / "alone.keras", *image],
        ("--tokenizer must be the folder of a captioner's tokenizer",),
        ("which has 8 tokens. Received: a tokenizer of 12", "--tokenizer", other),
        ("--rollout needs a model whose layers all", "--rollout"),
    )
    line = command.refuses(
        "attention", folder / "cap.keras", "--ids", "1", "--pixels", "unit"
    )
    assert "--pixels is for --image" in line
