"""VLN-BERT's checkpoints: written and read, and read from a ViLBERT's."""

from typing import Any

import keras
import numpy as np
import pytest
from model_cases import create
from parity.folders import (
    CHECKPOINTS,
    altered,
    arrays_of,
    config_of,
    outputs_of,
    same_layers,
    same_weights,
    tensors_of,
)

from keras_attn.layers import GlobalRegion
from keras_attn.models import load_checkpoint, save_checkpoint

VILBERT = "vilbert_pretrainer"
NEW = {
    f"bert.v_embeddings.image_{name}_embeddings.weight"
    for name in ("orientation", "next_heading", "viewpoint")
}
TASKS = {
    "vln_bert_base": "VLNBertModel",
    "vln_bert_pretrainer": "VLNBertForPreTraining",
    "vln_bert_scorer": "VLNBertForRanking",
}


@pytest.mark.parametrize("case", TASKS)
def test_a_model_is_written_and_read(case, tmp_path):
    model = create(case)
    save_checkpoint(model, tmp_path)
    again: Any = load_checkpoint(tmp_path)
    same_weights(again, model)
    assert {x.name for x in again.layers if x.weights} == {
        x.name for x in model.layers if x.weights
    }
    config = config_of(tmp_path)
    assert config["model_type"] == "vln_bert"
    assert config["architectures"] == [TASKS[case]]
    assert config["max_path_length"] == 13
    keys = set(tensors_of(tmp_path))
    prefix = "" if case != "vln_bert_base" else "bert."
    assert {prefix + key for key in keys} >= NEW
    assert tensors_of(tmp_path)[
        "bert.v_embeddings.image_orientation_embeddings.weight".removeprefix(prefix)
    ].shape == (22, 4)


def test_the_ranking_starts_from_the_pretrainer(tmp_path):
    model = create("vln_bert_pretrainer")
    save_checkpoint(model, tmp_path)
    scorer: Any = load_checkpoint(tmp_path, "scorer")
    same_layers(scorer, model, [layer.name for layer in scorer.layers if layer.weights])
    model.save(tmp_path / "model.keras")
    saved = keras.saving.load_model(tmp_path / "model.keras")
    save_checkpoint(saved, tmp_path / "folder")
    same_weights(load_checkpoint(tmp_path / "folder"), model)


def as_path(inputs):
    """The inputs of ViLBERT as one viewpoint of a path."""
    names = ("region_features", "region_boxes", "region_padding_mask")
    features, locations, mask = GlobalRegion()(*(inputs[name] for name in names))
    count = mask.shape[1]
    angles = np.random.default_rng(0).normal(size=(len(mask), count, 3))
    return {
        **inputs,
        "region_features": np.asarray(features),
        "region_boxes": np.asarray(locations)[..., :4],
        "region_padding_mask": np.asarray(mask),
        "region_angles": angles.astype("float32"),
        "viewpoint_ids": np.full((len(mask), count), 2, "int32"),
    }


@pytest.mark.parametrize("saved_here", [False, True])
def test_the_weights_of_vilbert_give_its_outputs(saved_here, tmp_path):
    folder = CHECKPOINTS / VILBERT
    inputs, _ = arrays_of(folder)
    vilbert: Any = load_checkpoint(folder)
    if saved_here:
        folder = tmp_path
        save_checkpoint(vilbert, folder)
    with pytest.warns(UserWarning, match="no weights for") as caught:
        model: Any = load_checkpoint(folder, "vln_bert_pretrainer", max_path_length=3)
    for layer in ("orientation", "next_heading", "viewpoint"):
        assert f"{layer}_embedding" in str(caught[0].message)
    assert model.get_layer("viewpoint_embedding").input_dim == 3
    found, expected = outputs_of(model, as_path(inputs)), outputs_of(vilbert, inputs)
    np.testing.assert_array_equal(found["masked_lm"], expected["masked_lm"])
    # VLN-BERT also has logits of the first region, in one product with the others.
    regions = found["masked_regions"][:, 1:]
    np.testing.assert_allclose(regions, expected["masked_regions"], atol=2e-6)


def test_every_task_starts_from_vilbert():
    inputs, expected = arrays_of(CHECKPOINTS / VILBERT)
    with pytest.warns(UserWarning, match="no weights for"):
        model: Any = load_checkpoint(CHECKPOINTS / VILBERT, "vln_bert")
    pooled = outputs_of(model, as_path(inputs))["pooled_output"]
    np.testing.assert_allclose(pooled, expected["pooled_output"], atol=2e-5)
    with pytest.warns(UserWarning, match="scorer"):
        scorer: Any = load_checkpoint(CHECKPOINTS / VILBERT, "vln_bert_scorer")
    assert scorer.output.shape == (None, 1)


def test_a_configuration_that_is_not_supported(tmp_path):
    folder = altered(tmp_path, VILBERT, config={"max_path_length": 0})
    with pytest.raises(ValueError, match="`max_path_length` in config.json"):
        load_checkpoint(folder, "vln_bert")
    with pytest.raises(ValueError, match="vln_bert"):
        load_checkpoint(CHECKPOINTS / "bert_encoder", "vln_bert")
