"""Exported image models: any batch size, quantization, and the same classes."""

import keras
import numpy as np
import pytest
from export_formats import OF_MOST_MODELS
from model_cases import TINY, C, image_shape, numpy, tiny

from keras_attn.export import export, load_runner
from keras_attn.models import build_unet, convolutionize

pytestmark = pytest.mark.shipped
MODELS = ("vit_base_patch16", "swin_tiny", "convnext_tiny")


def random_images(model, batch):
    shape = (batch, *image_shape(model.input.shape[1:]))
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@pytest.mark.each_value
@pytest.mark.parametrize("suffix", [".tflite", ".onnx"])
@pytest.mark.parametrize("name", MODELS)
def test_any_batch_size(name, suffix, tmp_path):
    model = tiny(name)
    report = export(model, tmp_path / f"model{suffix}")
    (shape,) = report.inputs["serve"].values()
    assert "?" in shape
    runner = load_runner(tmp_path / f"model{suffix}")
    for batch in (1, 3):
        images = random_images(model, batch)
        (logits,) = runner({"images": images}).values()
        np.testing.assert_allclose(logits, numpy(model(images)), rtol=0, atol=2e-5)


def of_any_size(case):
    """A model that takes images of any size: a case, or one made convolutional."""
    return convolutionize(tiny("vgg16")) if case == "convolutional" else tiny(case)


@pytest.mark.each_value
@pytest.mark.parametrize("suffix", OF_MOST_MODELS)
@pytest.mark.parametrize(
    "case",
    [
        *("convnext_tiny-any_size", "convolutional"),
        *("fcn_resnet50-any_size", "fcn8s_vgg16-any_size"),
        *("segnet-any_size", "deconvnet_vgg16-any_size", "unet-same_any_size"),
    ],
)
def test_any_image_size(case, suffix, tmp_path):
    model = of_any_size(case)
    report = export(model, tmp_path / f"model{suffix}")
    assert report.inputs["serve"] == {"images": "float32 (?, ?, ?, 3)"}
    runner = load_runner(tmp_path / f"model{suffix}")
    # Where the classifier of `convolutionize` is trained on 18 by 26 pixels.
    for size in ((18, 26), (19, 27), (18, 37) if "conv" in case else (1, 37)):
        images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
        (logits,) = runner({"images": images}).values()
        expected = numpy(model(images))
        assert logits.shape == expected.shape
        np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)


def test_image_size_can_be_fixed(tmp_path):
    model = tiny("convnext_tiny-any_size")
    path = tmp_path / "model.tflite"
    report = export(model, path, batch_size=1, sequence_length=24)
    assert report.inputs["serve"] == {"images": "float32 (1, 24, 24, 3)"}


@pytest.mark.parametrize(
    "name, quantization",
    [
        ("convnext_tiny", "float16"),
        pytest.param("swin_tiny", "int8_dynamic", marks=pytest.mark.variation),
        pytest.param("vit_base_patch16", "int8", marks=pytest.mark.variation),
        ("swin_tiny", "int8"),
        pytest.param("resnet50", "int8", marks=pytest.mark.variation),
        pytest.param("fcn_resnet50-any_size", "int8", marks=pytest.mark.variation),
        pytest.param("fcn8s_vgg16", "int8", marks=pytest.mark.variation),
        pytest.param("segnet", "int8", marks=pytest.mark.variation),
        pytest.param("deconvnet_vgg16", "int8", marks=pytest.mark.variation),
        ("unet", "int8"),
    ],
)
def test_quantized_model_predicts_the_same_classes(name, quantization, tmp_path):
    model = tiny(name)
    images = random_images(model, 20)
    report = export(
        model,
        tmp_path / "model.tflite",
        quantization=quantization,
        sample_inputs=images,
        batch_size=1,
    )
    assert report.max_abs_diff is not None and report.max_abs_diff > 0
    (share,) = report.top1_agreement.values()
    runner = load_runner(tmp_path / "model.tflite")
    found = [runner({"images": image[None]}) for image in images]
    classes = np.concatenate([logits for (logits,) in map(dict.values, found)])
    assert classes.shape == (20, *model.compute_output_shape(images.shape)[1:])
    assert classes.shape[-1] == TINY[name.partition("-")[0]]["num_classes"]
    expected = numpy(model(images)).argmax(-1)
    assert share == pytest.approx(np.mean(classes.argmax(-1) == expected))
    assert share > {"float16": 0.98, "int8_dynamic": 0.8, "int8": 0.8}[quantization]
    assert f"{share:.1%}" in str(report)
    by_class = {
        int(c): np.mean(classes.argmax(-1)[expected == c] == c)
        for c in np.unique(expected)
        if expected.ndim == 3
    }
    found_by_class = report.class_agreement.get(next(iter(report.top1_agreement)), {})
    assert found_by_class == pytest.approx(by_class)


def halving(images):
    """As MobileNet: padding, and a convolution that takes the border, at each scale."""
    hidden = images
    for index in range(5):
        hidden = keras.layers.ZeroPadding2D(1)(hidden)
        hidden = keras.layers.DepthwiseConv2D(3, strides=2)(hidden)
        hidden = keras.layers.Conv2D(3 + index, 1, activation="relu")(hidden)
    return keras.Model(images, hidden)


@pytest.mark.parametrize("suffix", OF_MOST_MODELS)
@pytest.mark.parametrize("case", ["valid", "backbone"])
def test_a_unet_of_any_size_is_sampled_at_sizes_that_it_accepts(case, suffix, tmp_path):
    if case == "valid":
        # 92 pixels plus a multiple of 8.
        model = build_unet(hidden_dims=(2, 3, 3, 5), num_channels=3, num_classes=C)
        size = (108, 100)
    else:
        network = halving(keras.Input((None, None, 3), name="images"))
        model = build_unet(
            backbone=network, num_classes=C, decoder_dims=(5, 3, 3, 2, 2)
        )
        size = (43, 70)
    report = export(model, tmp_path / f"model{suffix}")
    assert report.inputs["serve"] == {"images": "float32 (?, ?, ?, 3)"}
    images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    runner = load_runner(tmp_path / f"model{suffix}")
    (logits,) = runner({"images": images}).values()
    np.testing.assert_allclose(logits, numpy(model(images)), rtol=0, atol=2e-5)
