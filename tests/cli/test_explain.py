"""`keras-attn explain`: made-up layers of every kind, layers of models, errors."""

import json
import re

import numpy as np
import pytest

from keras_attn import models, viz
from keras_attn.cli.made_up_layers import KINDS, Sizes, make_layer
from keras_attn.data import load_text_tokenizer
from keras_attn.viz import capture_attention

LINE = ["explain", "attention"]


def data_of(page):
    (data,) = re.findall(r'id="steps">(.*)</script>', page.read_text("utf-8"))
    return json.loads(data)


def values_of(order):
    return {panel["name"]: np.array(panel["values"]) for panel in order["panels"]}


def outputs_of(kind, words, others=("Le", "gros", "chat", "noir")):
    """What the made-up layer itself returns: the output and the probabilities."""
    made = make_layer(kind, words, list(others), Sizes(2, 8), 0)
    inputs = [array[None] for array in made.inputs.values()]
    output, weights, *_ = made.layer(*inputs, return_attention_scores=True)
    return np.asarray(output)[0], np.asarray(weights)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_layer(command, kind, tmp_path):
    page = tmp_path / "layer.html"
    assert command("explain", kind, "--output", page) == 0
    assert command.out.endswith(f"{page}\n") and command.err == ""
    data = data_of(page)
    (order,) = data["orders"]
    values = values_of(order)
    output, weights = outputs_of(kind, ["[START]", "Big", "cat"])
    np.testing.assert_allclose(values["Y"].ravel(), output.ravel(), atol=1e-6)
    np.testing.assert_allclose(values["A"].ravel(), weights.ravel(), atol=1e-6)
    assert not re.search(r"https?:|src=\"|href=", page.read_text("utf-8"))


def test_words_masks_and_another_order(command, tmp_path):
    page = tmp_path / "new" / "layer.html"
    options = ["--tokens", "a b a c", "--mask", "causal", "--mask", "1110"]
    options += ["--heads", 1, "--width", 6, "--permutation", "3 2 1 0"]
    assert command(*LINE, *options, "--output", page) == 0
    assert command.out.startswith("Y is not only permuted, because places count here")
    data = data_of(page)
    first, second = data["orders"]
    assert first["queries"] == ["a", "b", "a", "c"] and second["keys"] == [*"caba"]
    words = values_of(first)["X"]
    assert words.shape == (4, 6) and data["heads"] == ["head 0"]
    np.testing.assert_array_equal(words[0], words[2])
    np.testing.assert_allclose(words, words.round(1), atol=1e-7)
    np.testing.assert_array_equal(values_of(second)["X"], words[::-1])
    padding = np.array([1, 1, 1, 0])
    np.testing.assert_array_equal(first["mask"][0], np.tri(4) * padding)
    np.testing.assert_array_equal(second["mask"][0], np.tri(4) * padding[::-1])
    again = tmp_path / "again.html"
    assert command(*LINE, *options, "--seed", 1, "--output", again) == 0
    assert not np.array_equal(values_of(data_of(again)["orders"][0])["X"], words)


def test_a_figure(command, tmp_path):
    figure = tmp_path / "layer.svg"
    options = ["--memory", "Le chat", "--output", figure]
    assert command("explain", "additive", *options) == 0
    drawn = figure.read_text("utf-8")
    assert "Le" in drawn and "[START]" in drawn and "v · tanh(W q + U k)" in drawn


def test_a_layer_of_a_model(command, bert, tmp_path):
    page, text = tmp_path / "layer.html", "a good film"
    options = ["--model", bert, "--head", 1, "--permutation", "1 0 2 3 4"]
    assert command("explain", *options, text, "--output", page) == 0
    assert command.out.startswith("Y is permuted alike: largest difference ")
    tokenizer = load_text_tokenizer(bert)
    inputs = tokenizer.encode_batch([text])
    model = models.load_checkpoint(bert, "encoder")
    (expected,) = capture_attention(model, inputs).values()
    data = data_of(page)
    assert data["heads"] == ["head 1"] and data["title"] == f"block_0/attention: {text}"
    first, second = data["orders"]
    found = values_of(first)
    np.testing.assert_allclose(found["A"][0], expected[0, 1], atol=1e-6)
    assert first["queries"] == tokenizer.tokens(inputs["token_ids"][0])
    assert second["keys"][:2] == first["keys"][1::-1]
    command.refuses_each(
        ["explain", "--model", bert],
        ("--layer must be from 0 to 0 for this model: 0 block_0", text, "--layer", 3),
        ("--head must be numbers from 0 to 1", text, "--head", 2),
        ("--permutation must have each number from 0 to", text, "--permutation", "0"),
        ("TEXT must have from 1 to 32 tokens", "good " * 33),
        ("--mask is for a made-up layer", text, "--mask", "causal"),
        ("--width is for a made-up layer", text, "--width", 8),
        ("--tokenizer must have vocab.txt", text, "--tokenizer", tmp_path),
        ("--model needs a TEXT to read. Received: 'attention'",),
        ("KIND is for made-up layers", "cross", text),
    )


