"""`predict_tiles` with an exported model."""

import keras
import numpy as np
import pytest

from keras_attn.export import export, load_runner
from keras_attn.tiling import predict_tiles

pytestmark = pytest.mark.shipped


def network():
    images = keras.Input((None, None, 3), name="images")
    logits = keras.layers.Conv2D(5, 3, padding="same")(images)
    return keras.Model(images, logits)


IMAGE = np.random.default_rng(3).normal(size=(21, 13, 3)).astype("float32")


@pytest.mark.parametrize("suffix", ["", ".tflite", ".onnx"])
@pytest.mark.parametrize("batch", [None, 2])
def test_tiles_of_a_runner_are_those_of_the_model(suffix, batch, tmp_path):
    model, path = network(), tmp_path / f"m{suffix}"
    export(model, path, batch_size=batch)
    options = {"overlap": 1, "batch_size": 3, "verbose": False}
    expected = predict_tiles(model, IMAGE, 8, **options)
    found = predict_tiles(load_runner(path), IMAGE, 8, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_tiles_of_a_fixed_size_and_several_outputs(tmp_path):
    images = keras.Input((8, 8, 3), name="images")
    logits = keras.layers.Conv2D(5, 3)(images)
    outputs = {"auxiliary": keras.layers.Conv2D(2, 1)(images), "logits": logits}
    model, path = keras.Model(images, outputs), tmp_path / "m.onnx"
    export(model, path)
    expected = predict_tiles(model, IMAGE, 8, verbose=False)
    runner = load_runner(path)
    found = predict_tiles(runner, IMAGE, 8, verbose=False)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"of the `tile_size` .*\(9, 9, 3\)"):
        predict_tiles(runner, IMAGE, 9)
    with pytest.raises(ValueError, match=r"of the `tile_size` .*\(8, 8, 1\)"):
        predict_tiles(runner, IMAGE[..., :1], 8)


def test_an_exported_classifier_has_no_map(tmp_path):
    images = keras.Input((8, 8, 3), name="images")
    pooled = keras.layers.GlobalAveragePooling2D()(images)
    export(keras.Model(images, pooled), tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"must have an output .* of \(3,\) for"):
        predict_tiles(load_runner(tmp_path / "m.onnx"), IMAGE, 8)
