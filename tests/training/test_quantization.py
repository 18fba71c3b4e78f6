"""Whole models with quantized weights: files, LoRA weights on them, decoding."""

import zipfile
from typing import Any

import keras
import numpy as np
import pytest
from training import small_classifier
from training.small_classifier import batch, fit, values

from keras_attn import layers, models
from keras_attn.decoding import Greedy, generate
from keras_attn.layers.adaptation.quantized import QuantizedKernel
from keras_attn.models.parts.keras_file import build_from_keras_file
from keras_attn.training import (
    adapters_off,
    dequantize,
    enable_lora,
    merge_lora,
    quantize,
)

VOCABULARY = 61
SIZES: dict[str, Any] = {
    **small_classifier.SIZES,
    "vocabulary_size": VOCABULARY,
    "hidden_dim": 36,
    "mlp_dim": 46,
}
KERNELS = [
    f"block_{i}/{part}"
    for i in range(2)
    for part in (
        "attention/query_key_value",
        "attention/output",
        "feed_forward/expand",
        "feed_forward/contract",
    )
]


def classifier() -> Any:
    keras.utils.set_random_seed(2)
    return small_classifier.classifier(**SIZES)


def outputs(model):
    return keras.ops.convert_to_numpy(model(batch()[0]))


def assert_same(ours, theirs):
    assert [*ours] == [*theirs]
    for path, value in ours.items():
        assert value.dtype == theirs[path].dtype
        np.testing.assert_array_equal(value, theirs[path], err_msg=path)


def is_integers(path):
    return "/quantized/" in path


def test_the_report_names_what_was_reached_and_what_was_not():
    model = classifier()
    report = model.quantize("int4", block_size=32, filters=["block_", "^token_emb"])
    assert set(report.quantized) == {"token_embedding", *KERNELS}
    reasons = {
        "pooler": "`filters` leave it out",
        "classifier": "`filters` leave it out",
        "position_embedding": "the weights of LearnedPositionEmbedding are not kernels",
    }
    for path, reason in reasons.items():
        assert report.passed_over[path].startswith(reason)
    codes = scales = 0
    for rows, columns in (
        *[(VOCABULARY, 36)],
        *[(36, 108), (36, 36), (36, 46), (46, 36)] * 2,
    ):
        blocks = -(-rows // 32)
        codes += blocks * 16 * columns
        scales += blocks * 4 * columns
    found = {path: x.nbytes for path, x in values(model).items() if is_integers(path)}
    assert sum(found.values()) == codes + scales
    assert len(found) == 2 * len(report.quantized)
    assert report.bytes_after == sum(x.nbytes for x in values(model).values())
    assert report.bytes_before == sum(x.nbytes for x in values(classifier()).values())
    lines = str(report).splitlines()
    assert lines[0].startswith(
        f"{report.bytes_after:,} bytes of weights, "
        f"{report.bytes_after / report.bytes_before:.1%} of {report.bytes_before:,}: "
        "int4 in blocks of 32: token_embedding, "
    )
    assert "2 × block_*/attention/query_key_value" in lines[0]
    [left_out] = [x for x in lines if x.endswith("`filters` leave it out")]
    assert left_out.startswith("passed over: ") and "pooler" in left_out
    # The rest, in another mode; a kernel is rounded once.
    rest = model.quantize(config=keras.quantizers.Int8QuantizationConfig())
    assert {*rest.quantized} == {"segment_embedding", "pooler", "classifier"}
    assert rest.passed_over["block_0/attention/output"] == "it is int4 already"
    with pytest.raises(ValueError, match="no kernel to quantize.*int4 already"):
        model.quantize("int8")


INT8 = keras.quantizers.Int8QuantizationConfig
OWN_QUANTIZER = INT8(weight_quantizer=keras.quantizers.AbsMaxQuantizer(axis=0))
FLOAT8 = keras.quantizers.Float8QuantizationConfig()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`mode` must be one of"),
        ({"mode": "float8"}, "`mode` must be one of.*'float8'"),
        ({"mode": "int8", "block_size": 32}, "`block_size` is for int4"),
        ({"mode": "int4", "block_size": 7}, "`block_size` must be even"),
        ({"mode": "int8", "filters": "no_layer"}, "no kernel to quantize.*`filters`"),
        ({"mode": "int8", "filters": "(block"}, "`filters` must be regular.*block"),
        ({"mode": "int4", "config": INT8()}, "`mode` must be as in `config`"),
        ({"config": OWN_QUANTIZER}, "`config` must have no `weight_quantizer`"),
        ({"config": FLOAT8}, r"`config.mode` must be one of"),
    ],
)
def test_wrong_arguments_are_named_and_change_nothing(options, message):
    model = classifier()
    before = values(model)
    with pytest.raises(ValueError, match=message):
        model.quantize(**options)
    assert_same(values(model), before)