@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        ("convolution", [viz.worked_convolution()]),
        ("unpooling", [viz.worked_unpooling()]),
        (
            "transposed-convolution",
            [
                viz.worked_transposed_convolution(),
                viz.worked_transposed_convolution([[1, 2], [3, 4]]),
            ],
        ),
    ],
)
def test_numbers_are_printed(command, kind, examples):
    assert command("explain", kind) == 0
    assert command.out == "\n\n".join(each.text for each in examples) + "\n"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("masks", "causal"), ("windows", "cyclic shift"), ("positions", "50 positions")],
)
def test_figures_without_a_layer(command, kind, words, tmp_path):
    figure = tmp_path / "figure.svg"
    assert command("explain", kind, "--output", figure) == 0
    assert words in figure.read_text("utf-8")
    command.refuses_each(
        ["explain", kind],
        (
            "--output must end in .png, .pdf or .svg for",
            "--output",
            tmp_path / "a.html",
        ),
        (f"--seed is for attention layers, not for {kind}", "--seed", 1),
        ("--head is for attention layers", "--head", 0),
    )
    assert list(tmp_path.iterdir()) == [figure]


def test_an_image_model_is_refused(command, tmp_path):
    sizes: dict = {"image_size": 16, "window_size": 2, "num_blocks": [1]}
    sizes |= {"hidden_dim": 6, "num_heads": [1]}
    models.save_checkpoint(models.build_swin(**sizes), tmp_path)
    line = command.refuses("explain", "--model", tmp_path, "A dog")
    assert "--model must read a text. What an image model attends to" in line


def test_the_causal_mask_of_a_model(command, gpt, tmp_path):
    page, text = tmp_path / "layer.html", "Hello"
    assert command("explain", "--model", gpt, text, "--output", page) == 0
    (order,) = data_of(page)["orders"]
    count = len(order["queries"])
    assert count > 1
    np.testing.assert_array_equal(order["mask"], np.tri(count)[None].repeat(2, 0))


def test_a_translator_attends_inside_a_recurrence(command, untrained_run):
    line = command.refuses("explain", "--model", untrained_run, "3 mar 2027")
    assert "attends inside a recurrence is drawn by `keras-attn attention`" in line


def test_wrong_options(command, tmp_path):
    command.refuses_each(
        LINE,
        ('--mask must be "causal", 3 values', "--mask", "1 1"),
        ("--mask must be causal, or 1 or 0 for each word", "--mask", "1 2 1"),
        ("--permutation must have each number from 0 to 2", "--permutation", "0 1 1"),
        ("--permutation must be whole numbers", "--permutation", "a b"),
        ("--head must be numbers from 0 to 1, at least one", "--head", 2),
        ("--tokens must have from 1 to 32 tokens", "--tokens", "a " * 33),
        ("--tokens must have from 1 to 32 tokens", "--tokens", " "),
        ("--width must be a multiple of --heads", "--heads", 3),
        ("--memory is for other kinds", "--memory", "a"),
        ("--layer is for a layer of --model", "--layer", 1),
        ("must end in one of", "--output", tmp_path / "layer.doc"),
    )
    command.refuses_each(
        ["explain"],
        ("did you mean relative?", "relativ"),
        ("--mask must be None: a WindowAttention takes", "window", "--mask", "causal"),
        ("--tokens is for other kinds: map is SAGAN's", "map", "--tokens", "a"),
        ("--heads is for other kinds", "dot", "--heads", 2),
        ("--output is for pages and figures", "unpooling", "--output", "a.png"),
        ("--tokens is for attention layers", "unpooling", "--tokens", "a"),
    )
    assert not list(tmp_path.iterdir())
