"""`preprocess_input`, `decode_predictions`, and the preprocessing of `create`."""

import keras
import numpy as np
import pytest
from model_cases import create

from keras_attn import models
from keras_attn.models.catalog.registry import entry
from keras_attn.models.parts.functional import Functional

FIELDS = {
    "size": {"height": 5, "width": 7},
    "image_mean": [0.5, 0.25, 1.0],
    "image_std": [0.5, 2.0, 1.0],
}


def photo(*shape):
    return np.random.default_rng(3).integers(0, 256, shape).astype("uint8")


def test_images_are_normalized_and_not_resized():
    x = photo(2, 11, 13, 3)
    want = (x / 255 - FIELDS["image_mean"]) / FIELDS["image_std"]
    found = models.preprocess_input(x, FIELDS)
    assert isinstance(found, np.ndarray) and found.dtype == "float32"
    np.testing.assert_allclose(found, want, atol=1e-6)
    floats = models.preprocess_input(x[0] + 0.25, FIELDS)
    np.testing.assert_allclose(
        floats, want[0] + 0.25 / 255 / np.array([0.5, 2, 1]), atol=1e-6
    )
    tensor = models.preprocess_input(keras.ops.convert_to_tensor(x), FIELDS)
    assert keras.ops.is_tensor(tensor)
    np.testing.assert_allclose(tensor, want, atol=1e-6)


@pytest.mark.parametrize("x", [photo(3, 3, 3) / 255, photo(3, 3, 3) - 128.0])
def test_images_that_are_scaled_already_are_refused(x):
    with pytest.raises(ValueError, match="`x` must be pixels from 0 to 255.*x from"):
        models.preprocess_input(x, FIELDS)


def test_the_best_classes_of_each_row():
    images = keras.Input((3,), name="images")
    model = Functional(images, images)
    model.class_names = ["a", "b", "c"]
    logits = np.log([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    found = models.decode_predictions(logits, model, top=2)
    assert [[pair[:2] for pair in row] for row in found] == [
        [(1, "b"), (2, "c")],
        [(0, "a"), (1, "b")],
    ]
    np.testing.assert_allclose([row[0][2] for row in found], [0.5, 0.6], atol=1e-6)
    shares = models.decode_predictions(np.exp(logits), model, from_logits=False)
    assert len(shares[0]) == 3 and shares[0][0][2] == pytest.approx(0.5)
    model.class_names = None
    assert models.decode_predictions(logits, model, top=1)[1][0][1] == "0"


@pytest.mark.parametrize(
    ("preds", "options", "match"),
    [
        (np.zeros((2, 3, 4)), {}, r"`preds` must be the scores.*shape \(2, 3, 4\)"),
        (np.zeros((2, 4)), {}, r"each of the 3 classes.*shape \(2, 4\)"),
        (np.zeros((2, 3)), {"top": 0}, "`top` must be a positive integer"),
        (np.full((2, 3), 2.0), {"from_logits": False}, "must be probabilities.*2 to 2"),
        (np.zeros((2, 3)), {"from_logits": 1}, "`from_logits` must be True or False"),
    ],
)
def test_wrong_predictions(preds, options, match):
    images = keras.Input((3,), name="images")
    model = Functional(images, images)
    model.class_names = ["a", "b", "c"]
    with pytest.raises(ValueError, match=match):
        models.decode_predictions(preds, model, **options)


@pytest.mark.parametrize(
    ("name", "size", "crop_size", "resample"),
    [
        ("vit_base_patch16", [224, 224], None, "bilinear"),
        ("resnet50", 256, [224, 224], "bilinear"),
        ("swin_tiny", 248, [224, 224], "bicubic"),
        ("clip_vit_base_patch32", 224, [224, 224], "bicubic"),
        ("siglip_base_patch16_224", [224, 224], None, "bicubic"),
        ("fcn_resnet50", None, None, "bicubic"),
    ],
)
def test_cards_say_how_published_models_are_given_images(
    name, size, crop_size, resample
):
    layer = models.image_preprocessing(entry(name).card.preprocessing)
    assert (layer.size, layer.crop_size) == (size, crop_size)
    assert size is None or layer.resample == resample


def test_a_created_model_has_the_preprocessing_of_its_size():
    model = create("resnet50")
    sides = model.inputs[0].shape[1:3]
    layer = models.image_preprocessing(model)
    assert layer.compute_output_shape((1, 600, 500, 3))[1:3] == tuple(sides)
    assert layer.std == [0.229, 0.224, 0.225]
    restored = type(model).from_config(model.get_config())
    assert restored.preprocessing == model.preprocessing