def test_layers_and_plain_models():
    layer = layers.Dense(40)
    with pytest.raises(ValueError, match="Build 'dense.*' before `quantize`"):
        layer.quantize("int8")
    inner = layers.TransformerEncoderBlock(3, 46)
    x = keras.Input((None, 36))
    other = keras.layers.Dense(50, name="other")
    model = keras.Model(x, other(layer(inner(x))))
    report = quantize(model, "int8", filters=lambda x: x is not layer)
    assert len(report.quantized) == 4
    assert report.passed_over["other"].endswith("use keras_attn.layers.Dense")
    assert report.passed_over[layer.name] == "`filters` leave it out"
    # Keras' own call of its layers.
    keras.Model.quantize(model, "int4", filters=layer.name)
    assert isinstance(layer._kernel, QuantizedKernel)
    with pytest.raises(ValueError, match="int4 would take no fewer bytes"):
        narrow = layers.Dense(3)
        narrow.build((None, 1))
        narrow.quantize("int4")


@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.compiled
def test_a_file_keeps_the_integers(mode, tmp_path):
    model = classifier()
    plain = outputs(model)
    model.quantize(mode)
    expected = outputs(model)
    # Rounded, and still near.
    error = np.abs(expected - plain).max() / np.abs(plain).max()
    assert 1e-5 < error < {"int8": 0.02, "int4": 0.3}[mode]
    loaded = model
    for name in ("once", "twice"):
        loaded.save(tmp_path / f"{name}.keras")
        loaded: Any = keras.saving.load_model(tmp_path / f"{name}.keras")
        assert_same(values(loaded), values(model))
        np.testing.assert_array_equal(outputs(loaded), expected)
    trained = [[w.path for w in x.trainable_variables] for x in (loaded, model)]
    assert trained[0] == trained[1]
    assert not [path for path in trained[0] if is_integers(path)]
    # Smaller than the weights of the float model, and read without them.
    with zipfile.ZipFile(tmp_path / "once.keras") as file:
        stored = file.getinfo("model.weights.h5").file_size
    float_bytes = sum(x.nbytes for x in values(classifier()).values())
    assert stored < float_bytes + 90_000
    described = build_from_keras_file(tmp_path / "once.keras")
    assert [w.path for w in described.weights] == [w.path for w in model.weights]
    # A file of weights alone.
    model.save_weights(tmp_path / "model.weights.h5")
    other = classifier()
    other.quantize(mode)
    other.get_layer("token_embedding")._embeddings.assign(np.ones((VOCABULARY, 36)))
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same(values(other), values(model))


def test_a_checkpoint_has_the_numbers_that_the_integers_stand_for(tmp_path):
    model = classifier()
    model.quantize("int4", block_size=32)
    expected = outputs(model)
    models.save_checkpoint(model, tmp_path / "one")
    loaded = models.load_checkpoint(tmp_path / "one", "classifier")
    np.testing.assert_allclose(outputs(loaded), expected, atol=1e-5)
    assert not [path for path in values(loaded) if is_integers(path)]
    # As the model itself without its integers, whose weights are in their old order.
    paths = dequantize(model)
    others = {"token_embedding", "segment_embedding", "pooler", "classifier"}
    assert set(paths) == {*KERNELS, *others}
    assert [x.shape for x in model.weights] == [x.shape for x in classifier().weights]
    np.testing.assert_allclose(outputs(model), expected, atol=1e-5)
    assert len(model.trainable_variables) == len(model.weights)
    fresh = classifier()
    model.save_weights(tmp_path / "model.weights.h5")
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(outputs(fresh), outputs(model))
    assert dequantize(model) == ()


