"""Checkpoints, tokenizers and adapters by name."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import recipes
from hub_server import ask
from parity.folders import CHECKPOINTS

from keras_attn import models, training
from keras_attn.data import (
    ByteLevelBPETokenizer,
    CharacterTokenizer,
    CLIPTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    load_text_tokenizer,
)
from keras_attn.translator import Translator

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


def test_errors_have_the_name(hub, bert):
    """Not the folder of the client's cache."""
    with pytest.raises(ValueError, match="`task` must be.*folder='hf://me/bert'"):
        models.load_checkpoint("hf://me/bert", "captioner")
    with pytest.raises(ValueError, match="folder='hf://me/bert'"):
        models.load_checkpoint(Path("hf://me/bert"), "captioner")
    files = {x.name: x.read_bytes() for x in bert[0].iterdir()}
    adapter = CHECKPOINTS.parent / "adapters" / "bert_classifier"
    config = (adapter / "adapter_config.json").read_bytes()
    for damaged, read in (
        ({**files, "config.json": b"{"}, models.load_checkpoint),
        ({**files, "model.safetensors": b"12345678"}, models.load_checkpoint),
        ({**files, "tokenizer_config.json": b"[]"}, load_text_tokenizer),
        ({**files, "vocab.txt": b"\xff"}, WordPieceTokenizer.from_folder),
        ({"merges.txt": b"a", "vocab.json": b"[]"}, ByteLevelBPETokenizer.from_folder),
        ({"merges.txt": b"a", "vocab.json": b"[]"}, CLIPTokenizer.from_folder),
        ({"spiece.model": b"a"}, SentencePieceTokenizer.from_folder),
        ({"preprocessor_config.json": b"{"}, models.image_preprocessing),
        ({"config.json": b"{}"}, models.image_preprocessing),
        ({"translator.json": b"{", "model.keras": b"1"}, Translator.load),
        (
            {"adapter_config.json": config, "adapter_model.safetensors": b"1"},
            lambda folder: models.load_lora(models.load_checkpoint(bert[0]), folder),
        ),
    ):
        commit = hub.add("me/damaged", damaged)
        with pytest.raises(ValueError) as caught:
            read("hf://me/damaged")
        assert f"hf://me/damaged@{commit}" in str(caught.value), caught.value
        assert "snapshots" not in str(caught.value)


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


def test_a_push_leaves_nothing_that_would_be_read_too(hub, bert):
    """Such as the adapter, the modules or the tokenizer of an earlier push."""
    others = ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"]
    others += ["modules.json", "1_Pooling/config.json", "notes.txt"]
    hub.add("me/mine", dict.fromkeys(others, b"{}"))
    model = models.load_checkpoint(bert[0])
    models.push_checkpoint(model, "hf://me/mine")
    _, files = hub.files("me/mine")
    assert others[2] in files and not {*others[:2], others[3]} & {*files}
    words = WordPieceTokenizer(PIECES)
    models.push_checkpoint(model, "hf://me/mine", tokenizer=words)
    assert load_text_tokenizer("hf://me/mine").pieces == tuple(PIECES)
    assert others[-1] in hub.files("me/mine")[1]


def test_labels_are_no_marks_in_the_card(hub, bert):
    model = models.load_checkpoint(bert[0])
    model.class_names = ["<b>", "a|b", "a\nb", "[x]", "*"]
    scores = {"a|b": 1}
    models.push_checkpoint(model, "hf://me/odd", scores=scores, dataset="glue")
    _, text = read_card("me/odd")
    assert r"Classes: \<b\>, a\|b, a b, \[x\], \*" in text
    assert r"| a\|b | 1 |" in text


def test_a_push_that_the_hub_refuses(hub, bert, monkeypatch):
    model = models.load_checkpoint(bert[0])
    with monkeypatch.context() as patched:
        ask(patched, hub.address, offline=True)
        with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE.*name='hf://me/x'"):
            models.push_checkpoint(model, "hf://me/x")
    hub.status = 422
    with pytest.raises(ValueError, match="`name`: the hub refused.*name='hf://me/x'"):
        models.push_checkpoint(model, "hf://me/x")


