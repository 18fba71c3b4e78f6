"""Error messages for wrong arguments."""

import builtins
from typing import Any

import keras
import model_cases
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_attn.export import export, load_runner, verify


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"quantization": "int4"}, "`quantization` must be None or one of .*'int4'"),
        ({"quantization": "int8"}, "`sample_inputs` must be given for `quantization="),
        ({"batch_size": 0}, "`batch_size` must be a positive .* batch_size=0"),
        ({"batch_size": True}, "Received: batch_size=True"),
        ({"sequence_length": 2.5}, "`sequence_length` must be .* sequence_length=2.5"),
        ({"sequence_length": {"x": -1}}, "by input name. Received: x=-1"),
        ({"sequence_length": {"y": 3}}, r"keys that are not inputs: \['y'\]; the inp"),
        ({"sample_inputs": {"y": [[1.0]]}}, r"the keys \['features'\]. Rec.* \['y'\]"),
        (
            {"sample_inputs": [np.ones((1, 7)), np.ones((1, 7))]},
            "must hold 1 arrays, .* Received: 2 arrays",
        ),
        ({"sample_inputs": [[1.0, 2.0]]}, r"\(None, 7\), where None is .*=\(1, 2\)"),
    ],
)
def test_wrong_options(build, tmp_path, options, match):
    with pytest.raises(ValueError, match=match):
        export(build("mlp"), tmp_path / "m.tflite", **options)
    assert list(tmp_path.iterdir()) == []


def test_wrong_models_and_formats(build, tmp_path):
    message = "`quantization` is only for .*litert.*tion='float16', format='onnx'"
    with pytest.raises(ValueError, match=message):
        export(build("mlp"), tmp_path / "m.onnx", quantization="float16")
    with pytest.raises(TypeError, match="`model` must be a `keras.Model` or a `keras"):
        export(layers.Dense(3), tmp_path / "m")
    with pytest.raises(ValueError, match="`sample_inputs` is needed: `model` does not"):
        export(build("Subclassed"), tmp_path / "m")


def test_a_call_of_several_arguments(tmp_path):
    class Sum(keras.Model):
        def call(self, first, second, training=False):
            return first + second

    model = Sum()
    with pytest.raises(ValueError, match=r"one argument.*Received: call\(first, sec"):
        export(model, tmp_path / "m", sample_inputs=[np.ones((1, 2))] * 2)
    inputs = [layers.Input((2,), name=name) for name in ("first", "second")]
    around = keras.Model(inputs, model(*inputs))
    report = export(around, tmp_path / "m.onnx")
    assert list(report.inputs["serve"]) == ["first", "second"]


def test_a_sequential_takes_other_batches_than_its_first(tmp_path):
    """`fit` of 64 rows builds it on (32, 5), and Keras then takes any number."""
    model = keras.Sequential([layers.Dense(3)])
    model(np.ones((32, 5), "float32"))
    report = export(model, tmp_path / "m.onnx")
    (shape,) = report.inputs["serve"].values()
    assert shape == "float32 (?, 5)"


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (np.full((2, 3), 2**33), "be int32, .* Received: 8589934592 in .* int64"),
        (np.array([[1.0, 1.5, 2.0]]), "be int32, .* Received: 1.5 in .* float64"),
        ([["a", "b", "c"]], "an array of int32. Received: a value of type list"),
        ([[1, 2, 3], [1]], "an array of int32. Received: a value of type list"),
        (tf.data.Dataset.range(3), "an array of int32. Received: .* _RangeDataset"),
    ],
)
def test_a_sample_that_an_input_cannot_hold(sample, message, tmp_path):
    """It was cut to the dtype, so that something else was compared."""
    numbers = layers.Input((3,), dtype="int32", name="numbers")
    model = keras.Model(numbers, layers.Rescaling(2)(numbers))
    with pytest.raises(ValueError, match=rf"`sample_inputs\['numbers'\]` .*{message}"):
        export(model, tmp_path / "m", sample_inputs=sample)


def test_model_that_fails_on_random_inputs(tmp_path):
    ids = layers.Input((3,), dtype="int32", name="ids")
    model = keras.Model(ids, layers.Embedding(1, 2)(ids))
    with pytest.raises(ValueError, match="`sample_inputs` is needed: the model fails"):
        export(model, tmp_path / "m")
    images = layers.Input((None, None, 3), name="images")
    model = keras.Model(images, layers.Conv2D(1, 999)(images))
    with pytest.raises(ValueError, match="its shapes, of up to 640 pixels a side"):
        export(model, tmp_path / "m")


def test_sample_of_another_length_than_sequence_length(build, tmp_path, normal):
    match = (
        r"does not fit the artefact, which takes \(None, 7, 5\). Received: shape=\(3,"
    )
    with pytest.raises(ValueError, match=match):
        export(
            build("causal_attention"),
            tmp_path / "m",
            sequence_length=7,
            sample_inputs=normal(3, 11, 5),
        )


def test_max_length_and_num_beams_are_for_generative_models(build, tmp_path):
    path = tmp_path / "m"
    options: dict[str, Any]
    for options, message in [
        ({"max_length": 7}, "`max_length` is only for generative models.*length=7"),
        ({"num_beams": 2, "batch_size": 1}, "`num_beams` is only for gen.*num_beams=2"),
        ({"num_beams": 2}, "pass `batch_size` too. Received: num_beams=2, batch_size="),
        ({"num_beams": 0}, "`num_beams` must be a positive integer.*num_beams=0"),
    ]:
        with pytest.raises(ValueError, match=message):
            export(build("mlp"), path, **options)
    with pytest.raises(ValueError, match="made: .* max_length=7, pair.max_length"):
        export(build("pair"), path, max_length=7)

    class Generative(keras.Model):
        def incremental(self):
            return build("pair")

    features = layers.Input((7,))
    model = Generative(features, layers.Dense(3)(features))
    with pytest.raises(ValueError, match="models whose `incremental.*max_length=7"):
        export(model, path, max_length=7)
    gpt = model_cases.build("gpt2_small", max_sequence_length=5)
    with pytest.raises(ValueError, match="`max_length` must be at most 5, the posit"):
        export(gpt, path, max_length=7)
    with pytest.raises(
        ValueError, match="`max_length` must be a positive.*max_length=0"
    ):
        export(gpt, path, max_length=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [export, verify])
def test_other_backends_are_refused(build, tmp_path, monkeypatch, call):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="set KERAS_BACKEND=tensorflow .*='jax'"):
        call(build("mlp"), tmp_path / "m")


@pytest.mark.parametrize(
    ("package", "suffix"),
    [("tf2onnx", ".onnx"), ("onnxruntime", ".onnx"), ("ai_edge_litert", ".tflite")],
)
def test_missing_extra(build, artefact, tmp_path, monkeypatch, package, suffix):
    path, _ = artefact("mlp", suffix)
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {package!r}", name=package)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    match = rf'`{package}`, which is not installed: pip install "keras-attn\[export\]"'
    with pytest.raises(ImportError, match=match):
        export(build("mlp"), tmp_path / path.name)
    if package != "tf2onnx":
        with pytest.raises(ImportError, match=match):
            load_runner(path)
