"""The comparison with Keras, its samples, and the report."""

import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from export_formats import SUFFIXES
from keras import layers

from keras_attn.export import (
    ExportError,
    ExportReport,
    export,
    samples,
    verification,
    verify,
)
from keras_attn.export.agreement import top1_agreement
from keras_attn.export.description import Description
from keras_attn.export.metadata import IndexRanges
from keras_attn.export.runner import Runner, SignatureInfo, TensorInfo
from keras_attn.export.shapes import Specs
from keras_attn.export.signatures import Signature, get_signatures


def compare(found, want, tolerance=1e-4, quantization=None) -> Any:
    """Compares an artefact that returns `found` with a model that returns `want`."""

    class Constant:
        format = "onnx"
        index_ranges: IndexRanges | None = None
        description = Description()
        signatures = {"serve": SignatureInfo({"x": TensorInfo((1,), "float32")}, {})}

        def call(self, signature, inputs, in_place):
            return found

    model = Signature(
        "serve",
        keras.Sequential([layers.Input((1,)), layers.Identity()]),
        Specs({"x": tf.TensorSpec((1,), name="x")}),
        arrange=lambda tensors: tensors["x"],
        name_outputs=lambda _: {"y": tf.constant(want)},
    )
    cases = [("serve", {"x": np.zeros(1, "float32")})]
    return verification.compare_cases(
        Runner(Constant()), [model], cases, tolerance, quantization
    )


@pytest.mark.parametrize("want", [[1.0, -2.0], [np.inf, np.nan], [-np.inf, 3.0]])
def test_equal_values_agree(want):
    want = np.array(want, "float32")
    assert compare({"y": want}, want, 0.0).max_abs_diff == 0.0


def test_difference_is_absolute_below_one_and_relative_above():
    want = np.array([1e-3, 1e9], "float32")
    assert compare({"y": want + np.float32(9e-5)}, want).max_abs_diff > 8e-5
    compare({"y": want * np.float32(1.00009)}, want)
    match = (
        r"output `y` of `serve` differs .* by 0.0002 .* more than `tolerance`=0.0001"
    )
    with pytest.raises(ExportError, match=match):
        compare({"y": want + np.array([2e-4, 0], "float32")}, want)


@pytest.mark.parametrize("found", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, 1.0]])
def test_nan_and_infinity_disagree_with_a_number(found):
    with pytest.raises(ExportError, match="differs from Keras by inf"):
        compare({"y": np.array(found, "float32")}, np.array([1.0, 1.0], "float32"))


def test_quantized_outputs_are_compared_relative_to_their_size():
    want = np.array([1e-3, -1e-3, -1e9], "float32")
    near = np.array([1.1e-3, -0.9e-3, -1e9], "float32")
    compare({"y": near}, want, 0.11, "int8")
    with pytest.raises(ExportError, match="root mean square error .* is 0.1,"):
        compare({"y": near}, want, 0.09, "int8")
    with pytest.raises(ExportError, match="differs from Keras by 1e"):
        compare({"y": np.array([1e-3, -1e-3, 0.0])}, want, 0.11, "int8")


def test_the_error_that_is_judged_is_reported():
    want = np.array([3.0, 4.0], "float32")
    found = compare({"y": want + np.array([0.5, 0], "float32")}, want, 0.2, "int8")
    assert found.max_abs_diff == 0.5
    # Not the largest difference: sqrt(0.5² / 2) / sqrt((3² + 4²) / 2).
    assert found.error.value == pytest.approx(0.1)
    assert found.error.measure == "root mean square error relative to the output"
    found = compare({"y": np.array([3.0, 4.02])}, want, 0.01)
    assert found.max_abs_diff == pytest.approx(0.02)
    assert found.error.value == pytest.approx(0.005)
    assert found.error.measure == "difference (relative above 1)"


def test_share_of_different_integers():
    want = np.arange(10, dtype="int32")
    found = np.where(want == 3, 7, want)
    measured = compare({"y": found}, want, 0.1)
    assert measured.max_abs_diff == 4.0
    assert measured.error == (0.1, "share of different values")
    with pytest.raises(ExportError, match="is int32 and 10.0% of its values differ"):
        compare({"y": found}, want, 0.05)


def test_model_with_random_outputs(tmp_path):
    class Noisy(layers.Layer):
        def build(self, inputs_shape):
            self.seed_generator = keras.random.SeedGenerator(1)

        def call(self, inputs):
            return inputs + keras.random.normal((3, 5), seed=self.seed_generator)

    x = layers.Input(batch_shape=(3, 5))
    model = keras.Model(x, Noisy()(x))
    with pytest.raises(ExportError, match="uses random numbers at inference"):
        export(model, tmp_path / "m", format="saved_model")
    assert not (tmp_path / "m").exists()