def test_nothing_is_saved_to_a_folder_of_this_name(bert, tmp_path, monkeypatch):
    """It would be called `hf:`; only `push_checkpoint` writes to the hub."""
    monkeypatch.chdir(tmp_path)
    there = {*tmp_path.rglob("*")}
    model = models.load_checkpoint(bert[0])
    training.enable_lora(model, rank=2)
    words = CharacterTokenizer("ab")
    translator = models.build_rnnsearch(
        source_vocabulary_size=5, target_vocabulary_size=5, hidden_dim=4
    )
    for save in (
        lambda folder: models.save_checkpoint(model, folder),
        lambda folder: models.save_lora(model, folder),
        WordPieceTokenizer(PIECES).save,
        Translator(translator, words, words, max_length=7).save,
    ):
        for name in ("hf://me/x", Path("hf://me/x")):
            with pytest.raises(ValueError, match="on this machine.*='hf://me/x"):
                save(name)
    assert {*tmp_path.rglob("*")} == there


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("me/x", {}, "`name` must be a name such as hf://.*name='me/x'"),
        ("hf://me/x@main", {}, "without a revision.*name='hf://me/x@main'"),
        ("hf://me/x", {"scores": {"f1": 1.0}}, "`dataset` must name.*'f1': 1.0"),
        ("hf://me/x", {"adapter": "a", "dtype": "float16"}, "`dtype` is for whole"),
        ("hf://me/x", {"adapter": "a"}, "`name` must be the name of an adapter"),
        (
            "hf://me/x",
            {"scores": {"f1": np.nan}, "dataset": "a"},
            "`scores`.*'f1': nan",
        ),
        ("hf://me/x", {"scores": {"f1": "1"}, "dataset": "a"}, "`scores`.*'f1': '1'"),
        ("hf://me/x", {"base_model": "runs/a/b"}, "`base_model` must.*'runs/a/b'"),
        ("hf://me/x", {"base_model": "hf://b"}, "`base_model` must.*'hf://b'"),
        ("hf://me/x", {"tags": "reviews"}, "`tags` must be a list.*'reviews'"),
    ],
)
def test_pushes_that_are_refused(hub, bert, name, options, words):
    model = models.load_checkpoint(bert[0])
    with pytest.raises((TypeError, ValueError), match=words):
        models.push_checkpoint(model, name, **options)
    assert not hub.log


def test_a_push_without_permission(hub, bert):
    model = models.load_checkpoint(bert[0])
    hub.token = "secret"
    with pytest.raises(PermissionError, match="`name`.*HF_TOKEN.*name='hf://me/x'"):
        models.push_checkpoint(model, "hf://me/x")
    assert not hub.commits.get("me/x")


@pytest.mark.parametrize("kind", ["own_resnet_basic", "own_timm_vit", "openclip_vit"])
def test_the_preprocessing_alone(hub, kind):
    """Of a folder or its name, in each library's place, without weights."""
    hub.add("me/images", CHECKPOINTS / kind)
    model = models.load_checkpoint(CHECKPOINTS / kind)
    expected = models.image_preprocessing(model).get_config()
    for folder in (CHECKPOINTS / kind, "hf://me/images"):
        assert models.image_preprocessing(folder).get_config() == expected
    assert not [path for path in hub.transfers() if path.endswith(".safetensors")]


def test_a_processor_saved_by_itself(hub):
    fields = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 6, "width": 5},
        "image_mean": [0.5] * 3,
        "image_std": [0.25] * 3,
    }
    hub.add("me/alone", {"preprocessor_config.json": json.dumps(fields).encode()})
    found = models.image_preprocessing("hf://me/alone").get_config()
    assert found == models.image_preprocessing(fields).get_config()


def test_a_translator(hub, tmp_path):
    words = CharacterTokenizer("ab")
    model = models.build_rnnsearch(
        source_vocabulary_size=7, target_vocabulary_size=7, hidden_dim=4
    )
    Translator(model, words, words, max_length=7).save(tmp_path / "translator")
    hub.add("me/translator", tmp_path / "translator")
    found = Translator.load("hf://me/translator")
    assert same_weights(found.model, model) and found.max_length == 7


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
    names = recipes.run(recipes.DOCS / "hub.md")
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
