"""ONNX: operators that tf2onnx lacks, names, unknown sizes, and large weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from keras_attn.export import ExportError, export, load_runner
from keras_attn.export.formats import onnx, onnx_rewrites, onnx_weights
from keras_attn.export.runtimes import onnx as onnx_runtime

pytestmark = pytest.mark.shipped


@pytest.fixture
def lifted(monkeypatch):
    """All weights are too large for tf2onnx."""
    monkeypatch.setattr(onnx_weights, "_SMALLEST_LIFTED", 1)


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: ops.gelu(x, approximate=False), "Erf"),
        (ops.log1p, "Log"),
        (ops.expm1, "Exp"),
        (lambda x: ops.gelu(x, approximate=True), "Tanh"),
    ],
)
def test_rewritten_operators(tmp_path, function, operator):
    x = layers.Input((None, 5), name="x")
    report = export(keras.Model(x, function(ops.abs(x))), tmp_path / "m.onnx")
    assert report.operators[operator] == 1
    assert report.inputs == {"serve": {"x": "float32 (?, ?, 5)"}}


def test_consecutive_reshapes_are_not_fused(tmp_path):
    """A projection of flattened rows, then maxout: tf2onnx would fuse the reshapes."""

    class Project(layers.Layer):
        def call(self, x):
            batch, length, _ = ops.shape(x)
            rows = ops.matmul(ops.reshape(x, (-1, 10)), np.ones((10, 6), "float32"))
            return ops.reshape(rows, (batch, length, 6))

    class Maxout(layers.Layer):
        def call(self, x):
            batch, length, _ = ops.shape(x)
            return ops.max(ops.reshape(x, (batch, length, 3, 2)), axis=-1)

    x = layers.Input((None, 10), name="x")
    report = export(keras.Model(x, Maxout()(Project()(x))), tmp_path / "m.onnx")
    assert report.inputs == {"serve": {"x": "float32 (?, ?, 10)"}}


@pytest.mark.parametrize("position", [0, 4, 9, 10, 100])
def test_slice_update_is_clamped_as_in_xla(artefact, normal, position):
    path, _ = artefact("cache", ".onnx")
    inputs = {
        "state": normal(3, 11, 5),
        "position": np.full(3, position, np.int32),
        "update": normal(3, 2, 5),
    }
    [found] = load_runner(path)(inputs).values()
    want = inputs["state"].copy()
    start = min(position, 9)
    want[:, start : start + 2] = inputs["update"]
    np.testing.assert_array_equal(found, want)


def test_recurrent_layers_with_padding_take_any_size(build, tmp_path, lifted):
    # Also with lifted weights, which a loop reads.
    path = tmp_path / "m.onnx"
    report = export(build("masked_rnn"), path)
    assert report.inputs == {"serve": {"token_ids": "int32 (?, ?)"}}
    runner = load_runner(path)
    for ids in ([[5, 7, 0, 0], [9, 0, 0, 0], [2, 3, 5, 7]], [[1]]):
        [found] = runner({"token_ids": ids}).values()
        want = build("masked_rnn")(np.array(ids))
        np.testing.assert_allclose(found, want, atol=1e-6)


def test_axes_have_names(artefact):
    package = pytest.importorskip("onnx")
    path, _ = artefact("causal_attention", ".onnx")
    [value] = package.load(path).graph.input
    sizes = value.type.tensor_type.shape.dim
    assert [size.dim_param or size.dim_value for size in sizes] == ["batch", "x_1", 5]


class Tied(layers.Layer):
    """An embedding whose transpose is the output layer, as in language models."""

    def build(self, shape):
        self.table = self.add_weight(shape=(601, 59), name="table")

    def call(self, ids):
        return ops.matmul(ops.take(self.table, ids, axis=0), ops.transpose(self.table))


def tied():
    ids = layers.Input((None,), dtype="int32", name="token_ids")
    return keras.Model(ids, Tied(name="tied")(ids))


def test_tf2onnx_does_not_see_large_weights(tmp_path, monkeypatch):
    """It would copy each many times: BERT-base took 20 GB of memory."""
    convert = pytest.importorskip("tf2onnx.convert")
    package = pytest.importorskip("onnx")
    common, sizes = convert._convert_common, []

    def spy(frozen_graph, *args, **kwargs):
        sizes.append(frozen_graph.ByteSize())
        return common(frozen_graph, *args, **kwargs)

    monkeypatch.setattr(convert, "_convert_common", spy)
    model = tied()
    report = export(model, tmp_path / "m.onnx")
    weights = 4 * model.count_params()
    assert sizes and max(sizes) < weights / 4
    # One file, without a transposed copy.
    assert (tmp_path / "m.onnx").is_file() and report.bytes < 1.1 * weights
    [tensor] = [
        tensor
        for tensor in package.load(tmp_path / "m.onnx").graph.initializer
        if list(tensor.dims) == [601, 59]
    ]
    np.testing.assert_array_equal(
        package.numpy_helper.to_array(tensor), model.weights[0].numpy()
    )


@pytest.mark.parametrize(
    "name",
    [
        *("conv_net", "grouped_conv", "causal_attention", "pure_float16"),
        *("pure_bfloat16", "nested", "dictionaries", "constant"),
    ],
)
def test_all_weights_can_be_lifted(build, tmp_path, lifted, name):
    report = export(build(name), tmp_path / "m.onnx")
    assert report.max_abs_diff is not None


class Compiled(layers.Layer):
    """Computes in its own `tf.function`, which caches its traces."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")

    @tf.function(autograph=False)
    def product(self, x):
        return ops.matmul(x, self.kernel)

    def call(self, x):
        return self.product(x)


