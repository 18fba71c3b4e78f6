"""The grid of features that captioners and answerers look at."""

import keras
import numpy as np
import pytest
from model_cases import create, inputs_for, logits_of, numpy
from model_contract import is_idle, train

from keras_attn.decoding import Beam, generate
from keras_attn.models.parts.backbones.feature_grid import grid_input


def small_backbone(**options):
    images = keras.Input((9, 12, 3))
    maps = keras.layers.Conv2D(5, 3, strides=3, name="first")(images)
    last = keras.layers.Conv2D(7, 1, name="second")(maps)
    pooled = keras.layers.GlobalAveragePooling2D()(last)
    every = {"0": maps, "1": last, "pooled": pooled}
    outputs = {"all": every, "pooled": pooled, "map": last}
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


OF_GRIDS = (
    *("vqa_ask_attend_answer", "vqa_show_ask_attend_answer", "caption_show_and_tell"),
    *("caption_show_and_tell-context", "caption_show_attend_tell"),
    "caption_cnn_transformer",
)


@pytest.mark.parametrize("case", OF_GRIDS)
def test_a_model_on_images_is_the_model_on_their_features(case, tmp_path):
    backbone = small_backbone(output="map")
    on_images = create(case, backbone=backbone)
    on_features = create(case, grid_size=(3, 4), feature_dim=7)
    for layer in on_features.layers:
        if layer.weights:
            layer.set_weights(on_images.get_layer(layer.name).get_weights())
    inputs = inputs_for(on_images)
    texts = {name: value for name, value in inputs.items() if name != "images"}
    features = {"features": numpy(backbone(inputs["images"]))}
    found, expected = (
        logits_of(on_images, inputs),
        logits_of(on_features, texts | features),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    on_images.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(loaded, inputs), found)
    with pytest.raises(ValueError, match="`images` must have the shape"):
        on_images({**inputs, "images": inputs["images"][:, :-1]})
    # Both parts learn.
    before = [numpy(weight).copy() for weight in on_images.trainable_weights]
    train(on_images, run_eagerly=True)
    for weight, old in zip(on_images.trainable_weights, before, strict=True):
        moves = np.abs(numpy(weight) - old).max() > 0
        assert moves or is_idle(weight, on_images), weight.path


@pytest.mark.compiled
@pytest.mark.parametrize("case", ["caption_show_and_tell", "caption_cnn_transformer"])
def test_a_captioner_on_images_generates_from_them(case):
    backbone = small_backbone(output="map")
    on_images = create(case, backbone=backbone)
    on_features = create(case, grid_size=(3, 4), feature_dim=7)
    on_features.set_weights(on_images.get_weights()[len(backbone.weights) :])
    images = inputs_for(on_images)["images"]
    for strategy in (None, Beam(3)):
        options = {"strategy": strategy, "start_token_id": 1}
        one = generate(on_images, {"images": images}, 4, **options)
        features = {"features": numpy(backbone(images))}
        other = generate(on_features, features, 4, **options)
        np.testing.assert_array_equal(one.token_ids, other.token_ids)


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="`backbone` must be a functional Keras model"):
        grid_input("resnet50", None, None)
    with pytest.raises(ValueError, match=r"return a map .* include_top=False"):
        grid_input(small_backbone(output="pooled"), None, None)
    words = keras.Input((None,))
    with pytest.raises(ValueError, match="must take one input, images"):
        grid_input(keras.Model(words, words * 2), None, None)
