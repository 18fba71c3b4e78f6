"""LiteRT: only built-in operators, and as few fixed shapes as possible."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from keras_attn.export import ExportError, export, load_runner
from keras_attn.export.formats import litert, litert_rewrites
from keras_attn.export.runtimes import litert as litert_runtime

pytestmark = pytest.mark.shipped


def test_recurrent_layers_get_a_batch_of_one(build, tmp_path):
    report = export(build("masked_rnn"), tmp_path / "m.tflite")
    assert report.inputs == {"serve": {"token_ids": "int32 (1, ?)"}}
    [note] = report.notes
    assert note.startswith("`serve` takes a batch of 1: LiteRT has no built-in operat")
    assert "`TensorListReserve`" in note
    assert "`serve` takes a batch of 1" in str(report)


def test_recurrent_layers_take_the_requested_batch(build, tmp_path):
    path = tmp_path / "m.tflite"
    report = export(build("masked_rnn"), path, batch_size=3)
    assert report.inputs == {"serve": {"token_ids": "int32 (3, ?)"}}
    assert report.notes == ()
    ids = np.array([[5, 7, 0, 0], [9, 0, 0, 0], [2, 3, 5, 7]], np.int32)
    [found] = load_runner(path)({"token_ids": ids}).values()
    np.testing.assert_allclose(found, build("masked_rnn")(ids), atol=1e-6)


def test_sliced_mask_stays_dynamic(build, artefact, normal):
    """`mask[:, None, None, :]` would be a Flex operator (keras-hub#2608)."""
    path, report = artefact("sliced_mask", ".tflite")
    assert report.notes == ()
    runner = load_runner(path)
    for batch, length in ((1, 2), (3, 11)):
        x, mask = normal(batch, length, 5), np.arange(length) < np.ones((batch, 1))
        [found] = runner({"x": x, "padding_mask": mask}).values()
        np.testing.assert_allclose(found, build("sliced_mask")([x, mask]), atol=1e-5)


def test_lengths_come_from_sample_inputs(build, tmp_path, normal):
    report = export(
        build("rolled"), tmp_path / "m.tflite", sample_inputs=normal(3, 7, 5)
    )
    assert report.inputs == {"serve": {"x": "float32 (1, 7, 5)"}}
    assert "`serve` takes a batch of 1: LiteRT" in report.notes[0]
    assert "`serve` takes the lengths of `sample_inputs`: LiteRT" in report.notes[1]


def test_error_asks_for_lengths_that_must_be_known(build, tmp_path):
    match = (
        "LiteRT has no built-in operator for `Roll` at these shapes, and stock "
        "interpreters cannot load Flex operators. Sizes of `x` are unknown: pass "
        "`sequence_length`, or `sample_inputs` of the lengths to ship"
    )
    with pytest.raises(ExportError, match=match):
        export(build("rolled"), tmp_path / "m.tflite")
    images = keras.Input((None, None, 3), name="images")
    model = keras.Model(images, keras.ops.roll(images, 1, axis=1))
    match = (
        "Rows and columns of `images` are unknown: pass `sample_inputs`, images of the "
        "size to ship, or, if they are square, `sequence_length`"
    )
    with pytest.raises(ExportError, match=match):
        export(model, tmp_path / "m.tflite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("affinity", [True, False])
def test_a_runner_uses_every_cpu_of_the_process(affinity, artefact, monkeypatch):
    package = pytest.importorskip("ai_edge_litert.interpreter")
    path, _ = artefact("mlp", ".tflite")
    original, threads = package.Interpreter, []

    def spy(*args, **options):
        threads.append(options["num_threads"])
        return original(*args, **options)

    monkeypatch.setattr(package, "Interpreter", spy)
    monkeypatch.setattr(litert_runtime.os, "cpu_count", lambda: 5)
    if affinity:
        monkeypatch.setattr(
            litert_runtime.os, "sched_getaffinity", lambda _: {2, 3, 5}, raising=False
        )
    else:
        monkeypatch.delattr(litert_runtime.os, "sched_getaffinity", raising=False)
    load_runner(path)
    assert threads == [3 if affinity else 5]


def test_artefact_has_only_built_in_operators(artefact):
    _, report = artefact("mlp", ".tflite")
    assert report.operators == {"FULLY_CONNECTED": 2}


def test_new_axes_become_expand_dims(tmp_path):
    def take(x):
        return x[:, None, :, None], x[None, 1:], x[:, 0], x[..., None]

    spec = tf.TensorSpec((None, None), name="x")
    function = tf.function(take).get_concrete_function(spec)
    root = tf.Module()
    root.take = tf.function(take, input_signature=[spec])
    tf.saved_model.save(root, str(tmp_path / "n"))
    litert_rewrites.expand_new_axes(tmp_path / "n")
    loaded = tf.saved_model.load(str(tmp_path / "n")).take
    x = np.arange(35, dtype="float32").reshape(5, 7)
    for found, want in zip(loaded(x), function(x), strict=True):
        np.testing.assert_array_equal(found, want)
    kinds = [
        node.op
        for body in loaded.get_concrete_function(spec)
        .graph.as_graph_def()
        .library.function
        for node in body.node_def
    ]
    # Only the first of the four slices does nothing but add axes.
    assert kinds.count("ExpandDims") == 2
    assert kinds.count("StridedSlice") == 3


@pytest.mark.parametrize(
    ("quantization", "ratio"), [("float16", 0.6), ("int8_dynamic", 0.4), ("int8", 0.4)]
)
def test_quantization_shrinks_and_agrees(tmp_path, normal, quantization, ratio):
    keras.utils.set_random_seed(1)
    features = layers.Input((61,), name="features")
    hidden = layers.Dense(211, activation="relu")(features)
    model = keras.Model(features, layers.Dense(7)(hidden))
    path = tmp_path / "m.tflite"
    report = export(
        model, path, quantization=quantization, sample_inputs=normal(31, 61)
    )
    assert report.quantization == quantization
    assert report.bytes < ratio * 4 * model.count_params()
    assert report.max_abs_diff
    assert report.inputs == {"serve": {"features": "float32 (?, 61)"}}
    x = normal(3, 61)
    [found] = load_runner(path)({"features": x}).values()
    np.testing.assert_allclose(found, model(x), atol=0.1)


def test_int8_attention_with_a_mask(build, tmp_path, normal):
    """Masked scores would take all 256 levels (tensorflow#61796)."""
    report = export(
        build("causal_attention"),
        tmp_path / "m.tflite",
        quantization="int8",
        sample_inputs=normal(5, 7, 5),
        tolerance=0.1,
    )
    assert report.operators["QUANTIZE"] > 1


def test_int8_unrolls_recurrent_layers(build, tmp_path):
    ids = np.array([[5, 7, 2], [9, 3, 3]])
    report = export(
        build("pair"),
        tmp_path / "m.tflite",
        quantization="int8",
        sample_inputs={"token_ids": ids},
        # The logits of untrained weights are small differences of large numbers.
        tolerance=0.5,
    )
    assert "WHILE" not in report.operators
    assert report.inputs["prefill"] == {"token_ids": "int32 (1, 3)"}
    assert report.inputs["step"]["state"] == "float32 (?, 3)"
    assert "cannot calibrate loops" in report.notes[-1]
    assert build("pair").prefill.get_layer("recurrent").unroll is False


def test_int8_refuses_a_loop_that_cannot_be_unrolled(tmp_path, normal):
    class Loop(layers.Layer):
        def call(self, x):
            body = lambda i, y: (i + 1, ops.tanh(y))  # noqa: E731
            return ops.while_loop(lambda i, y: i < 3, body, (ops.array(0), x))[1]

        def compute_output_shape(self, shape):
            return shape

    features = layers.Input((7,), name="features")
    model = keras.Model(features, Loop()(layers.Dense(3)(features)))
    with pytest.raises(ExportError, match="LiteRT cannot calibrate loops"):
        export(
            model,
            tmp_path / "m.tflite",
            quantization="int8",
            sample_inputs=normal(2, 7),
        )


def test_failure_of_the_calibrator(build, tmp_path, normal, monkeypatch):
    monkeypatch.setattr(litert, "_WORKER", tmp_path.parent / "no_such_worker.py")
    with pytest.raises(ExportError, match="(?s)calibrator failed; .*No such file"):
        export(
            build("mlp"),
            tmp_path / "m.tflite",
            quantization="int8",
            sample_inputs=normal(2, 7),
        )
    assert list(tmp_path.iterdir()) == []


def test_other_failure_of_the_converter(build, tmp_path, monkeypatch):
    class Failing:
        target_spec = SimpleNamespace()

        @staticmethod
        def from_saved_model(folder, signature_keys):
            return Failing()

        def convert(self):
            raise ValueError("no such flatbuffer")

    monkeypatch.setattr(tf.lite, "TFLiteConverter", Failing)
    with pytest.raises(ExportError, match="converter failed: no such flatbuffer"):
        export(build("mlp"), tmp_path / "m.tflite")


def test_flatbuffer_equals_that_of_tensorflow(artefact):
    from tensorflow.lite.tools import flatbuffer_utils

    path, _ = artefact("causal_attention", ".tflite")
    model = flatbuffer_utils.read_model(str(path))
    for extra in (b"", b"more"):
        expected = flatbuffer_utils.convert_object_to_bytearray(model, extra)
        with litert.serialized_in_place():
            content = flatbuffer_utils.convert_object_to_bytearray(model, extra)
        assert content == expected and content.endswith(extra)


@pytest.mark.parametrize(
    ("options", "operator"),
    [
        ({"kernel_size": 2, "strides": 2}, "DEPTH_TO_SPACE"),
        ({"kernel_size": 3, "strides": 3, "padding": "same"}, "DEPTH_TO_SPACE"),
        # Copies of the kernel overlap, leave gaps, or are not squares.
        ({"kernel_size": 3, "strides": 2}, "TRANSPOSE_CONV"),
        ({"kernel_size": 2, "strides": 2, "output_padding": 1}, "TRANSPOSE_CONV"),
        *(
            pytest.param(
                {"kernel_size": size, "strides": strides},
                "TRANSPOSE_CONV",
                marks=pytest.mark.variation,
            )
            for size, strides in ((2, 3), ((2, 3), (2, 3)))
        ),
    ],
)
def test_transposed_convolution_without_overlaps_is_a_product(
    options, operator, tmp_path, normal
):
    images = layers.Input((5, 7, 11), name="images")
    model = keras.Model(images, layers.Conv2DTranspose(3, **options)(images))
    report = export(model, tmp_path / "m.tflite")
    assert {"DEPTH_TO_SPACE", "TRANSPOSE_CONV"} & set(report.operators) == {operator}
    x = normal(2, 5, 7, 11)
    [found] = load_runner(tmp_path / "m.tflite")({"images": x}).values()
    np.testing.assert_allclose(found, model(x), atol=1e-5)
