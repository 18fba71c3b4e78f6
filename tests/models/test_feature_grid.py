"""The grid of features that captioners and answerers look at."""

import keras
import numpy as np
import pytest
from model_cases import numpy

from keras_attn.models.parts.backbones.feature_grid import grid_input


def small_backbone(**options):
    images = keras.Input((9, 12, 3))
    maps = keras.layers.Conv2D(5, 3, strides=3, name="first")(images)
    last = keras.layers.Conv2D(7, 1, name="second")(maps)
    pooled = keras.layers.GlobalAveragePooling2D()(last)
    outputs = {"all": {"0": maps, "1": last, "pooled": pooled}, "pooled": pooled}
    return keras.Model(images, outputs[options.get("output", "all")])


def test_features_that_were_computed_before():
    inputs, grid = grid_input(None, (3, 5), 7)
    assert list(inputs) == ["features"]
    assert inputs["features"] is grid and grid.shape == (None, 3, 5, 7)
    for arguments in ((0, 7), ((3, 5, 7), 7), (3, 0), (3, None)):
        with pytest.raises((ValueError, TypeError), match="`(grid_size|feature_dim)`"):
            grid_input(None, *arguments)


def test_the_last_map_of_a_backbone():
    backbone = small_backbone()
    inputs, grid = grid_input(backbone, None, None)
    model = keras.Model(inputs, grid)
    images = np.random.default_rng(0).normal(size=(2, 9, 12, 3)).astype("float32")
    found = numpy(model({"images": images}))
    np.testing.assert_array_equal(found, numpy(backbone(images)["1"]))
    assert model.get_layer("backbone").trainable
    assert len(model.trainable_weights) == 4


def test_what_is_frozen_stays_frozen(tmp_path):
    backbone = small_backbone()
    backbone.get_layer("first").trainable = False
    model = keras.Model(*grid_input(backbone, None, None))
    assert [weight.path for weight in model.trainable_weights] == [
        "second/kernel",
        "second/bias",
    ]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.trainable_weights) == 2


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="`backbone` must be a functional Keras model"):
        grid_input("resnet50", None, None)
    with pytest.raises(ValueError, match=r"return a map .* include_top=False"):
        grid_input(small_backbone(output="pooled"), None, None)
    words = keras.Input((None,))
    with pytest.raises(ValueError, match="must take one input, images"):
        grid_input(keras.Model(words, words * 2), None, None)
