"""Checkpoints, tokenizers and adapters by name."""

import json
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from parity.folders import CHECKPOINTS

from keras_attn import models
from keras_attn.data import WordPieceTokenizer, load_text_tokenizer

SENTENCES = CHECKPOINTS.parent / "sentence_folders"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "runs"]


@pytest.fixture
def bert(hub, tmp_path):
    """The folder of a classifier with its tokenizer, and its commit."""
    folder = tmp_path / "bert"
    shutil.copytree(CHECKPOINTS / "bert_classifier", folder)
    WordPieceTokenizer(PIECES).save(folder)
    return folder, hub.add("me/bert", folder)


def same_weights(one, other):
    pairs = zip(one.weights, other.weights, strict=True)
    return all(np.array_equal(*pair) for pair in pairs)


def test_a_checkpoint(bert, tmp_path):
    """Model and tokenizer are the folder's, and what is saved says the commit."""
    folder, commit = bert
    model = models.load_checkpoint("hf://me/bert")
    assert same_weights(model, models.load_checkpoint(folder))
    assert load_text_tokenizer("hf://me/bert").pieces == tuple(PIECES)
    assert WordPieceTokenizer.from_folder("hf://me/bert").pieces == tuple(PIECES)
    assert model.source == f"hf://me/bert@{commit}"
    models.save_checkpoint(model, tmp_path / "copy")
    config = json.loads((tmp_path / "copy/config.json").read_text())
    assert config["_base_model"] == model.source
    again = models.load_checkpoint(tmp_path / "copy")
    assert same_weights(again, model) and again.source is None
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").source == model.source


def test_errors_have_the_name(bert):
    with pytest.raises(ValueError, match="`task` must be.*folder='hf://me/bert'"):
        models.load_checkpoint("hf://me/bert", "captioner")


