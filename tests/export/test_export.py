"""Every kind of model in every format, with Keras' outputs in the stock runtime."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from export_formats import SUFFIXES
from keras import layers, ops

from keras_attn.export import ExportError, export, load_runner

pytestmark = pytest.mark.shipped
# Names and shapes of the artefact's inputs and outputs; `?` is any size.
MODELS = {
    "conv_net": ({"images": "float32 (?, 13, 17, 3)"}, {"scores": "float32 (?, 2)"}),
    "causal_attention": (
        {"x": "float32 (?, ?, 5)"},
        {"attention": "float32 (?, ?, 5)"},
    ),
    "cache": (
        {
            "state": "float32 (?, 11, 5)",
            "position": "int32 (?)",
            "update": "float32 (?, 2, 5)",
        },
        {"cache": "float32 (?, 11, 5)"},
    ),
    "dictionaries": (
        {"zeta": "int32 (?, 3)", "alpha": "float32 (?, 5)"},
        {
            "best": "int32 (?)",
            "first": "float32 (?, 2)",
            "same": "float32 (?, 5)",
            "second": "float32 (?, 3, 2)",
        },
    ),
}


@pytest.mark.parametrize("format", SUFFIXES)
@pytest.mark.parametrize("name", MODELS)
def test_unknown_sizes_stay_open(artefact, name, format):
    path, report = artefact(name, SUFFIXES[format])
    inputs, outputs = MODELS[name]
    assert report.format == format
    assert report.inputs == {"serve": inputs}
    assert report.outputs == {"serve": outputs}
    assert report.max_abs_diff is not None and report.max_abs_diff < 1e-5
    assert report.bytes > 0
    assert report.operators
    assert report.latency_ms["serve"] > 0
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("format", SUFFIXES)
@pytest.mark.parametrize(
    "name",
    [
        *("mlp", "exact_gelu", "sequential", "grouped_conv", "mixed_float16"),
        *("constant", "sliced_mask", "nested", "pure_bfloat16"),
    ],
)
def test_model_agrees(artefact, name, format):
    _, report = artefact(name, SUFFIXES[format])
    assert report.max_abs_diff is not None and report.max_abs_diff < 1e-5
    assert "?" in str(report.inputs)


def test_recurrent_layers_stay_dynamic(build, tmp_path):
    report = export(build("masked_rnn"), tmp_path / "rnn")
    assert report.inputs == {"serve": {"token_ids": "int32 (?, ?)"}}
    assert report.notes == ()


@pytest.mark.parametrize("format", SUFFIXES)
def test_sizes_can_be_fixed(build, tmp_path, format):
    report = export(
        build("causal_attention"),
        tmp_path / f"fixed{SUFFIXES[format]}",
        batch_size=2,
        sequence_length=11,
    )
    assert report.inputs == {"serve": {"x": "float32 (2, 11, 5)"}}
    assert report.outputs == {"serve": {"attention": "float32 (2, 11, 5)"}}


def test_sequence_length_by_input_name(tmp_path):
    source = layers.Input((None, 3), name="source")
    target = layers.Input((None, 3), name="target")
    model = keras.Model([source, target], layers.Attention()([target, source]))
    report = export(model, tmp_path / "m", sequence_length={"source": 7, "target": 2})
    assert report.inputs["serve"] == {
        "source": "float32 (?, 7, 3)",
        "target": "float32 (?, 2, 3)",
    }


@pytest.mark.parametrize("format", SUFFIXES)
def test_subclassed_model_needs_sample_inputs(tmp_path, normal, build, format):
    path = tmp_path / f"artefact{SUFFIXES[format]}"
    report = export(build("Subclassed"), path, sample_inputs=normal(3, 5))
    assert report.inputs == {"serve": {"inputs": "float32 (?, 5)"}}
    assert report.outputs == {"serve": {"output_0": "float32 (?, 3)"}}


def test_stock_tools_find_serving_default(build, artefact, normal):
    path, _ = artefact("mlp", "")
    loaded = tf.saved_model.load(str(path))
    assert set(loaded.signatures) == {"serve", "serving_default"}
    x = normal(5, 7)
    found = loaded.signatures["serving_default"](features=x)["scores"]
    np.testing.assert_allclose(found, build("mlp")(x), atol=1e-6)


def test_dtypes_of_the_model_are_restored(build, tmp_path):
    model = build("mixed_float16")
    export(model, tmp_path / "m.onnx")
    assert model.get_layer("scores").dtype_policy.name == "mixed_float16"
    assert model.inputs[0].dtype == "float16"
    assert model(np.ones((1, 7), "float16")).dtype == tf.float16
    assert "computes in float32" in " ".join(export(model, tmp_path / "m").notes)


def test_artefact_has_no_cudnn_operators(build, tmp_path, monkeypatch):
    """On a GPU machine Keras would trace `CudnnRNNV3` (keras#21799)."""
    backend = importlib.import_module("keras.src.backend.tensorflow.rnn")
    monkeypatch.setattr(backend, "_is_gpu_available", lambda: True)
    model = build("masked_rnn")
    spec = tf.TensorSpec((None, None), "int32")
    graph = tf.function(lambda x: model(x)).get_concrete_function(spec).graph
    assert [op for op in graph.get_operations() if "Cudnn" in op.type]
    report = export(model, tmp_path / "m", verify=False)
    assert not [name for name in report.operators if "Cudnn" in name]
    assert model.get_layer("last").use_cudnn == "auto"
    assert model.get_layer("both").forward_layer.use_cudnn == "auto"


def test_model_compiled_with_jit_compile(tmp_path):
    features = layers.Input((7,), name="features")
    model = keras.Model(features, layers.Dense(3, activation="gelu")(features))
    model.compile(optimizer="adam", loss="mse", jit_compile=True)
    model.fit(np.ones((2, 7)), np.ones((2, 3)), verbose=0)
    for suffix in SUFFIXES.values():
        report = export(model, tmp_path / f"m{suffix}")
        assert report.max_abs_diff is not None and report.max_abs_diff < 1e-5


def test_outputs_of_the_same_name_are_numbered(tmp_path, normal):
    features = layers.Input((None, 3), name="features")
    outputs = layers.GRU(5, return_state=True, name="gru")(features)
    path = tmp_path / "m.onnx"
    report = export(keras.Model(features, outputs), path)
    assert list(report.outputs["serve"]) == ["gru", "gru_1"]
    found = load_runner(path)({"features": normal(2, 7, 3)})
    np.testing.assert_allclose(found["gru"], found["gru_1"])


def test_lookup_tables_are_saved(tmp_path):
    words = layers.Input((1,), dtype="string", name="words")
    lookup = layers.StringLookup(vocabulary=["attend", "align"], name="ids")
    model = keras.Model(words, ops.cast(lookup(words), "int32"))
    report = export(model, tmp_path / "m", verify=False)
    assert report.inputs == {"serve": {"words": "string (?, 1)"}}
    assert report.max_abs_diff is None
    serve = tf.saved_model.load(str(tmp_path / "m")).signatures["serve"]
    [ids] = serve(words=tf.constant([["align"], ["?"]])).values()
    assert ids.numpy().tolist() == [[2], [0]]


def test_sample_inputs_are_used(build, tmp_path, normal):
    x = normal(3, 7)
    x[1] = np.nan
    with pytest.raises(ValueError, match=r"features.* must be finite .*\(1, 0\)"):
        export(build("mlp"), tmp_path / "m.onnx", sample_inputs={"features": x})
    assert list(tmp_path.iterdir()) == []


def test_existing_artefact_is_replaced(build, tmp_path):
    for suffix in SUFFIXES.values():
        path = tmp_path / f"m{suffix}"
        export(build("conv_net"), path)
        export(build("mlp"), path)
        assert list(load_runner(path).signatures["serve"].inputs) == ["features"]


def test_failed_verification_keeps_the_old_artefact(build, tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    export(build("conv_net"), path)
    before = path.read_bytes()
    with pytest.raises(ExportError, match=r"output `scores` of `serve` differs"):
        export(build("exact_gelu"), path, tolerance=1e-12)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.onnx"]