def test_layer_with_its_own_tf_function(tmp_path, lifted):
    x = layers.Input((7,), name="x")
    model = keras.Model(x, Compiled(name="compiled")(x))
    export(model, tmp_path / "m.onnx")
    # Its cached traces hold no symbol of the converted graph.
    assert model(np.ones((5, 7), "float32")).shape == (5, 3)
    assert load_runner(tmp_path / "m.onnx")({"x": np.ones((5, 7))})


@pytest.mark.parametrize("name", ["pair", "masked_rnn"])
def test_needed_nodes_equal_those_of_tf2onnx(build, tmp_path, monkeypatch, name):
    from tf2onnx.graph import Graph

    original, ours, sizes = (
        Graph.extract_sub_graph_nodes,
        onnx_rewrites.needed_nodes,
        [],
    )

    def both(graph, outputs_name, input_checker=None, remove_unused_inputs=True):
        options = (outputs_name, input_checker, remove_unused_inputs)
        found = ours(graph, *options)
        assert len(found) == len(set(found))
        assert set(found) == set(original(graph, *options))
        sizes.append(len(found))
        return found

    monkeypatch.setattr(onnx_rewrites, "needed_nodes", both)
    export(build(name), tmp_path / "m.onnx")
    assert max(sizes) > 10


def test_failed_optimizer_pass_is_skipped(build, tmp_path, monkeypatch):
    optimizer = pytest.importorskip("tf2onnx.optimizer.identity_optimizer")

    def fail(self, graph):
        raise KeyError("no such tensor")

    monkeypatch.setattr(optimizer.IdentityOptimizer, "_optimize", fail)
    report = export(build("mlp"), tmp_path / "m.onnx")
    assert report.max_abs_diff is not None and report.operators["Identity"]


@pytest.fixture
def large(lifted, monkeypatch):
    """Every model is too large for one message."""
    monkeypatch.setattr(onnx, "_LARGEST_MESSAGE", 1)


def test_large_pair_shares_its_weights(build, tmp_path, large):
    report = export(build("pair"), tmp_path / "m.onnx")
    assert report.max_abs_diff is not None and report.max_abs_diff < 1e-6
    weights = (tmp_path / "m.onnx" / "weights.data").stat().st_size
    # Seven tensors, each at the beginning of a page; the last page is not full.
    assert weights < 7 * 4096


def test_every_tensor_of_a_file_of_weights_begins_a_page(tmp_path, large):
    """Protobuf is limited to 2 GB (keras-hub#2340), so a large model is a folder."""
    package = pytest.importorskip("onnx")
    features = layers.Input((61,), name="features")
    hidden = layers.Dense(59, activation="gelu")(features)
    model = keras.Model(features, layers.Dense(3, name="scores")(hidden))
    path = tmp_path / "m.onnx"
    report = export(model, path)
    assert {file.name for file in path.iterdir()} == {"serve.onnx", "weights.data"}
    assert report.inputs == {"serve": {"features": "float32 (?, 61)"}}
    assert (path / "serve.onnx").stat().st_size < 4 * 61 * 59
    assert list(load_runner(path).signatures["serve"].inputs) == ["features"]
    graph = package.load(path / "serve.onnx", load_external_data=False).graph
    offsets = [
        int(field.value)
        for tensor in graph.initializer
        for field in tensor.external_data
        if field.key == "offset"
    ]
    assert len(set(offsets)) == len(offsets) > 1
    assert not any(offset % 4096 for offset in offsets)


def test_sessions_of_a_large_pair_share_its_weights_in_memory(
    build, tmp_path, monkeypatch
):
    """Packed, one copy per session, the weights of GPT-2 XL take 12 GB more."""
    path = tmp_path / "m.onnx"
    export(build("pair"), path)
    packed = load_runner(path)
    monkeypatch.setattr(onnx_runtime, "_LARGEST_PACKED", 1)
    shared = load_runner(path)
    for session in shared._engine._sessions.values():
        options = session.get_session_options()
        assert options.get_session_config_entry("session.disable_prepacking") == "1"
    inputs = {
        name: np.ones([2 if size is None else size for size in info.shape], info.dtype)
        for name, info in packed.signatures["prefill"].inputs.items()
    }
    for name, value in packed.prefill(inputs).items():
        np.testing.assert_allclose(shared.prefill(inputs)[name], value, atol=1e-6)


def test_failure_of_the_checker(build, tmp_path, monkeypatch):
    package = pytest.importorskip("onnx")

    def refuse(path):
        raise package.checker.ValidationError("no such graph")

    monkeypatch.setattr(package.checker, "check_model", refuse)
    with pytest.raises(ExportError, match="checker refused m.onnx: no such graph"):
        export(build("mlp"), tmp_path / "m.onnx")


def test_failure_of_tf2onnx(build, tmp_path, monkeypatch):
    package = pytest.importorskip("tf2onnx")

    def fail(*args, **kwargs):
        raise KeyError("no such tensor")

    monkeypatch.setattr(package.convert, "from_function", fail)
    with pytest.raises(ExportError, match="tf2onnx could not convert `serve`"):
        export(build("mlp"), tmp_path / "m.onnx")
