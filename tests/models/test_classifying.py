"""`preprocess_input`, `decode_predictions`, and the preprocessing of `create`."""

import unittest.mock
from typing import Any

import keras
import numpy as np
import pytest
from model_cases import create

from keras_attn import models
from keras_attn.class_predictions import decode_predictions
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


@pytest.mark.parametrize(
    "x",
    [
        photo(3, 3, 3) / 255,
        (photo(3, 3, 3) / 255 - 0.45) / 0.22,
        photo(3, 3, 3) - 128.0,
        photo(3, 3, 3) * 257.0,
    ],
)
def test_images_that_are_scaled_already_are_refused(x):
    with pytest.raises(ValueError, match="`x` must be pixels from 0 to 255.*x from"):
        models.preprocess_input(x, FIELDS)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (1, 5, 7, 4), (1, 1, 5, 7, 3)])
def test_what_is_no_image_of_these_channels_is_refused(shape):
    with pytest.raises(ValueError, match=r"`x` must be images, .*, 3\), or.*shape \("):
        models.preprocess_input(np.zeros(shape), FIELDS)


def test_images_in_a_graph_are_normalized():
    symbol = models.preprocess_input(keras.KerasTensor((2, None, None, 3)), FIELDS)
    assert (symbol.shape, symbol.dtype) == ((2, None, None, 3), "float32")


def test_what_keras_applications_do_with_the_same_images_and_scores():
    """`torch` mode has ImageNet's statistics, and Keras' names are of its classes."""
    applications = pytest.importorskip("keras.src.applications.imagenet_utils")
    x = photo(2, 5, 7, 3)
    fields = entry("resnet50").card.preprocessing
    want = applications.preprocess_input(x.astype("float32"), mode="torch")
    np.testing.assert_allclose(models.preprocess_input(x, fields), want, atol=1e-5)
    halves = entry("vit_base_patch16").card.preprocessing
    want = applications.preprocess_input(x.astype("float32"), mode="tf")
    np.testing.assert_allclose(models.preprocess_input(x, halves), want, atol=1e-5)
    numbers = {str(i): [f"n{i}", f"name {i}"] for i in range(1000)}
    shares = keras.ops.softmax(np.random.default_rng(1).normal(0, 3, (3, 1000)))
    shares = keras.ops.convert_to_numpy(shares)
    with unittest.mock.patch.object(applications, "CLASS_INDEX", numbers):
        for top in (5, 1, 2000):
            want = applications.decode_predictions(shares, top)
            found = decode_predictions(
                shares, [name for _, name in numbers.values()], top
            )
            assert [
                [(f"n{number}", name) for number, name, _ in row] for row in found
            ] == [[pair[:2] for pair in row] for row in want]
            np.testing.assert_allclose(
                [[share for *_, share in row] for row in found],
                [[share for *_, share in row] for row in want],
            )


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
    # Probabilities, unless it is said that they are logits.
    shares = models.decode_predictions(np.exp(logits).astype("float16"), model)
    assert len(shares[0]) == 3 and shares[0][0][2] == pytest.approx(0.5, abs=1e-3)
    (row, _) = models.decode_predictions(np.exp(logits), model, from_logits=True)
    assert row[0][2] == pytest.approx(np.exp(0.5) / np.exp([0.2, 0.5, 0.3]).sum())
    # Another's model may have an array.
    array: Any = np.array(["a", "b", "c"])
    assert decode_predictions(logits, array)[1][0][1] == "a"
    model.class_names = None
    assert models.decode_predictions(logits, model, top=1)[1][0][1] == "0"


@pytest.mark.parametrize(
    ("preds", "options", "match"),
    [
        (np.zeros((2, 3, 4)), {}, r"`preds` must be the scores.*shape \(2, 3, 4\)"),
        (np.zeros(3), {}, r"`preds` must be the scores.*shape \(3,\)"),
        (np.zeros((2, 0)), {}, r"`preds` must be the scores.*shape \(2, 0\)"),
        ({"logits": np.zeros((2, 3))}, {}, r"`preds` must be one output.*\['logits'\]"),
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
        ("vit_hybrid_r50_base_patch16", [224, 224], None, "bilinear"),
        ("resnet50", 256, [224, 224], "bilinear"),
        ("vgg16", 256, [224, 224], "bilinear"),
        ("convnext_tiny", 256, [224, 224], "bicubic"),
        ("swin_tiny", 256, [224, 224], "bicubic"),
        ("deit3_base", 224, [224, 224], "bicubic"),
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
    assert layer.crop_offset == ("round" if crop_size else "floor")


def test_nothing_is_said_where_nothing_is_published():
    assert entry("cnn_self_attention").card.preprocessing is None
    assert entry("bert_base").card.preprocessing is None
    # Gray images are not what the card describes.
    assert create("resnet50", num_channels=1).preprocessing is None


def test_a_created_model_has_the_preprocessing_of_its_size():
    model = create("resnet50")
    sides = model.inputs[0].shape[1:3]
    layer = models.image_preprocessing(model)
    assert layer.compute_output_shape((1, 600, 500, 3))[1:3] == tuple(sides)
    assert layer.std == [0.229, 0.224, 0.225]
    restored = type(model).from_config(model.get_config())
    assert restored.preprocessing == model.preprocessing
    # What is done to a model is not done to the card, also if it takes any size.
    model = create("resnet50", image_size=None, include_top=False)
    assert model.preprocessing is not None
    model.preprocessing["image_mean"].clear()
    fields = entry("resnet50").card.preprocessing
    assert fields is not None and len(fields["image_mean"]) == 3
