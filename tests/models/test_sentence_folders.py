"""Folders of sentence-transformers give its vectors, and are written back.

`tests/parity/sentence_references.py` wrote them with the library.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from variations import in_turn

from keras_attn import models
from keras_attn.data import JSONTokenizer, WordPieceTokenizer, load_text_tokenizer

FOLDERS = Path(__file__).parents[1] / "parity" / "sentence_folders"
TEXTS = json.loads((FOLDERS / "texts.json").read_text())
NAMES = sorted(path.parent.name for path in FOLDERS.glob("*/vectors.npy"))


def complete(name, folder):
    """A folder as the library wrote it, with the model and the tokenizer of `base`."""
    shutil.copytree(FOLDERS / "base", folder)
    shutil.copytree(FOLDERS / name, folder, dirs_exist_ok=True)
    return folder


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def vectors_of(folder):
    model = models.load_checkpoint(folder, "sentence_encoder")
    batch = load_text_tokenizer(folder).encode_batch(TEXTS)
    return model, np.array(model(batch))


def test_every_folder_is_committed():
    assert len(NAMES) == 7
    files = [path for path in FOLDERS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 60_000


@pytest.mark.parametrize("name", in_turn(NAMES, 3))
def test_vectors_are_those_of_the_library(name, tmp_path):
    folder = complete(name, tmp_path / "theirs")
    model, vectors = vectors_of(folder)
    expected = np.load(folder / "vectors.npy")
    np.testing.assert_allclose(vectors, expected, atol=2e-6)
    # Written and read back, nothing is lost.
    models.save_checkpoint(model, tmp_path / "ours")
    load_text_tokenizer(folder).save(tmp_path / "ours")
    np.testing.assert_allclose(vectors_of(tmp_path / "ours")[1], expected, atol=2e-6)
    # A folder that has modules already is replaced.
    models.save_checkpoint(model, folder)
    np.testing.assert_allclose(vectors_of(folder)[1], expected, atol=2e-6)


def test_what_the_folders_say_of_texts(tmp_path):
    prompt = load_text_tokenizer(complete("cls_prompt", tmp_path / "prompt"))
    assert isinstance(prompt, WordPieceTokenizer)
    assert prompt.prompt == "query : "
    # The prompt may be changed, and also holds in a graph.
    packed = prompt.pack(TEXTS)
    batch = prompt.encode_batch(TEXTS)
    np.testing.assert_array_equal(packed["token_ids"], batch["token_ids"])
    prompt.prompt = prompt.prompts["passage"]
    assert prompt.decode(prompt.encode_batch(["a cat"])["token_ids"][0]) == (
        "passage : a cat"
    )
    prompt.save(tmp_path / "saved")
    assert load_text_tokenizer(tmp_path / "saved").prompt == "passage : "
    # `max_seq_length`, an older file; the model's positions where nothing is said.
    limits = {"old_mean": 7, "last_limit": 6, "several": 24}
    for name, limit in limits.items():
        folder = complete(name, tmp_path / name)
        assert load_text_tokenizer(folder).max_length == limit
    assert isinstance(load_text_tokenizer(tmp_path / "old_mean"), JSONTokenizer)


def test_arguments_take_precedence(tmp_path):
    folder = complete("max_two_dense", tmp_path / "dense")
    options = {"pooling": "last", "projections": (), "normalize": True}
    model = models.load_checkpoint(folder, "sentence_encoder", **options)
    assert model.output.shape == (None, 12)
    assert model.get_layer("sentence_pooling").pooling == "last"
    # Other tasks do not read the modules.
    assert set(models.load_checkpoint(folder).output) >= {"sequence_output"}


POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
TEXT = "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("name", "file", "fields", "match"),
    [
        ("mean_sqrt", POOLING, {"pooling_mode": "median"}, "`pooling_mo"),
        ("mean_sqrt", POOLING, {"pooling_mode": []}, "`pooling_mode` in"),
        ("mean_sqrt", POOLING, {"new": 1}, "`new` in config.json must"),
        (
            "cls_prompt",
            POOLING,
            {"include_prompt": False},
            "`include_prompt` in config.json must be true",
        ),
        (
            "max_two_dense",
            DENSE,
            {"activation_function": "torch.nn.modules.activation.Softshrink"},
            "`activation_function` in 2_Dense/config.json must be one of",
        ),
        ("max_two_dense", DENSE, {"use_residual": True}, "`use_residual`"),
        ("max_two_dense", DENSE, {"out_features": 0}, "`out_features`"),
        (
            "max_two_dense",
            DENSE,
            {"module_input_name": "token_embeddings"},
            "`module_input_name` in config.json must be None or 'sentence_embedding'",
        ),
        (
            "weighted",
            "2_Normalize/config.json",
            {"module_output_name": "unit"},
            "`module_output_name` in config.json",
        ),
    ],
)
def test_what_is_not_supported_is_refused(name, file, fields, match, tmp_path):
    folder = complete(name, tmp_path / "folder")
    edit(folder / file, **fields)
    with pytest.raises(ValueError, match=match):
        models.load_checkpoint(folder, "sentence_encoder")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda modules: modules[::-1], "must list the modules Transformer, Pooling"),
        (lambda modules: modules[:1], "must list the modules Transformer, Pooling"),
        (
            lambda modules: [*modules, {"type": "x.LayerNorm", "path": "3_LayerNorm"}],
            "with Transformer, Pooling, Dense, Dense, LayerNorm",
        ),
        (lambda modules: [3], "must be a list of modules with a type"),
        (
            lambda modules: [{**modules[0], "path": "0_Transformer"}, *modules[1:]],
            "must have its Transformer in the folder itself",
        ),
        (
            lambda modules: [modules[0], {**modules[1], "path": "../x"}, *modules[2:]],
            "`path` in modules.json must name a folder in its own folder",
        ),
        (
            lambda modules: [{**modules[0], "kwargs": ["task"]}, *modules[1:]],
            "`kwargs` of a module in modules.json must be empty",
        ),
    ],
)
def test_other_modules_are_refused(change, match, tmp_path):
    folder = complete("max_two_dense", tmp_path / "folder")
    path = folder / "modules.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=match):
        models.load_checkpoint(folder, "sentence_encoder")


def test_pickled_weights_of_a_dense_layer_are_not_read(tmp_path):
    folder = complete("max_two_dense", tmp_path / "folder")
    (folder / "3_Dense/model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="must have 3_Dense/model.safetensors"):
        models.load_checkpoint(folder, "sentence_encoder")


@pytest.mark.parametrize(
    ("file", "fields", "match"),
    [
        (TEXT, {"max_seq_length": "9"}, "`max_seq_length` in"),
        (TEXT, {"query_length": 9}, "`query_length` in"),
        (
            "sentence_bert_config.json",
            {"transformer_task": "fill-mask"},
            "`transformer",
        ),
        (TEXT, {"other": 9}, "`other` in sentence_bert_config"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "none"},
            "`default_prompt_name` in config_sentence_transformers.json must be one of",
        ),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "`prompts` in"),
        (
            "config_sentence_transformers.json",
            {"model_type": "SparseEncoder"},
            "`model_type` in config_sentence_transformers.json must be None or 'Sent",
        ),
    ],
)
def test_settings_of_texts_that_are_not_supported(file, fields, match, tmp_path):
    folder = complete("cls_prompt", tmp_path / "folder")
    edit(folder / file, **fields)
    with pytest.raises(ValueError, match=match):
        load_text_tokenizer(folder)


def build(**options):
    encoder = models.build_roberta(
        vocabulary_size=61,
        num_layers=1,
        hidden_dim=12,
        num_heads=3,
        mlp_dim=20,
        max_sequence_length=17,
    )
    return models.build_roberta_sentence_encoder(encoder, **options)


def test_a_sentence_encoder_of_ours_is_written_and_read(tmp_path):
    model = build(
        pooling=("mean", "max"), projections=((5,), (3, "relu", False)), normalize=False
    )
    models.save_checkpoint(model, tmp_path)
    loaded = models.load_checkpoint(tmp_path, "sentence_encoder")
    ids = np.array([[0, 5, 6, 2], [0, 7, 2, 1]], "int32")
    inputs = {"token_ids": ids, "padding_mask": (ids != 1).astype("int32")}
    np.testing.assert_array_equal(np.array(loaded(inputs)), np.array(model(inputs)))
    with pytest.warns(UserWarning, match="no weights for sentence_projection_0"):
        models.load_checkpoint(tmp_path, "sentence_encoder", projections=((7,),))
    model = build(projections=((3, "softsign"),))
    with pytest.raises(ValueError, match="`activation` of a projection must be one"):
        models.save_checkpoint(model, tmp_path / "other")


def test_wrong_arguments_are_refused():
    for pooling in ((), ("mean", "mean")):
        with pytest.raises(ValueError, match="`pooling` must have at least one kind"):
            build(pooling=pooling)
    for each in (5, (), (1, "relu", True, 2)):
        with pytest.raises(ValueError, match="`projections` must have the units of"):
            build(projections=(each,))
    with pytest.raises(ValueError, match="`projections` must be a positive integer"):
        build(projections=((0,),))
