"""DALL·E's discrete VAE against its authors' package, from a tiny checkpoint.

`dvae_references.py` writes the folder.
"""

import json

import keras
import numpy as np
import pytest
from parity.folders import (
    CHECKPOINTS,
    TOLERANCE,
    altered,
    arrays_of,
    bytes_of,
    same_tensors,
    tensors_of,
)

from keras_attn.models import load_checkpoint, save_checkpoint

CASE = "dall_e_dvae"
FOLDER = CHECKPOINTS / CASE


def close(got, expected):
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=TOLERANCE)


def test_the_case_is_small():
    assert bytes_of([CASE]) < 150_000


def test_outputs_and_files_equal_those_of_the_package(tmp_path):
    inputs, expected = arrays_of(FOLDER)
    model = load_checkpoint(FOLDER, temperature_steps=10)
    assert model.get_layer("relaxation").temperature_steps == 10
    logits = keras.Model(model.input, model.get_layer("encoder_output").output)
    close(logits(inputs["images"]), expected["logits"])
    codes = np.asarray(model.encode_model()(inputs["images"]))
    np.testing.assert_array_equal(codes, expected["codes"])
    assert len(np.unique(codes)) > 1
    outputs = model(inputs["images"])
    close(outputs["statistics"], expected["statistics"])
    close(outputs["reconstruction"], expected["reconstruction"])
    close(model.decode_model()(codes), expected["reconstruction"])
    save_checkpoint(model, tmp_path)
    same_tensors(CASE, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written == {
        **json.loads((FOLDER / "config.json").read_text()),
        "group_count": 4,
        "input_channels": 3,
    }


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"n_blk_per_group": 3}, "lacks keys.*block_3"),
        ({"group_count": 3}, "keys that this model does not have.*group_4"),
        ({"n_hid": 8}, "weights must have the shapes.*n_hid=8"),
        ({"image_size": [20, 16]}, "`image_size` must be a multiple of `patch_size`"),
        ({"n_blk_per_group": 4096}, "`n_blk_per_group` in config.json must be at most"),
        ({"library": "dalle"}, "`library` in config.json must be one of .*dall_e"),
    ],
)
def test_what_a_config_cannot_say(fields, match, tmp_path):
    folder = altered(tmp_path, CASE, config=fields)
    with pytest.raises(ValueError, match=match):
        load_checkpoint(folder)


@pytest.mark.parity
def test_agrees_with_pytorch():
    from parity.dvae_references import by_hand

    inputs, expected = arrays_of(FOLDER)
    images = inputs["images"].transpose(0, 3, 1, 2)
    found = by_hand(tensors_of(FOLDER), images)
    for name, tensor in zip(("logits", "statistics"), found, strict=True):
        close(tensor.permute(0, 2, 3, 1).numpy(), expected[name])