def test_an_adapter(hub, bert, tmp_path):
    """Read by its name; written, it names repository and commit of its base."""
    _, commit = bert
    hub.add("me/lora", CHECKPOINTS.parent / "adapters" / "bert_classifier")
    model = models.load_checkpoint("hf://me/bert")
    models.load_lora(model, "hf://me/lora")
    models.save_lora(model, tmp_path / "lora")
    config = json.loads((tmp_path / "lora/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "me/bert"
    assert config["revision"] == commit
    name = models.push_checkpoint(model, "hf://me/pushed", adapter="default")
    other = models.load_checkpoint("hf://me/bert")
    models.load_lora(other, name)
    assert same_weights(model, other)
    card, _ = read_card("me/pushed")
    assert card["base_model"] == "me/bert" and "lora" in card["tags"]
    assert card["base_model_relation"] == "adapter"


def read_card(repository):
    """What the hub reads of a card, and its text."""
    from huggingface_hub import ModelCard

    card = ModelCard.load(repository)
    return card.data.to_dict(), card.text


def test_push(hub, bert):
    """A push is a commit that can be loaded, with a card of what was measured."""
    model = models.load_checkpoint("hf://me/bert")
    model.class_names = ["one", "two", "three", "four", "five"]
    name = models.push_checkpoint(
        model,
        "hf://me/reviews",
        tokenizer=WordPieceTokenizer(PIECES),
        license="apache-2.0",
        dataset="glue",
        scores={"accuracy": 0.9375},
        tags=["reviews"],
    )
    assert name == f"hf://me/reviews@{hub.branches['me/reviews']['main']}"
    assert same_weights(models.load_checkpoint(name), model)
    assert load_text_tokenizer(name).pieces == tuple(PIECES)
    card, text = read_card("me/reviews")
    assert card["library_name"] == "keras-attn" and card["license"] == "apache-2.0"
    assert card["pipeline_tag"] == "text-classification"
    assert card["tags"] == ["keras", "keras-attn", "reviews"]
    assert card["base_model"] == "me/bert" and card["datasets"] == ["glue"]
    [result] = card["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "accuracy", "value": 0.9375}]
    for line in (
        "model = models.load_checkpoint('hf://me/reviews')",
        "tokenizer = data.load_text_tokenizer('hf://me/reviews')",
        "| accuracy | 0.9375 |",
        "Classes: one, two, three, four, five",
    ):
        assert line in text


def test_a_second_push(hub, bert):
    """Replaces weights in other files, and keeps a card that somebody has written."""
    model = models.load_checkpoint(bert[0])
    hub.add("me/mine", {"README.md": b"# My own", "model.safetensors": b"old"})
    models.push_checkpoint(model, "hf://me/mine")
    _, files = hub.files("me/mine")
    assert files["README.md"] == b"# My own" and files["model.safetensors"] != b"old"
    shard = "model-00001-of-00002.safetensors"
    hub.add("me/mine", {shard: b"old", "model.safetensors.index.json": b"{}"})
    models.push_checkpoint(model, "hf://me/mine", license="mit")
    models.push_checkpoint(model, "hf://me/mine", license="apache-2.0")
    _, files = hub.files("me/mine")
    assert set(files) == {"README.md", "config.json", "model.safetensors"}
    assert b"license: apache-2.0" in files["README.md"]


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("me/x", {}, "`name` must be a name such as hf://.*name='me/x'"),
        ("hf://me/x@main", {}, "without a revision.*name='hf://me/x@main'"),
        ("hf://me/x", {"scores": {"f1": 1.0}}, "`dataset` must name.*'f1': 1.0"),
        ("hf://me/x", {"adapter": "a", "dtype": "float16"}, "`dtype` is for whole"),
        ("hf://me/x", {"adapter": "a"}, "`name` must be the name of an adapter"),
    ],
)
def test_pushes_that_are_refused(hub, bert, name, options, words):
    model = models.load_checkpoint(bert[0])
    with pytest.raises(ValueError, match=words):
        models.push_checkpoint(model, name, **options)
    assert not hub.log


def test_a_push_without_permission(hub, bert):
    model = models.load_checkpoint(bert[0])
    hub.token = "secret"
    with pytest.raises(PermissionError, match="`name`.*HF_TOKEN.*name='hf://me/x'"):
        models.push_checkpoint(model, "hf://me/x")
    assert not hub.commits.get("me/x")


def test_keras_saves_to_the_hub(hub):
    """Our models go up and come down by Keras' own functions, too."""
    model = models.build_bert("tiny", vocabulary_size=17, hidden_dim=6, num_layers=1)
    model.save("hf://me/kept")
    assert same_weights(keras.saving.load_model("hf://me/kept"), model)
    with pytest.raises(ValueError, match=r"keras.saving.load_model\('hf://me/kept'\)"):
        models.load_checkpoint("hf://me/kept")


def test_the_guide(hub, tmp_path, capsys):
    """docs/hub.md runs as written, with a sentence encoder, whose modules come too."""
    folder = shutil.copytree(SENTENCES / "base", tmp_path / "sentences")
    shutil.copytree(SENTENCES / "several", folder, dirs_exist_ok=True)
    commit = hub.add("sentence-transformers/all-MiniLM-L6-v2", folder)
    text = (Path(__file__).parents[2] / "docs/hub.md").read_text("utf-8")
    names = {}
    for recipe in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(recipe, "hub.md", "exec"), names)
    source, place = capsys.readouterr().out.split()
    assert source == f"hf://sentence-transformers/all-MiniLM-L6-v2@{commit}"
    encoder, again = (
        models.load_checkpoint(name, "sentence_encoder") for name in (folder, place)
    )
    assert same_weights(again, encoder)
    texts = names["tokenizer"].encode_batch(["a film", "a good film"])
    np.testing.assert_array_equal(again(texts), encoder(texts))
    card, _ = read_card("me/sentences")
    assert card["pipeline_tag"] == "sentence-similarity"
    assert card["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
