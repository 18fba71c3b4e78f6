"""`freeze`: the frozen function against the model."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_attn import models
from keras_attn.export import export, freeze, freezing


def bert():
    sizes = {"num_layers": 2, "hidden_dim": 22, "num_heads": 2, "mlp_dim": 29}
    model = models.create("bert_base", vocabulary_size=53, **sizes)
    return model, {
        "token_ids": np.arange(1, 15).reshape(2, 7),  # int64; the model declares int32.
        "padding_mask": np.arange(14).reshape(2, 7) % 5 < 3,
        "segment_ids": np.arange(14).reshape(2, 7) // 4 % 2,
    }


def vit():
    sizes = {"num_layers": 2, "hidden_dim": 22, "num_heads": 2, "mlp_dim": 29}
    model = models.create("vit_base_patch16", image_size=14, patch_size=7, **sizes)
    return model, np.random.default_rng(0).normal(size=(3, 14, 14, 3))


def sequential():
    model = keras.Sequential([layers.Input((7,)), layers.BatchNormalization()])
    return model, np.random.default_rng(0).normal(size=(5, 7))


def list_inputs():
    pair = [layers.Input((7,)), layers.Input((7,))]
    model = keras.Model(pair, [layers.Add()(pair), layers.Dense(3)(pair[1])])
    return model, [np.ones((2, 7)), np.full((2, 7), 3.0)]


def with_random_weights(make):
    """Not zero, not even biases: TensorFlow removes constants of zero."""
    model, inputs = make()
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(np.abs(rng.normal(0.5, 0.2, weight.shape)))
    return model, inputs


@pytest.fixture
def policy():
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(bert, marks=pytest.mark.shipped),
        pytest.param(vit, marks=pytest.mark.shipped),
        sequential,
        list_inputs,
    ],
)
def test_frozen_function_equals_the_model(make, dtype, policy):
    policy(dtype)
    model, inputs = with_random_weights(make)
    # Tensors and arrays, some of another dtype than declared, which are cast.
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)
    call = freeze(model)
    found: Any = call(inputs)
    keras.tree.map_structure(np.testing.assert_array_equal, found, call(tensors))
    expected: Any = tf.function(model)(tensors)
    keras.tree.assert_same_structure(found, expected)
    for one, other in zip(
        keras.tree.flatten(found), keras.tree.flatten(expected), strict=True
    ):
        assert one.dtype == other.dtype
        one, other = (tf.cast(x, "float32").numpy() for x in (one, other))
        if dtype == "float32":
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
            continue
        # Single values may differ by several digits of bfloat16.
        error = np.sqrt(np.mean((one - other) ** 2))
        assert error < 2.0**-5 * np.sqrt(np.mean(other**2))


def test_one_graph_takes_any_batch_size():
    model, inputs = with_random_weights(vit)
    call = freeze(model)
    whole = call(inputs)
    np.testing.assert_allclose(call(inputs[:1]), whole[:1], rtol=1e-5, atol=1e-6)


def test_weights_are_constants():
    model, inputs = with_random_weights(sequential)
    call = freeze(model)
    before = call(inputs)
    for weight in model.weights:
        weight.assign(weight * 2)
    np.testing.assert_array_equal(call(inputs), before)
    assert not np.allclose(model(inputs), before)
    np.testing.assert_allclose(freeze(model)(inputs), model(inputs), rtol=1e-5)


@pytest.mark.shipped
def test_model_is_unchanged(tmp_path):
    model, inputs = with_random_weights(vit)
    before = model(inputs)
    freeze(model)
    np.testing.assert_array_equal(model(inputs), before)
    export(model, tmp_path / "saved_model")


def test_model_without_declared_inputs_is_refused():
    class Subclassed(keras.Model):
        def call(self, inputs):
            return inputs

    for model in (Subclassed(), keras.Sequential([layers.Dense(3)]), "model"):
        with pytest.raises(TypeError, match="functional or sequential .* Received"):
            freeze(model)  # pyright: ignore[reportArgumentType]


def test_weights_larger_than_a_graph_are_refused(monkeypatch):
    monkeypatch.setattr(freezing, "_LARGEST", 100)
    model, _ = sequential()
    with pytest.raises(ValueError, match=r"less than 2 GB .* Received: 0.0 GB"):
        freeze(model)


def test_other_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="Received: backend='jax'"):
        freeze(sequential()[0])


def test_missing_inputs_are_refused():
    model, inputs = with_random_weights(bert)
    with pytest.raises(ValueError, match=r"missing key\(s\): \[.padding_mask"):
        freeze(model)({"token_ids": inputs["token_ids"]})
