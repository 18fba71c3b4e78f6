"""CLIP and SigLIP against transformers, from tiny checkpoints."""

import keras
import numpy as np
import pytest
from model_cases import build
from parity import folders
from parity.folders import CHECKPOINTS, TOLERANCE

from keras_attn.models import load_checkpoint, save_checkpoint

CASES = folders.cases_of("clip", "siglip")
CASE = "clip_largest_id"


def agrees(model, inputs, expected):
    """Asserts that embeddings, logits and loss are those of the reference."""
    expected = dict(expected)
    logits, loss = expected.pop("logits"), expected.pop("loss")
    found = folders.outputs_of(model, inputs)
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert np.std(array) > 0.05
        np.testing.assert_allclose(found[name], array, rtol=0, atol=TOLERANCE)
    ours = keras.ops.convert_to_numpy(
        model.logits(found["image_embeddings"], found["text_embeddings"])
    )
    np.testing.assert_allclose(ours, logits, rtol=1e-5, atol=TOLERANCE)
    model.compile()
    pairs = {name: inputs[name] for name in model.input}
    results = model.evaluate(pairs, verbose=0, return_dict=True)
    np.testing.assert_allclose(results["loss"], loss, rtol=1e-5)
    own = np.arange(len(logits))
    assert results["image_accuracy"] == np.mean(logits.argmax(1) == own)
    assert results["text_accuracy"] == np.mean(logits.argmax(0) == own)


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_transformers(case):
    inputs, expected = folders.arrays_of(CHECKPOINTS / case)
    agrees(load_checkpoint(CHECKPOINTS / case), inputs, expected)


def test_the_complete_configuration_of_a_tower_replaces_the_other(tmp_path):
    """Old files have both; transformers' defaults stand for what it leaves out."""
    config = folders.config_of(CHECKPOINTS / CASE)
    complete = {**config["text_config"], "eos_token_id": 5}
    del complete["attention_dropout"]
    fields = {
        "text_config_dict": complete,
        "text_config": {"hidden_size": 9, "attention_dropout": 0.5},
    }
    model = load_checkpoint(folders.altered(tmp_path, CASE, fields))
    assert model.get_layer("text_pooling").end_token_id == 5
    assert model.get_layer("text_block_0").attention_dropout == 0.0
    # `null`, as newer files have it.
    path = folders.altered(tmp_path, CASE)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text('{"text_config_dict": null, ' + text[1:])
    assert load_checkpoint(path).get_layer("text_pooling").end_token_id is None


def test_old_files_have_tables_of_positions(tmp_path):
    positions = {
        f"{tower}_model.embeddings.position_ids": np.arange(9)[None]
        for tower in ("text", "vision")
    }
    path = folders.altered(tmp_path, CASE, tensors=lambda own: {**own, **positions})
    folders.same_weights(load_checkpoint(path), load_checkpoint(CHECKPOINTS / CASE))


@pytest.mark.parametrize("case", [CASE, "siglip_plain"])
def test_positions_are_resized_for_images_of_a_different_size(case):
    model = load_checkpoint(CHECKPOINTS / case, image_size=(14, 35))
    assert model.input["images"].shape == (None, 14, 35, 3)
    inputs, _ = folders.arrays_of(CHECKPOINTS / case)
    images = inputs["images"][:, :14]
    images = np.concatenate([images, images], axis=2)[:, :, :35]
    found = model({"images": images, "token_ids": inputs["token_ids"]})
    assert np.isfinite(found["image_embeddings"]).all()


def test_transformers_has_no_oblong_images(tmp_path):
    model = load_checkpoint(CHECKPOINTS / CASE, image_size=(14, 35))
    with pytest.raises(ValueError, match="`image_size` and `patch_size` must be equal"):
        save_checkpoint(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_model_of_a_published_name_is_written(tmp_path):
    """By its type: `build_clip` with overrides, not from a folder."""
    model = build("clip_vit_base_patch32", image_size=14, patch_size=7)
    save_checkpoint(model, tmp_path)
    folders.same_weights(load_checkpoint(tmp_path), model)
    np.testing.assert_allclose(model.similarity.logit_scale, np.log(1 / 0.07), 1e-6)