def test_missing_output_and_wrong_shape():
    want = np.zeros((2, 3), "float32")
    with pytest.raises(
        ExportError, match=r"must return \['y'\]; the onnx .* returns \['z'\]"
    ):
        compare({"z": want}, want)
    with pytest.raises(
        ExportError, match=r"the shape \(3,\); in Keras it has \(2, 3\)"
    ):
        compare({"y": want[0]}, want)


@pytest.mark.shipped
@pytest.mark.parametrize("suffix", SUFFIXES.values())
def test_verify_an_existing_artefact(build, artefact, suffix):
    path, exported = artefact("causal_attention", suffix)
    report = verify(build("causal_attention"), path)
    assert report.format == exported.format
    assert report.inputs == exported.inputs
    assert report.operators == exported.operators
    assert report.bytes == exported.bytes
    assert report.max_abs_diff is not None and report.max_abs_diff < 1e-6


@pytest.mark.shipped
def test_verify_against_another_model(build, artefact):
    path, _ = artefact("mlp", ".onnx")
    with pytest.raises(ValueError, match=r"with the inputs \['images'\]"):
        verify(build("conv_net"), path)
    with pytest.raises(ExportError, match="differs from Keras by"):
        verify(build("exact_gelu"), path)


@pytest.mark.shipped
def test_verify_a_quantized_artefact(build, tmp_path, normal):
    path = tmp_path / "m.tflite"
    export(build("mlp"), path, quantization="float16")
    verify(build("mlp"), path, quantization="float16", sample_inputs=normal(3, 7))
    with pytest.raises(ExportError, match="`tolerance`=1e-07"):
        verify(build("mlp"), path, tolerance=1e-7)


@pytest.mark.shipped
def test_report_has_the_top1_agreement(build, tmp_path, normal):
    path, features = tmp_path / "m.tflite", normal(200, 7)
    report = export(build("mlp"), path, sample_inputs=features)
    assert report.top1_agreement == {"scores": 1.0}
    assert "100.0%" in str(report)
    # Not for random inputs.
    assert verify(build("mlp"), path).top1_agreement == {}
    # Another model of the same shape predicts other classes.
    found = verify(
        build("exact_gelu"), path, sample_inputs=features, tolerance=100.0
    ).top1_agreement["scores"]
    predicted = [
        keras.ops.convert_to_numpy(build(name)(features)).argmax(-1)
        for name in ("mlp", "exact_gelu")
    ]
    assert found == pytest.approx(np.mean(predicted[0] == predicted[1])) and found < 1