def test_updates_and_integers_in_either_order():
    """In one order of the weights, too, in which files number them."""
    made = []
    for first in ("quantize", "lora"):
        model = classifier()
        if first == "lora":
            enable_lora(model, 2, also_train="classifier", seed=5)
        report = model.quantize("int8")
        if first == "quantize":
            assert "classifier" in report.quantized
            enable_lora(model, 2, also_train="classifier", seed=5)
        else:
            reason = report.passed_over["classifier"]
            assert reason == "it trains beside the LoRA weights"
        made.append(model)
    # A head that trains has floats, here those that it was rounded to.
    made[1].get_layer("classifier").set_weights(
        made[0].get_layer("classifier").get_weights()
    )
    assert_same(values(made[0]), values(made[1]))
    trained = [[w.path for w in model.trainable_variables] for model in made]
    assert trained[0] == trained[1]
    updates = {path for path in trained[0] if "/default/" in path}
    assert len(updates) == 2 * 2 * 2
    assert {*trained[0]} == {*updates, "classifier/kernel", "classifier/bias"}


@pytest.mark.compiled
def test_updates_train_on_integers_that_stay(tmp_path):
    model = classifier()
    model.quantize("int4", block_size=32)
    enable_lora(model, 2, also_train="classifier")
    trained = [w.path for w in model.trainable_variables]
    before = values(model)
    fit(model, 1, jit_compile=False)
    model.save(tmp_path / "half.keras")
    fit(model, 1, jit_compile=False)
    for path, value in values(model).items():
        changed = (value != before[path]).any()
        assert changed == (path in trained), path
    # A run goes on from its file.
    rest: Any = keras.saving.load_model(tmp_path / "half.keras")
    fit(rest, 1)
    assert_same(values(rest), values(model))
    for weight in model.trainable_variables:
        weight.assign(np.random.default_rng(0).normal(0, 0.3, weight.shape))
    adapted = outputs(model)
    with adapters_off(model):
        assert np.abs(outputs(model) - adapted).max() > 0.01
    # The sums are floats: rounding them would lose what was learned.
    merge_lora(model)
    np.testing.assert_allclose(outputs(model), adapted, atol=1e-5)
    left = {path for path in values(model) if is_integers(path)}
    assert left and not [path for path in left if "query" in path]
    model.save(tmp_path / "merged.keras")
    merged = keras.saving.load_model(tmp_path / "merged.keras")
    np.testing.assert_array_equal(outputs(merged), outputs(model))


def test_generated_text_follows():
    """A loop that was compiled before would go on with the floats."""
    keras.utils.set_random_seed(2)
    model: Any = models.build_gpt("gpt2_small", **SIZES)
    tokens = np.array([[3, 1, 4]], "int32")
    ones = np.ones_like(tokens)

    def generated():
        prompt = {"token_ids": tokens, "padding_mask": ones}
        return generate(model, prompt, 5, strategy=Greedy())

    before = np.asarray(generated().scores)
    model.quantize("int4", block_size=2)
    found = generated()
    new = np.asarray(found.token_ids)
    inputs = {"token_ids": np.concatenate([tokens, new], axis=1)}
    inputs["padding_mask"] = np.ones_like(inputs["token_ids"])
    logits = model(inputs)[:, tokens.shape[1] - 1 : -1]
    expected = keras.ops.log_softmax(logits)
    expected = keras.ops.convert_to_numpy(keras.ops.max(expected, -1)).sum(-1)
    np.testing.assert_allclose(found.scores, expected, atol=1e-4)
    assert np.abs(expected - before).max() > 1e-3


def test_a_model_must_be_compiled_again():
    model = classifier()
    model.compile("adam", "mse")
    model.quantize("int8")
    with pytest.raises(ValueError, match=r"compile\(\)"):
        model.fit(*batch(), verbose=0)


@pytest.mark.compiled
def test_it_fits_compiled_by_xla_in_half_precision(set_policy):
    set_policy("mixed_bfloat16")
    model = classifier()
    model.quantize("int4", filters="block_")
    model.quantize("int8")
    enable_lora(model, 2)
    before = values(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=True)
    model.fit(*batch(), verbose=0)
    for path, value in values(model).items():
        changed = (value != before[path]).any()
        # The B of each update is zero at first, so the gradient of its A is.
        assert changed == path.endswith(("/b_0", "/b_1")), path
