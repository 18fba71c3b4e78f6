"""Detections are compared in pairs; a detector ships with its suppression inside."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from model_cases import build, inputs_for, randomize
from variations import in_turn

from keras_attn.export import ExportError, export
from keras_attn.export.agreement import top1_agreement
from keras_attn.export.detections import are_detections, in_pairs
from keras_attn.export.differences import compare_output, of_boxes, pointwise
from keras_attn.export.verification import compare_cases

B, K = 2, 7


def detections(seed=0):
    """Five and three detections of two classes."""
    rng = np.random.default_rng(seed)
    count = np.array([5, 3], "int32")
    real = np.arange(K) < count[:, None]
    classes = rng.integers(0, 2, (B, K)).astype("int32")
    return {
        "boxes": (rng.uniform(0, 90, (B, K, 4)) * real[..., None]).astype("float32"),
        "scores": (rng.uniform(0.1, 1, (B, K)) * real).astype("float32"),
        "classes": np.where(real, classes, -1),
        "masks": rng.uniform(0, 1, (B, K, 3, 3)).astype("float32"),
        "num_detections": count,
    }


def shuffled(outputs):
    order = np.array([[3, 1, 4, 0, 2, 5, 6], [2, 0, 1, 3, 4, 5, 6]])
    rows = np.arange(B)[:, None]
    return {k: x[rows, order] if x.ndim > 1 else x for k, x in outputs.items()}


def test_the_order_does_not_matter():
    expected = detections()
    assert are_detections(expected)
    assert not are_detections({"scores": expected["scores"]})
    found, wanted = in_pairs("`serve`", shuffled(expected), expected, 0.0)
    assert set(found) == set(expected) - {"num_detections"}
    assert len(found["boxes"]) == 8
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)


def test_a_moved_box_keeps_its_partner():
    expected = detections()
    moved = shuffled(expected)
    is_real = np.arange(K) < moved["num_detections"][:, None]
    moved["boxes"] = moved["boxes"] + np.float32(0.5) * is_real[..., None]
    found, wanted = in_pairs("`serve`", moved, expected, 0.0)
    difference = found["boxes"] - wanted["boxes"]
    np.testing.assert_allclose(difference, 0.5, atol=1e-4)


@pytest.mark.parametrize("name, value", [("boxes", 77.0), ("classes", 5)])
def test_padding_is_that_of_keras(name, value):
    expected, other = detections(), detections()
    other[name][1, 4] = value
    with pytest.raises(ExportError, match=f"`{name}` of `serve` must have the same"):
        in_pairs("`serve`", other, expected, 0.0)


def test_a_detection_without_a_partner_is_an_error():
    expected, other = detections(), detections()
    other["classes"][0, 1] = 9
    with pytest.raises(ExportError, match="8 detections and Keras 8; 2 of them have"):
        in_pairs("`serve`", other, expected, 0.1)
    assert len(in_pairs("`serve`", other, expected, 0.2)[0]["boxes"]) == 7
    fewer = detections()
    fewer["num_detections"][1] = 2
    fewer["scores"][1, 2] = 0
    with pytest.raises(ExportError, match="7 detections and Keras 8; 1 of them have"):
        in_pairs("`serve`", fewer, expected, 0.01)
    with pytest.raises(ExportError, match="`scores` of `serve` must be 0 after"):
        in_pairs("`serve`", {**fewer, "scores": expected["scores"]}, expected, 1.0)
    with pytest.raises(ExportError, match=r"`boxes` of `serve` has the shape \(2, 6,"):
        in_pairs(
            "`serve`", {**expected, "boxes": expected["boxes"][:, :6]}, expected, 1
        )
    none = {k: np.zeros_like(x) for k, x in expected.items()}
    found, wanted = in_pairs("`serve`", none, none, 0.0)
    assert found["boxes"].shape == wanted["boxes"].shape == (0, 4)


def test_a_side_of_a_box_is_compared_with_the_largest():
    """As close to 0 as to 500 pixels, where float32 has steps of 3e-5."""
    want = np.array([[0.5, 20, 30, 500]], "float32")
    found = want + np.float32(0.02)
    compared = partial(compare_output, "boxes", found, want, 1e-4)
    assert compared(of_boxes).max_abs_diff < 0.021
    with pytest.raises(ExportError, match="differs from Keras by 0.02"):
        compared(pointwise)
    with pytest.raises(ExportError, match="differs from Keras by 0.1"):
        compare_output("boxes", want + np.float32(0.1), want, 1e-4, of_boxes)


def compare_one(found, want, tolerance):
    """Compares the outputs of an artefact for one batch with those of Keras."""
    signature: Any = SimpleNamespace(name="serve", reference=lambda _: dict(want))
    runner: Any = lambda *_: dict(found)  # noqa: E731
    runner.signatures = {}
    cases = [("serve", {"images": np.zeros((B, 1))})]
    return compare_cases(runner, [signature], cases, tolerance, None)


def test_boxes_of_an_artefact_are_compared_by_their_own_rule():
    want = detections()
    moved = {**want, "boxes": want["boxes"] + np.float32(2e-3) * (want["boxes"] > 0)}
    compared = partial(compare_one, moved, want)
    # Below 90 · 1e-4 pixels, but above 1e-4 of the smallest coordinates.
    assert want["boxes"][want["boxes"] > 0].min() < 10
    measured = compared(1e-4)
    assert measured.max_abs_diff == pytest.approx(2e-3, rel=0.1)
    with pytest.raises(ExportError, match="output `boxes` of `serve` differs"):
        compared(1e-5)


@pytest.mark.parametrize("count", [0, 3])
def test_detections_that_were_not_compared_are_reported(count):
    outputs = detections()
    is_real = np.arange(K) < count
    outputs["boxes"] *= is_real[:, None]
    outputs["scores"] *= is_real
    outputs["num_detections"] = np.full(B, count, "int32")
    measured = compare_one(outputs, outputs, 1e-4)
    notes = measured.notes
    assert len(notes) == (count == 0)
    assert all("boxes, scores, classes and masks were not compared" in n for n in notes)
    assert (measured.error is None) == (measured.max_abs_diff is None) == (count == 0)
    expected = {"serve": ["boxes", "scores", "classes", "masks"]} if count == 0 else {}
    assert measured.not_compared == expected


def test_repeated_rows_do_not_count_in_the_agreement():
    classes = np.array([0, 1, 2, 2])
    found = {"logits": np.eye(3)[[0, 1, 2, 0]]}  # The last row is padding.
    signature: Any = SimpleNamespace(
        name="serve", reference=lambda inputs: {"logits": np.eye(3)[classes]}
    )
    batches = [("serve", {"features": np.zeros((4, 5))})]
    runner: Any = lambda *_: found  # noqa: E731
    agreement = partial(top1_agreement, runner, signature, batches)
    assert agreement(3)["logits"].share == 1.0
    assert agreement(4)["logits"].share == 0.75


@pytest.mark.shipped
@pytest.mark.parametrize("format", in_turn(["litert", "saved_model", "onnx"]))
def test_region_features_ship(format, tmp_path):
    model = randomize(build("faster_rcnn_resnet50"))
    regions = model.region_model(5)
    suffix = {"litert": ".tflite", "onnx": ".onnx"}.get(format, "")
    path = tmp_path / f"regions{suffix}"
    images = inputs_for(model)["images"]
    report = export(regions, path, format=format, sample_inputs=images)
    assert report.max_abs_diff is not None and report.max_abs_diff < 1e-2
    assert not any(name.startswith("Flex") for name in report.operators)


@pytest.mark.shipped
@pytest.mark.parametrize("quantization", ["float16", "int8_dynamic"])
def test_a_quantized_detector_is_compared_in_pairs(quantization, tmp_path):
    model = randomize(build("mask_rcnn_resnet50"))
    images = inputs_for(model)["images"]
    path = tmp_path / "detector.tflite"
    report = export(
        model, path, sample_inputs=images, quantization=quantization, tolerance=0.5
    )
    assert report.max_abs_diff
    assert report.top1_agreement == {}
