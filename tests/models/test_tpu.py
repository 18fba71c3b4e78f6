"""Compiling for TPUs: what it refuses, what a program tells, and what was wasteful."""

import importlib.util
import re

import keras
import numpy as np
import pytest
import recipes
from keras import ops
from model_cases import build, inputs_for
from tpu_programs import (
    ROWS,
    TOPOLOGY,
    check_is_local,
    check_text,
    collectives_of,
    model_of,
)

from keras_attn import models
from keras_attn.kernels.splash_attention import splash_attention
from keras_attn.layers import MultiHeadAttention
from keras_attn.models.parts.keras_state import undone, without_allocating
from keras_attn.models.plans import tpu
from keras_attn.ops import non_max_suppression, roi_align, roi_pool

ON_JAX = keras.backend.backend() == "jax"


@pytest.mark.skipif(ON_JAX, reason="the refusal of another backend")
def test_another_backend_is_refused():
    model = build("gpt_117m")
    message = "needs Keras' JAX backend: set KERAS_BACKEND=jax .*backend='tensorflow'"
    with pytest.raises(RuntimeError, match=message):
        tpu.compile_forward(model, inputs_for(model))
    with pytest.raises(RuntimeError, match=message):
        tpu.compile_step(model, inputs_for(model), max_length=8)


def test_a_missing_library_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "keras-attn\[tpu\]"'):
        tpu.environment()
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "none.so"))
    with pytest.raises(ImportError, match=r"`TPU_LIBRARY_PATH` must be.*none\.so"):
        tpu.environment()


