"""Exported image models: any batch size, quantization, and the same classes."""

import numpy as np
import pytest
from export_formats import SUFFIXES
from model_cases import C, numpy, tiny

from keras_attn.export import export, load_runner

pytestmark = pytest.mark.shipped
MODELS = ("vit_base_patch16", "swin_tiny", "convnext_tiny")


def random_images(model, batch):
    shape = (batch, *model.input.shape[1:])
    return np.random.default_rng(0).normal(size=shape).astype("float32")


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


@pytest.mark.parametrize("suffix", SUFFIXES.values())
def test_any_image_size(suffix, tmp_path):
    model = tiny("convnext_tiny-any_size")
    report = export(model, tmp_path / f"model{suffix}")
    assert report.inputs["serve"] == {"images": "float32 (?, ?, ?, 3)"}
    runner = load_runner(tmp_path / f"model{suffix}")
    for size in ((18, 26), (19, 27), (4, 37)):
        images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
        (logits,) = runner({"images": images}).values()
        np.testing.assert_allclose(logits, numpy(model(images)), rtol=0, atol=2e-5)


def test_image_size_can_be_fixed(tmp_path):
    model = tiny("convnext_tiny-any_size")
    path = tmp_path / "model.tflite"
    report = export(model, path, batch_size=1, sequence_length=24)
    assert report.inputs["serve"] == {"images": "float32 (1, 24, 24, 3)"}


@pytest.mark.parametrize(
    "name, quantization",
    [
        ("convnext_tiny", "float16"),
        ("swin_tiny", "int8_dynamic"),
        ("vit_base_patch16", "int8"),
        ("swin_tiny", "int8"),
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
    assert classes.shape == (20, C)
    expected = numpy(model(images)).argmax(-1)
    assert share == pytest.approx(np.mean(classes.argmax(-1) == expected))
    assert share > {"float16": 0.98, "int8_dynamic": 0.8, "int8": 0.8}[quantization]
    assert f"{share:.1%}" in str(report)
