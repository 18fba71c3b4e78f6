"""ONNX: kernels are stored as they are used, with the batch norms that follow."""

import keras
import numpy as np
import pytest
from keras import layers
from model_cases import numpy, randomize

from keras_attn.export import export, load_runner
from keras_attn.export.formats import onnx_weights
from keras_attn.layers import BatchNormalization
from keras_attn.models import build_fcn_resnet, build_unet

pytestmark = pytest.mark.shipped


@pytest.fixture(params=[200, 100_000], ids=["lifted", "constant"], autouse=True)
def smallest_lifted(request, monkeypatch):
    """Kernels go past tf2onnx, as large ones do, or are constants to it."""
    monkeypatch.setattr(onnx_weights, "_SMALLEST_LIFTED", request.param)


def operators_of(model, tmp_path, batch=2, size=(17, 23)):
    """Exports, and compares with Keras at another size; the operators by name."""
    report = export(model, tmp_path / "m.onnx")
    images = np.random.default_rng(1).normal(size=(batch, *size, model.input.shape[-1]))
    images = images.astype("float32")
    found = load_runner(tmp_path / "m.onnx")({"images": images})
    expected = numpy(model(images))
    for value, want in zip(found.values(), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(value, want, rtol=2e-5, atol=2e-5)
    return report.operators


def image_input(channels=3):
    return keras.Input((None, None, channels), name="images")


@pytest.mark.parametrize("norm", [layers.BatchNormalization, BatchNormalization])
def test_batch_norms_become_part_of_the_convolutions(norm, tmp_path):
    images = image_input()
    x = layers.Conv2D(5, 3, padding="same", use_bias=False)(images)
    x = layers.ReLU()(norm(epsilon=0.01)(x))
    x = layers.Conv2D(7, (2, 3), strides=2, padding="same")(x)
    x = layers.ReLU()(norm(center=False)(x))
    x = norm(scale=False)(layers.Conv2D(11, 1, padding="same")(x))
    model = randomize(keras.Model(images, layers.Conv2D(2, 1)(x)))
    # The images and the output are transposed, and nothing else.
    expected = {"Conv": 4, "Relu": 2, "Transpose": 2}
    assert operators_of(model, tmp_path) == expected


def test_a_batch_norm_becomes_part_of_a_transposed_convolution(tmp_path):
    images = keras.Input((17, 23, 3), name="images")
    x = layers.Conv2DTranspose(11, 3, strides=2, padding="same")(images)
    x = layers.ReLU()(BatchNormalization()(x))
    model = randomize(keras.Model(images, layers.Conv2D(2, 1)(x)))
    operators = operators_of(model, tmp_path)
    assert operators["ConvTranspose"] == 1 and operators["Transpose"] == 2
    assert not {"BatchNormalization", "Mul"} & set(operators)


# What is small, tf2onnx folds itself, also if it is shared.
@pytest.mark.parametrize("smallest_lifted", [200], indirect=True)
def test_a_weight_with_several_uses_is_stored_once(tmp_path):
    images = image_input()
    shared = layers.Conv2D(211, 3, padding="same")
    outputs = {
        name: BatchNormalization()(shared(images * factor))
        for name, factor in (("once", 1.0), ("twice", 2.0))
    }
    outputs["without"] = shared(images)
    model = randomize(keras.Model(images, outputs))
    assert operators_of(model, tmp_path)["BatchNormalization"] == 2
    assert (tmp_path / "m.onnx").stat().st_size < 1.5 * 4 * model.count_params()


# tf2onnx stores a small one, which it sees as a constant, twice.
@pytest.mark.parametrize("smallest_lifted", [200], indirect=True)
def test_a_tied_embedding_is_stored_once(tmp_path):
    ids = keras.Input((5,), dtype="int32", name="token_ids")
    embedding = keras.layers.ReversibleEmbedding(211, 37)
    logits = embedding(embedding(ids), reverse=True)
    model = keras.Model(ids, logits)
    report = export(model, tmp_path / "m.onnx")
    assert report.bytes < 1.2 * 4 * model.count_params()


def test_a_map_that_is_used_without_its_norm_is_kept(tmp_path):
    images = image_input()
    x = layers.Conv2D(5, 3, padding="same")(images)
    normed = BatchNormalization()(x)
    model = randomize(keras.Model(images, layers.Add()([x, normed])))
    assert operators_of(model, tmp_path)["BatchNormalization"] == 1


def test_a_norm_without_a_convolution_is_kept(tmp_path):
    images = image_input()
    x = BatchNormalization()(layers.ReLU()(images))
    model = randomize(keras.Model(images, layers.Conv2D(5, 3)(x)))
    assert operators_of(model, tmp_path)["BatchNormalization"] == 1


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("size", [2, 3, (1, 4)])
def test_a_dilated_convolution_is_one_operator(size, padding, tmp_path):
    images = image_input()
    x = layers.Conv2D(5, size, dilation_rate=(2, 3), padding=padding)(images)
    model = randomize(keras.Model(images, layers.ReLU()(x)))
    operators = operators_of(model, tmp_path)
    assert operators["Conv"] == 1
    assert not {"SpaceToDepth", "Pad", "Slice"} & set(operators)


def test_fcn_has_no_norms_left(tmp_path):
    model = build_fcn_resnet(
        stem_dim=3, num_blocks=(1, 1, 2, 2), num_classes=5, auxiliary_head=False
    )
    operators = operators_of(randomize(model), tmp_path)
    assert operators["Conv"] == 3 * 6 + 4 + 1 + 2
    assert "BatchNormalization" not in operators
    assert operators["Transpose"] <= 2


@pytest.mark.parametrize("smallest_lifted", [200], indirect=True)
@pytest.mark.parametrize("image_size", [(18, 22), None], ids=["fixed", "any_size"])
def test_crops_of_unet_need_no_transposes(image_size, tmp_path):
    model = build_unet(
        image_size=image_size, hidden_dims=(5, 7), num_channels=3, num_classes=3
    )
    operators = operators_of(randomize(model), tmp_path, size=(18, 22))
    assert operators["Transpose"] == 2