def test_report_as_table_and_json(build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # A long path would be folded.
    report = export(build("mlp"), "[m].onnx")
    text = str(report)
    for part in ("[m].onnx", "features: float32 (?, 7)", "max abs diff", "MatMul 2"):
        assert part in text
    assert f"{report.error:.3g}, difference (relative above 1)" in text
    report.save(tmp_path / "report.json")
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved == json.loads(report.to_json())
    assert saved["inputs"] == {"serve": {"features": "float32 (?, 7)"}}
    unverified = str(export(build("mlp"), "[m].onnx", verify=False))
    assert "verified" in unverified
    assert "tolerance" not in unverified


QUANTIZATIONS = (None, "float16", "int8_dynamic", "int8")


def table_and_product():
    """Of a table, int8_dynamic also makes a look-up of 8-bit numbers."""
    ids = layers.Input((5,), dtype="int32", name="token_ids")
    vectors = layers.Flatten()(layers.Embedding(211, 37)(ids))
    return keras.Model(ids, layers.Dense(41, name="scores")(vectors))


def half_precision():
    """Its weights are in float16 in Keras, not quantized."""
    features = layers.Input((41,), name="features")
    return keras.Model(features, layers.Dense(67, dtype="float16")(features))


def convolution_of_bytes():
    images = layers.Input((13, 17, 3), dtype="uint8", name="images")
    # Fewer than 1,024 weights would stay in float32.
    x = layers.Conv2D(41, 3)(keras.ops.cast(images, "float32"))
    return keras.Model(images, x)


@pytest.mark.shipped
@pytest.mark.each_value
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize(
    "case", [table_and_product, half_precision, convolution_of_bytes]
)
def test_verify_reads_the_quantization_from_the_artefact(case, quantization, tmp_path):
    keras.utils.set_random_seed(1)
    model, path = case(), tmp_path / "m.tflite"
    shape = (7, *model.input.shape[1:])
    random = np.random.default_rng(3)
    sample = random.integers(0, 200, shape).astype(model.input.dtype)
    if model.input.dtype == "float32":
        sample = random.normal(size=shape).astype("float32")
    exported = export(model, path, quantization=quantization, sample_inputs=sample)
    report = verify(model, path, sample_inputs=sample)
    assert report.quantization == quantization
    assert report.tolerance == exported.tolerance
    assert report.error == pytest.approx(exported.error)
    assert report.error_measure == exported.error_measure
    if quantization == "int8":
        match = "`sample_inputs` must be given for .*like those that it is calibrated"
        with pytest.raises(ValueError, match=match):
            verify(model, path)


def test_agreement_by_class_shows_a_rare_class_that_is_lost():
    """Of 100 pixels 4 are of class 1, and the artefact finds one of them."""
    want = np.zeros((5, 4, 5, 3), "float32")
    want[..., 0] = 1
    want[0, 0, :4] = [0, 2, 0]
    found = want.copy()
    found[0, 0, 1:4] = [5, 0, 0]
    images = np.zeros((5, 4, 5, 1), "float32")

    def runner(inputs, name):
        return {"logits": found[inputs["index"]]}

    class Keras:
        @staticmethod
        def reference(inputs):
            return {"logits": want[inputs["index"]]}

    # The last batch is padded with the first row.
    batches = [
        ("serve", {"images": images[:3], "index": np.array([0, 1, 2])}),
        ("serve", {"images": images[:3], "index": np.array([3, 4, 0])}),
    ]
    agreement = top1_agreement(runner, Keras, batches, 5)["logits"]  # pyright: ignore[reportArgumentType]
    assert agreement.is_map
    assert agreement.share == 0.97
    assert agreement.by_class == {0: 1.0, 1: 0.25}  # Class 2 is not predicted.


def test_report_of_the_agreement_by_class():
    report = ExportReport(
        *("m.tflite", "litert", "int8", 1, {}, {}, {}),
        max_abs_diff=0.174,
        error=0.0812,
        error_measure="root mean square error relative to the output",
        tolerance=0.2,
        top1_agreement={"logits": 0.98},
        class_agreement={"logits": {0: 0.99, 4: 0.78}},
    )
    rows = [line.strip("│ ").split("│") for line in str(report).splitlines()]
    table = {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}
    assert table["max abs diff"] == "0.174"
    assert table["error"] == "0.0812, root mean square error relative to the output"
    assert table["tolerance"] == "0.2"
    assert table["top-1 agreement"] == "logits 98.0%"
    found = table["agreement by class"]
    assert found == "logits 88.5% on average, 78.0% for class 4"


def random_inputs(model):
    [signature] = get_signatures(model)
    specs = {"serve": signature.inputs}
    return [inputs for _, inputs in samples.cases([signature], specs, None)]


def test_random_ids_are_within_their_embeddings():
    ids = layers.Input((None,), dtype="int32", name="token_ids")
    segments = layers.Input((None,), dtype="int32", name="segment_ids")
    both = layers.Embedding(97, 3)(ids) + layers.Embedding(2, 3)(segments)
    first, second = random_inputs(keras.Model([ids, segments], both))
    assert first["token_ids"].max() > 11
    assert set(np.unique(first["segment_ids"])) == {0, 1}
    assert first["token_ids"].shape == (2, 7)
    assert second["token_ids"].shape == (3, 5)


def test_random_ids_of_both_batches_are_within_their_embedding():
    for size in range(88, 97):
        ids = layers.Input((None,), dtype="int32", name="token_ids")
        model = keras.Model(ids, layers.Embedding(size, 3)(ids))
        largest = [inputs["token_ids"].max() for inputs in random_inputs(model)]
        assert 11 < max(largest) < size


def test_random_masks_hide_some_positions_but_not_all(build):
    for inputs in random_inputs(build("sliced_mask")):
        assert inputs["padding_mask"].any(axis=1).all()
        assert not inputs["padding_mask"].all()


@pytest.mark.parametrize("side, batches", [(37, [2, 3]), (401, [1, 2])])
def test_large_images_are_compared_in_smaller_batches(side, batches):
    images = layers.Input((side, side, 3), name="images")
    model = keras.Model(images, layers.GlobalAveragePooling2D()(images))
    assert [len(inputs["images"]) for inputs in random_inputs(model)] == batches


def test_sizes_grow_until_the_model_accepts_them():
    images = layers.Input((None, None, 3), name="images")
    model = keras.Model(images, layers.Conv2D(2, 41)(images))
    first, _ = random_inputs(model)
    assert first["images"].shape == (2, 101, 101, 3)


def both(want, quantization=None, tolerance=1e-4):
    """What is measured of an artefact that returns the same as the model."""
    return compare({"y": want}, want, tolerance, quantization)


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize(
    "want, reason",
    [
        (np.zeros((0, 3), "float32"), "it has no values"),
        (np.zeros((2, 0), "int32"), "it has no values"),
        (np.zeros((0,), "bool"), "it has no values"),
        (np.zeros((0,), object), "it has no values"),
        (np.full((2, 3), np.nan, "float32"), "all its values are NaN, in Keras and"),
    ],
)
def test_nothing_compared_is_not_an_error_of_zero(want, reason, quantization):
    measured = both(want, quantization)
    assert measured.error is None and measured.max_abs_diff is None
    assert measured.not_compared == {"serve": ["y"]}
    [note] = measured.notes
    assert note.startswith(f"output `y` of `serve` was not compared: {reason}")


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_values_that_are_nan_in_both_are_counted(quantization):
    want = np.array([np.nan, 2.0, np.nan, -np.inf], "float32")
    measured = both(want, quantization)
    assert measured.error is not None and measured.error.value == 0
    assert measured.not_compared == {}
    assert measured.notes == (
        "output `y` of `serve`: 2 of 4 values were not compared, because they are NaN "
        "in Keras and in the artefact",
    )
    # They do not hide others.
    found = np.array([np.nan, 2.0, np.nan, 5.0], "float32")
    with pytest.raises(ExportError, match="differs from Keras by inf"):
        compare({"y": found}, want, 0.2, quantization)
    # An output that is compared once, and once is not, was compared.
    with pytest.raises(ExportError, match="differs from Keras by inf"):
        compare({"y": found * np.nan}, want, 0.2, quantization)


def test_masked_integers_booleans_and_strings_are_compared():
    for want in (np.full(3, -1e9, "float32"), np.full(3, -np.inf, "float32")):
        measured = both(want)
        assert measured.error is not None and not measured.not_compared
    words = np.array([b"a", b"bc"], object)
    assert both(words).error == (0.0, "share of different values")
    other = np.array([b"a", b"b"], object)
    assert compare({"y": other}, words, 0.5).max_abs_diff == 1.0
    truths = np.array([True, False])
    assert compare({"y": ~truths[::-1][[0, 0]]}, truths, 0.5).max_abs_diff == 1.0
    with pytest.raises(ExportError, match="is object and 50.0% of its values differ"):
        compare({"y": other}, words, 0.1)


def test_complex_outputs_are_compared_as_numbers():
    want = np.array([1 + 2j, -3j], "complex64")
    measured = compare({"y": want + np.complex64(5e-5j)}, want)
    assert measured.max_abs_diff == pytest.approx(5e-5, rel=0.01)
    with pytest.raises(ExportError, match=r"differs from Keras by 0\.00"):
        compare({"y": want + np.complex64(5e-3j)}, want)


@pytest.mark.parametrize("tolerance", [float("nan"), float("inf"), -1e-3, "0.1"])
def test_a_tolerance_that_compares_nothing(tolerance, build, tmp_path):
    with pytest.raises(ValueError, match="`tolerance` must be a number of at least 0"):
        export(build("mlp"), tmp_path / "m.onnx", tolerance=tolerance)
    assert list(tmp_path.iterdir()) == []


class NotANumber(layers.Layer):
    """Returns NaN for the second of its two outputs."""

    def call(self, x):
        return x * 2.0, keras.ops.log(-keras.ops.abs(x) - 1.0)


@pytest.mark.shipped
def test_reports_say_what_was_not_compared(tmp_path, build):
    x = layers.Input((5,), name="x")
    doubled, nan = NotANumber()(x)
    model = keras.Model(x, {"nan": nan, "doubled": doubled})
    path = tmp_path / "m.onnx"
    report = export(model, path, sample_inputs=np.ones((3, 5), "float32"))
    assert report.not_compared == {"serve": ["nan"]}
    assert report.error == 0 and report.top1_agreement == {"doubled": 1.0}
    assert "not compared" in str(report) and "serve: nan" in str(report)
    alone = keras.Model(x, nan)
    report = export(alone, path)
    assert report.error is report.max_abs_diff is report.tolerance is None
    text = str(report)
    assert "no, not compared with Keras" in text and "all its values are NaN" in text
    assert "error" not in text and "tolerance" not in text
    assert json.loads(report.to_json())["error"] is None
    unverified = export(model, path, verify=False)
    assert unverified.not_compared == {"serve": ["nan", "doubled"]}
    assert "no, not compared with Keras" in str(unverified)


@pytest.mark.shipped
def test_a_signature_of_another_model_is_not_compared(tmp_path, build):
    model, module = build("mlp"), tf.Module()
    module.model = model
    spec = tf.TensorSpec((None, 7), name="features")
    serve = tf.function(lambda features: {"scores": model(features)})
    twice = tf.function(lambda features: {"twice": 2.0 * features})
    signatures = {
        name: function.get_concrete_function(features=spec)
        for name, function in {"serve": serve, "twice": twice}.items()
    }
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=signatures)
    report = verify(model, tmp_path / "m")
    assert report.error is not None
    assert report.not_compared == {"twice": ["twice"]}
    assert "signature `twice` was not compared" in report.notes[0]
