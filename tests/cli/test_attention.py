"""`keras-attn attention` for every kind of model: texts, ids, images, pages."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from model_cases import POSITIONS, build, tiny
from viz.pages import data_of

from keras_attn import models
from keras_attn.data import load_text_tokenizer
from keras_attn.translator import Translator
from keras_attn.viz import capture_attention

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

from keras_attn.data import WordPieceTokenizer  # noqa: E402

TEXT, PAIR = "a man sleeps", "a plan: a canal"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT with its tokenizer, as a checkpoint, and as `.keras` files."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = WordPieceTokenizer.train([TEXT, PAIR] * 3, vocabulary_size=61)
    bert = build("bert_base", vocabulary_size=61, hidden_dim=6, num_heads=2)
    models.save_checkpoint(bert, folder / "bert")
    tokenizer.save(folder / "bert")
    bert.save(folder / "bert.keras")
    for name in ("vit_base_patch16", "swin_tiny", "transformer_base"):
        tiny(name).save(folder / f"{name}.keras")
    pixels = np.arange(30 * 40 * 3).reshape(30, 40, 3) % 256
    keras.utils.save_img(folder / "image.png", pixels, scale=False)
    return folder


def layers_of(page: Path):
    (model,) = data_of(page.read_text("utf-8"))["models"]
    return model["layers"]


def test_a_pair_of_texts_as_a_page(command, folder, tmp_path):
    page = tmp_path / "new" / "pair.html"
    options = ["--text-pair", PAIR, "--output", page]
    assert command("attention", folder / "bert", TEXT, *options) == 0
    assert command.out.endswith(f": {page}\n") and command.err == ""
    tokenizer = load_text_tokenizer(folder / "bert")
    model = models.load_checkpoint(folder / "bert", "encoder")
    inputs = tokenizer.encode_batch([TEXT], [PAIR])
    expected = capture_attention(model, inputs)
    written = layers_of(page)
    assert [layer["path"] for layer in written] == list(expected)
    for layer, scores in zip(written, expected.values(), strict=True):
        np.testing.assert_allclose(layer["weights"], scores[0], atol=8e-6)
        assert layer["source_tokens"] == tokenizer.tokens(inputs["token_ids"][0])
    assert [path.name for path in page.parent.iterdir()] == ["pair.html"]


def test_two_models_side_by_side(command, folder, untrained_run, tmp_path):
    page = tmp_path / "two.html"
    beside = ["--beside", folder / "bert.keras", "--output", page]
    assert command("attention", folder / "bert", TEXT, *beside) == 0
    one, two = data_of(page.read_text("utf-8"))["models"]
    assert one["name"] == str(folder / "bert")
    assert two["name"] == str(folder / "bert.keras")
    for saved, again in zip(one["layers"], two["layers"], strict=True):
        assert saved["path"] == again["path"]  # The same model, saved in two ways.
        np.testing.assert_array_equal(saved["weights"], again["weights"])
    arguments = ["attention", folder / "bert", TEXT, *beside[:2]]
    assert command(*arguments, "--output", tmp_path / "two.png") == 2
    assert "--beside needs TEXT and an --output of .html" in command.err
    same = ["attention", folder / "bert", TEXT, "--beside", folder / "bert"]
    assert command(*same, "--output", page) == 2
    assert "--beside must be another model" in command.err
    same[-1] = untrained_run
    line = command.refuses(*same, "--output", page)
    assert "--beside must not be the folder of a translator" in line


def test_ids_of_a_keras_file(command, folder, tmp_path):
    page = tmp_path / "ids.html"
    options = ["--ids", "5 6, 7", "--layer", 1, "--head", 1, "--output", page]
    assert command("attention", folder / "bert.keras", *options) == 0
    (layer,) = layers_of(page)
    assert layer["path"] == "block_1/attention" and layer["heads"] == [1]
    assert layer["source_tokens"] == ["5", "6", "7"]
    # A tokenizer elsewhere: the same file reads texts.
    options = ["--tokenizer", folder / "bert", "--output", page]
    assert command("attention", folder / "bert.keras", TEXT, *options) == 0
    assert layers_of(page)[0]["source_tokens"][0] == "[CLS]"
    options = ["--ids", "5 6", "--rollout", "--output", page]
    assert command("attention", folder / "bert.keras", *options) == 0
    (layer,) = layers_of(page)
    assert layer["path"] == "rollout"
    np.testing.assert_allclose(layer["weights"].sum(-1), 1, atol=1e-3)


def test_a_translator_with_layers_or_as_a_page(command, untrained_run, tmp_path):
    page = tmp_path / "page.html"
    options = ["--translation", "2027-03-03", "--output", page]
    assert command("attention", untrained_run, "3 mar 2027", *options) == 0
    assert command.out.startswith("2027-03-03\n")
    translator = Translator.load(untrained_run)
    alignment = translator.align("3 mar 2027", "2027-03-03")
    (layer,) = layers_of(page)
    (weights,) = layer["weights"]
    np.testing.assert_allclose(weights, alignment.scores, atol=8e-6)
    assert layer["target_tokens"] == alignment.target_tokens
    line = command.refuses("attention", untrained_run, "3 mar 2027", "--layer", 1)
    assert "--layer must be from 0 to 0 for this model" in line
    line = command.refuses("attention", untrained_run, "3 mar 2027", "--rollout")
    assert "--rollout needs a model with a single sequence" in line


def test_ids_of_an_encoder_decoder(command, folder, tmp_path):
    plot = tmp_path / "plot.svg"
    options = ["--ids", "1 2 3", "--translation", "4 5", "--output", plot]
    assert command("attention", folder / "transformer_base.keras", *options) == 0
    drawn = plot.read_text("utf-8")
    assert "decoder_block_1/cross_attention" in drawn and "head 2" in drawn
    model = folder / "transformer_base.keras"
    line = command.refuses("attention", model, "--ids", "1 2 3")
    assert "--ids and --translation must both be given" in line


def test_an_image(command, folder, tmp_path):
    vit, plot = folder / "vit_base_patch16.keras", tmp_path / "plot.svg"
    options = ["--image", folder / "image.png", "--output", plot]
    assert command("attention", vit, *options) == 0
    assert "Attention of block_1/attention" in command.out
    drawn = plot.read_text("utf-8")
    assert "head 2" in drawn and "head 3" not in drawn
    assert command("attention", vit, *options, "--layer", 0, "--head", 1) == 0
    assert "Attention of block_0/attention" in command.out
    drawn = plot.read_text("utf-8")
    assert "head 1" in drawn and "head 0" not in drawn
    assert command("attention", vit, *options, "--rollout") == 0
    assert "rollout" in plot.read_text("utf-8")
    swin = folder / "swin_tiny.keras"
    assert command("attention", swin, *options, "--layer", 1, "--layer", 3) == 0
    assert "layer 3, head 2" in plot.read_text("utf-8")
    line = command.refuses("attention", swin, *options, "--rollout")
    assert "leave it out for windowed models such as Swin" in line
    page = tmp_path / "page.html"
    options = ["--image", folder / "image.png", "--output", page, "--layer", 0]
    assert command("attention", vit, *options, "--head", 2, "--head", 0) == 0
    text = page.read_text("utf-8")
    assert "<h1><bdi>Attention of block_0/attention</bdi></h1>" in text
    assert '"words":["head 0","head 2"]' in text and "data:image/png" in text


def test_the_wrong_kind_of_input(command, folder, tmp_path):
    bert, vit = folder / "bert.keras", folder / "vit_base_patch16.keras"
    image = ["--image", folder / "image.png"]
    command.refuses_each(
        ["attention", bert],
        ("Received: none of them",),
        ("give one of TEXT, --ids and --image. Received: TEXT", TEXT, "--ids", "1"),
        ("--text-pair cannot be combined with --ids", "--ids", 1, "--text-pair", TEXT),
        ("MODEL has no tokenizer: pass the folder of one as --tokenizer", TEXT),
        *(("--ids must be non-negative", "--ids", ids) for ids in ("", "1 x", "-1")),
        ("`token_ids` must be in [0, 61)", "--ids", "1 99"),
        ("must have a length of at most 31", "--ids", "1 " * (POSITIONS + 1)),
        ("MODEL must be an image model for --image", *image),
        ("must end in one of", "--ids", "1", "--output", tmp_path / "a"),
    )
    command.refuses_each(
        ["attention", vit],
        ("--translation cannot be combined", *image, "--translation", TEXT),
        ("use --image for an image model", "--ids", "1"),
        ("--image must be an image file", "--image", bert),
        ("--tokenizer is for a text", *image, "--tokenizer", folder / "bert"),
        ("leave out --layer and --head", *image, "--rollout", "--layer", 0),
    )
    command.refuses_each(
        ["attention", folder / "bert", TEXT],
        ("--layer must be from 0 to 1 for this model", "--layer", 2),
        ("--head must be from 0 to 1 for this model", "--head", 2),
        ("requires the folder of a `keras-attn train`", "--translation", "ein Mann"),
    )
    assert not list(tmp_path.iterdir())


def test_a_run_folder_with_a_model_and_a_tokenizer(command, folder, tmp_path):
    shutil.copy(folder / "bert.keras", tmp_path / "model.keras")
    shutil.copy(folder / "bert" / "vocab.txt", tmp_path)
    page = tmp_path / "page.html"
    assert command("attention", tmp_path, TEXT, "--output", page) == 0
    assert layers_of(page)[1]["target_tokens"][-1] == "[SEP]"
