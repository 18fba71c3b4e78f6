"""Models whose kernels are integers, in every format."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from keras_attn import layers, models
from keras_attn.export import export, load_runner, verify
from keras_attn.export.formats import onnx_integers
from keras_attn.layers.adaptation.quantized import QuantizedKernel
from keras_attn.training import quantize

pytestmark = pytest.mark.shipped

VOCABULARY, WIDTH = 211, 64
IDS = np.random.default_rng(0).integers(0, VOCABULARY, (7, 5)).astype("int32")


def tied():
    """A table that is also the output layer, and products."""
    keras.utils.set_random_seed(1)
    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    table = layers.TokenEmbedding(VOCABULARY, WIDTH, name="table")
    hidden = layers.Dense(97, activation="relu")(table(token_ids))
    hidden = layers.Dense(WIDTH)(hidden)
    return keras.Model(token_ids, {"logits": table(hidden, reverse=True)[:, -1]})


def convolutions():
    keras.utils.set_random_seed(1)
    images = keras.Input((16, 16, 3), name="images")
    x = layers.Conv2D(8, 3)(images)
    x = keras.layers.BatchNormalization()(x)
    x = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, {"logits": layers.Dense(11)(x)})


def values(model):
    return {weight.path: weight.numpy() for weight in model.weights}


def test_a_model_without_integers_has_no_note_of_them():
    onnx = pytest.importorskip("onnx", reason="the extra `export` is not installed")
    model = onnx.helper.make_model(onnx.helper.make_graph([], "serve", [], []))
    weights: Any = {"kernel": SimpleNamespace(variable=object(), factor=None)}
    assert onnx_integers.replace(model, weights, {}) == []


@pytest.mark.parametrize("suffix", ["", ".tflite", ".onnx"])
@pytest.mark.parametrize(
    ("mode", "block_size"), [("int8", None), ("int4", 32), ("int4", 6)]
)
def test_products_and_tables(tmp_path, suffix, mode, block_size):
    model = tied()
    float_bytes = sum(x.nbytes for x in values(model).values())
    report = quantize(model, mode, block_size=block_size)
    before = values(model)
    path = tmp_path / f"model{suffix}"
    shipped = export(model, path, sample_inputs={"token_ids": IDS})
    # The numbers of the integers, and nothing that rounds them again.
    assert shipped.error is not None and shipped.error < 1e-5
    assert shipped.top1_agreement == {"logits": 1.0}
    assert f"quantized weights, 3 of {mode}: written as" in shipped.notes[0]
    [found] = load_runner(path)({"token_ids": IDS[:2]}).values()
    np.testing.assert_allclose(found, model(IDS[:2])["logits"], atol=1e-5)
    if suffix == ".onnx":
        assert shipped.quantization is None
        # Floats of int8 kernels are computed when the file is loaded.
        products = {None: 0, 32: 2, 6: 0}[block_size]
        assert shipped.operators.get("MatMulNBits", 0) == products
        # The graph, and the digest that ends the file.
        assert shipped.bytes < report.bytes_after + 25_200 < float_bytes
    # The model is what it was.
    after = values(model)
    assert [*after] == [*before]
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


@pytest.mark.parametrize(("mode", "products"), [("int8", 3), ("int4", 2)])
def test_products_of_integers_in_onnx(tmp_path, mode, products):
    """Both factors have 8 bits, so the rows of a batch are rounded one by one."""
    model = tied()
    block_size = None if mode == "int8" else 32
    report = quantize(model, mode, block_size=block_size)
    options: Any = {"sample_inputs": {"token_ids": IDS}}
    path = tmp_path / "model.onnx"
    shipped = export(model, path, quantization="int8_dynamic", **options)
    assert shipped.error is not None and 1e-5 < shipped.error < 0.02
    assert shipped.operators["MatMulNBits"] == products
    # The table of int8 twice: by rows, and in the layout of the product.
    assert shipped.bytes < 2 * report.bytes_after + 25_000
    nodes = (
        pytest.importorskip("onnx", reason="the extra `export` is not installed")
        .load(path)
        .graph.node
    )
    levels = {
        attribute.i
        for node in nodes
        for attribute in node.attribute
        if attribute.name == "accuracy_level"
    }
    # In floats, a product with 8 bits takes 20 times as long.
    assert levels == {4}
    assert verify(model, path, **options).quantization == "int8_dynamic"
    runner = load_runner(path)
    [together] = runner(
        {"token_ids": np.concatenate([IDS, 3 * IDS % VOCABULARY])}
    ).values()
    [alone] = runner({"token_ids": IDS}).values()
    np.testing.assert_allclose(together[:7], alone, atol=1e-5)


def test_floats_are_not_rounded_in_onnx(tmp_path):
    message = r"`quantization` is for quantized weights in ONNX.*training\.quantize"
    with pytest.raises(ValueError, match=message):
        export(tied(), tmp_path / "m.onnx", quantization="int8_dynamic")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_convolutions_to_onnx(tmp_path, mode):
    model = convolutions()
    randomize_norms(model)
    quantize(model, mode)
    images = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype("float32")
    shipped = export(model, tmp_path / "m.onnx", sample_inputs={"images": images})
    assert shipped.error is not None and shipped.error < 1e-5
    # One byte each, also of the kernel that a batch norm multiplies.
    parts = {
        "int8": ["3 as codes of 8 bits"],
        "int4": ["2 as codes of 8 bits", "1 as int4 `MatMulNBits`"],
    }
    assert sorted(shipped.notes[-1].partition(": ")[2].split(", ")) == sorted(
        parts[mode]
    )


def randomize_norms(model):
    """Scales, shifts and statistics as after training, so that folding shows."""
    rng = np.random.default_rng(3)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            for weight in layer.weights:
                weight.assign(rng.uniform(0.5, 1.5, weight.shape))


RESNET: Any = {"num_blocks": (2, 1), "stem_dim": 32, "image_size": 32, "num_classes": 7}
MODELS: Any = {
    "resnet18": RESNET,
    "resnet50": RESNET,
    "segnet": {
        "hidden_dims": (48, 56),
        "num_convs": (2, 2),
        "image_size": 32,
        "num_classes": 5,
    },
}


@pytest.mark.each_value
@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("name", MODELS)
def test_kernels_before_a_batch_norm_stay_integers_in_onnx(tmp_path, name, mode):
    keras.utils.set_random_seed(1)
    model = models.create(name, **MODELS[name])
    randomize_norms(model)
    quantize(model, mode)
    size = MODELS[name]["image_size"]
    images = np.random.default_rng(0).normal(size=(2, size, size, 3)).astype("float32")
    path = tmp_path / "model.onnx"
    shipped = export(model, path, sample_inputs={"images": images})
    assert shipped.error is not None and shipped.error < 1e-4
    assert "float32" not in shipped.notes[-1]
    integers = sum(
        int(np.prod(x.shape))
        for x in model._flatten_layers()
        if isinstance(x, QuantizedKernel)
    )
    assert integers > 90_000
    # A byte for each number of a kernel; four, if the norms had made them floats.
    assert shipped.bytes < integers + 100_000


def test_litert_rounds_again_on_request(tmp_path):
    model = tied()
    quantize(model, "int8")
    shipped = export(
        model,
        tmp_path / "m.tflite",
        quantization="int8_dynamic",
        sample_inputs={"token_ids": IDS},
    )
    assert shipped.bytes < 60_000
    assert "rounded again by int8_dynamic quantization" in shipped.notes[0]


def test_a_generative_model_has_a_perplexity(tmp_path):
    """That of the texts, token by token, against the model that reads them at once."""
    keras.utils.set_random_seed(1)
    model = models.create(
        "gpt2_small",
        vocabulary_size=53,
        num_layers=1,
        hidden_dim=24,
        num_heads=2,
        mlp_dim=34,
        max_sequence_length=12,
    )
    model.quantize("int8")
    rng = np.random.default_rng(0)
    mask = np.arange(7) >= [[0], [2]]
    sample = {"token_ids": rng.integers(0, 53, (2, 7)), "padding_mask": mask}
    shipped = export(model, tmp_path / "gpt", sample_inputs=sample, max_length=12)
    logits = keras.ops.log_softmax(model(sample))[:, :-1]
    picked = np.take_along_axis(
        keras.ops.convert_to_numpy(logits), sample["token_ids"][:, 1:, None], -1
    )[..., 0]
    expected = np.exp(-picked[mask[:, :-1]].mean())
    assert shipped.perplexity["keras"] == pytest.approx(expected, rel=1e-4)
    assert shipped.perplexity["artefact"] == pytest.approx(expected, rel=1e-4)
    assert shipped.top1_agreement == {"logits": 1.0}
    assert "perplexity" in str(shipped)