def test_the_environment_of_a_process_that_compiles(monkeypatch, tmp_path):
    library = tmp_path / "libtpu.so"
    library.touch()
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    found = tpu.environment()
    assert found["TPU_LIBRARY_PATH"] == str(library)
    assert (found["KERAS_BACKEND"], found["JAX_PLATFORMS"]) == ("jax", "cpu")
    # All that the library itself reads is set in time in any case.
    monkeypatch.delenv("TPU_LIBRARY_PATH")
    spec = importlib.util.spec_from_file_location("libtpu", tmp_path / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert tpu.environment()["TPU_LIBRARY_PATH"] == str(library)


@pytest.mark.tpu
def test_the_recipe_of_the_documentation(capsys):
    recipes.run(recipes.DOCS / "tpu.md")
    assert re.fullmatch(r"4 \d+ [\d.]+ False\n", capsys.readouterr().out)


KNOWN = "libtpu does not know the `topology`"
SHAPED = "`topology` must be a generation and"


@pytest.mark.tpu
@pytest.mark.parametrize(
    "topology, message",
    [
        *((x, SHAPED) for x in ("v5e", "four chips", "v5e:0", None)),
        *((x, f"{KNOWN}.*'{x}'") for x in ("v99x:2x2", "v5e:5x5")),
    ],
)
def test_another_topology_is_refused(topology, message):
    model = model_of("gpt_117m")
    with pytest.raises(ValueError, match=message):
        tpu.compile_forward(model, inputs_for(model), topology=topology)


@pytest.mark.tpu
def test_a_batch_is_divided_evenly():
    model = model_of("gpt_117m")
    with pytest.raises(ValueError, match="multiple of the 4 devices of 'v5e:2x2'"):
        tpu.compile_forward(model, inputs_for(model, batch=6), topology=TOPOLOGY)


@pytest.mark.tpu
def test_a_training_step_needs_an_optimizer():
    model = model_of("gpt_117m")
    with pytest.raises(ValueError, match="must have an optimizer and a loss"):
        tpu.compile_training_step(model, inputs_for(model), topology=TOPOLOGY)


@pytest.mark.tpu
def test_a_program_tells_flops_and_memory():
    """One product of known sizes, on one chip and divided among four."""
    inputs = keras.Input((128,))
    model = keras.Model(inputs, keras.layers.Dense(256, use_bias=False)(inputs))
    for topology, devices in (("v5e:1x1", 1), ("v5e:2x2", 4)):
        program = tpu.compile_forward(
            model, np.zeros((64, 128), "float32"), topology=topology
        )
        assert program.devices == devices
        assert program.flops == pytest.approx(2 * 64 * 128 * 256 / devices, rel=0.01)
        needed = 4 * (128 * 256 + 64 * (128 + 256) // devices)
        assert needed <= program.bytes_per_device <= 1.2 * needed
        assert program.seconds > 0
        assert "HloModule" in program.text


@pytest.mark.tpu
def test_too_much_memory_is_an_error():
    import jax

    inputs = keras.Input((1024, 1024))
    model = keras.Model(inputs, ops.exp(inputs))
    batch = jax.ShapeDtypeStruct((8192, 1024, 1024), "float32")
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        tpu.compile_forward(model, batch)


def _model_of_boxes(function):
    """A model of two maps, boxes and levels, without weights."""
    shapes = {"fine": (8, 10, 3), "coarse": (4, 5, 3), "boxes": (7, 4), "levels": (7,)}
    inputs = {
        name: keras.Input(
            shape, dtype="int32" if name == "levels" else "float32", name=name
        )
        for name, shape in shapes.items()
    }

    class Pooling(keras.layers.Layer):
        def call(self, inputs):
            maps = [inputs["fine"], inputs["coarse"]]
            return function(maps, inputs["boxes"], inputs["levels"])

    return keras.Model(inputs, Pooling()(inputs))


@pytest.mark.tpu
@pytest.mark.parametrize("pool", [roi_align, roi_pool])
def test_features_of_boxes_are_those_of_the_own_images(pool):
    model = _model_of_boxes(
        lambda maps, boxes, levels: pool(
            maps, boxes, strides=(2, 4), output_size=(2, 3), levels=levels
        )
    )
    specs = {x.name: np.zeros((4, *x.shape[1:]), x.dtype) for x in model.inputs}
    check_is_local(tpu.compile_forward(model, specs, topology=TOPOLOGY))


@pytest.mark.tpu
def test_a_device_suppresses_its_own_boxes_alone():
    model = _model_of_boxes(
        lambda maps, boxes, levels: non_max_suppression(
            boxes, boxes[..., 0], iou_threshold=0.5, max_outputs=3, groups=levels
        )
    )
    specs = {x.name: np.zeros((4, *x.shape[1:]), x.dtype) for x in model.inputs}
    check_is_local(tpu.compile_forward(model, specs, topology=TOPOLOGY))


@pytest.mark.tpu
def test_devices_that_suppress_by_themselves_keep_the_same_boxes():
    """On two devices of the CPU, whose loops take unlike numbers of iterations."""
    import jax

    devices = keras.distribution.list_devices("cpu")
    assert len(devices) == 2  # The Makefile sets XLA_FLAGS.
    rng = np.random.default_rng(3)
    corners = rng.uniform(0, 9, (4, 31, 2))
    corners[:2] *= 100  # Hardly any overlap.
    boxes = np.concatenate([corners, corners + 5], axis=-1).astype("float32")
    scores = rng.random((4, 31)).astype("float32")

    def compiled():
        # A function of its own, because JAX keeps what it has traced of a function.
        def suppress(boxes, scores):
            return non_max_suppression(boxes, scores, iou_threshold=0.2, max_outputs=9)

        return jax.jit(suppress)

    expected = compiled()(boxes, scores)
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=devices)
    )
    try:
        divided = compiled()
        text = divided.lower(boxes, scores).as_text()
        found = divided(boxes, scores)
        odd = compiled()(boxes[:3], scores[:3])
    finally:
        keras.distribution.set_distribution(before)
    assert "shard_map" in text or "manual_computation" in text
    for one, other, part in zip(found, expected, odd, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(part, other[:3])


@pytest.mark.tpu
def test_a_decoder_that_attends_keeps_no_hidden_layer_of_its_steps():
    """Kept for all steps, it took 304 MiB here, where 4 MiB are temporary now."""
    import jax

    rows, length, units = 16, 40, 256
    with undone(), without_allocating():
        model = models.create(
            "rnnsearch_50",
            source_vocabulary_size=1000,
            target_vocabulary_size=1000,
            embedding_dim=64,
            hidden_dim=units,
        )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    spec = {x.name: jax.ShapeDtypeStruct((rows, length), x.dtype) for x in model.inputs}
    labels = jax.ShapeDtypeStruct((rows, length), "int32")
    program = tpu.compile_training_step(model, spec, labels)
    hidden = 4 * rows * length * length * units
    assert program.memory.temp_size_in_bytes < hidden / 2
    assert not collectives_of(program)


@pytest.mark.tpu
def test_long_attention_is_a_kernel_on_each_device():
    """Of 2,048 tokens no device holds the scores of even one head."""
    inputs = keras.Input((2048, 16))
    outputs = MultiHeadAttention(2, 8)(inputs, use_causal_mask=True)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    array = np.zeros((ROWS, 2048, 16), "float32")
    program = tpu.compile_training_step(model, array, array, topology=TOPOLOGY)
    check_text(program)
    assert "tpu_custom_call" in program.text
    assert set(collectives_of(program)) == {"all-reduce"}
    assert program.memory.temp_size_in_bytes < 4 * 2048**2


@pytest.mark.tpu
@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
def test_devices_divide_the_examples_or_the_heads_of_a_kernel(shape):
    """On two devices of the CPU, where JAX interprets the kernel."""
    import jax

    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 2, 2, 130, 8)).astype("float32")
    mask = np.arange(130) < [[130], [7]]

    @jax.jit
    def attend(*inputs):
        options = {"padding_mask": mask, "interpret": True}
        return splash_attention(*inputs, scale=0.3, **options)

    expected = attend(query, key, value)
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"])
    layout = keras.distribution.LayoutMap(mesh)
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    )
    try:
        attend.clear_cache()
        found = attend(query, key, value)
    finally:
        keras.distribution.set_distribution(before)
    assert {x.data.size for x in found.addressable_shards} == {query.size // 2}
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
