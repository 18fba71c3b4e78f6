"""DALL·E's discrete VAE against its authors' package, from a tiny checkpoint.

`dvae_references.py` writes the folder.
"""

import json

import keras
import numpy as np
from parity.folders import (
    CHECKPOINTS,
    TOLERANCE,
    arrays_of,
    same_tensors,
)

from keras_attn.models import load_checkpoint, save_checkpoint

CASE = "dall_e_dvae"
FOLDER = CHECKPOINTS / CASE


def close(got, expected):
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=TOLERANCE)


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
