"""Keras' own losses are means over the positions that the sample weights choose."""

import keras
import numpy as np
import pytest
from model_cases import create, given, inputs_for, outputs_of

from keras_attn.losses import SmoothedCrossEntropy
from keras_attn.models.parts.functional import Functional


def keras_loss(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


@pytest.fixture(scope="module")
def model():
    return create("bert_masked_lm")


@pytest.fixture(scope="module")
def batch(model):
    """Inputs, labels and weights, of which few are above 0."""
    inputs = inputs_for(model)
    shape = outputs_of(model, inputs)["logits"].shape
    random = np.random.default_rng(3)
    labels = random.integers(0, shape[-1], shape[:2]).astype("int32")
    weights = np.zeros(shape[:2], "float32")
    weights[0, 0], weights[1, 1] = 1.0, 3.0
    return given(model, inputs), labels, weights


def loss_of(model, loss, inputs, labels, weights):
    model.compile("sgd", loss, run_eagerly=True)
    found = model.test_on_batch(inputs, labels, weights, return_dict=True)
    return found["loss"]


def test_the_loss_of_masked_words_is_their_mean(model, batch):
    expected = loss_of(model, SmoothedCrossEntropy(), *batch)
    inputs, labels, weights = batch
    losses = np.asarray(keras_loss(reduction="none")(labels, model(inputs)))
    by_hand = (losses * weights).sum() / weights.sum()
    assert expected == pytest.approx(by_hand, rel=1e-6)
    function = keras.losses.sparse_categorical_crossentropy
    for loss in (
        keras_loss(),
        keras_loss(reduction="mean"),
        keras_loss(reduction="mean_with_sample_weight"),
        lambda labels, logits: function(labels, logits, from_logits=True),
    ):
        assert loss_of(model, loss, *batch) == pytest.approx(expected, rel=1e-6)


def test_weights_of_rows_and_of_sums_are_as_in_keras(model, batch):
    inputs, labels, weights = batch
    total = loss_of(model, keras_loss(reduction="sum"), *batch)
    losses = np.asarray(keras_loss(reduction="none")(labels, model(inputs)))
    assert total == pytest.approx((losses * weights).sum(), rel=1e-6)
    rows = np.array([[0.5], [3.0]], "float32")
    found = loss_of(model, keras_loss(), inputs, labels, rows)
    assert found == pytest.approx((losses * rows).mean(), rel=1e-6)


def test_weights_of_each_loss_of_several():
    """Of a dictionary, and of one tensor for all."""
    inputs = keras.Input((5, 3), name="words")
    model = Functional(inputs, {"a": inputs * 2.0, "b": inputs + 1.0})
    words = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    weights = np.zeros((2, 5), "float32")
    weights[0, 2] = 1.0
    model.compile("sgd", {"a": "mse", "b": "mae"}, run_eagerly=True)
    labels = {"a": words, "b": words}
    expected = (words[0, 2] ** 2).mean() + 1.0
    for given_weights in (weights, {"a": weights, "b": weights}):
        found = model.test_on_batch(words, labels, given_weights, return_dict=True)
        assert found["loss"] == pytest.approx(expected, rel=1e-6)


def test_metrics_have_the_weights_that_are_given(model, batch):
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", keras_loss(), weighted_metrics=[metric], run_eagerly=True)
    found = model.test_on_batch(*batch, return_dict=True)
    # Keras counts the mean weight of each row.
    assert float(metric.count) == pytest.approx(batch[2].mean(axis=1).sum())
    assert float(metric.result()) == pytest.approx(found["loss"], rel=1e-6)


def two_outputs(kind):
    """Losses of two outputs, and their labels, in each structure that Keras takes."""
    inputs = keras.Input((5, 3), name="words")
    tensors = {"a": keras.layers.Identity(name="a")(inputs), "b": inputs + 1.0}
    tensors["b"] = keras.layers.Identity(name="b")(tensors["b"])
    outputs = tensors if kind == "dictionary" else list(tensors.values())
    return Functional(inputs, tensors["a"] if kind == "one" else outputs)


@pytest.mark.parametrize(
    ("kind", "losses", "expected"),
    [
        ("one", {"a": "mse"}, 9.0),
        ("one", ["mse"], 9.0),
        ("list", {"b": "mae", "a": "mse"}, 13.0),
        ("list", {"b": keras.losses.MeanAbsoluteError("sum"), "a": "mse"}, 21.0),
        ("list", ["mse", keras.losses.MeanAbsoluteError("sum")], 21.0),
        ("dictionary", ["mse", "mae"], 13.0),
        ("dictionary", ["mse", keras.losses.MeanAbsoluteError("sum")], 21.0),
    ],
)
def test_one_tensor_of_weights_for_losses_in_any_structure(kind, losses, expected):
    """Of all positions with the same error, three of row 0 count, and none of row 1."""
    model = two_outputs(kind)
    model.compile("sgd", losses, run_eagerly=True)
    words, weights = np.full((2, 5, 3), 3.0, "float32"), np.zeros((2, 5), "float32")
    weights[0, 1:4] = 1.0
    zeros = np.zeros_like(words)
    labels = {
        "one": zeros,
        "list": [zeros, zeros],
        "dictionary": {"a": zeros, "b": zeros},
    }
    found = model.test_on_batch(words, labels[kind], weights, return_dict=True)
    assert found["loss"] == pytest.approx(expected, rel=1e-6)


def test_classes_of_positions_cannot_be_weighted(model, batch):
    """Keras would weigh a text by the class of its largest label."""
    inputs, labels, _ = batch
    model.compile("sgd", keras_loss())
    with pytest.raises(ValueError, match="`class_weight` needs one class for each row"):
        model.fit(inputs, labels, class_weight={0: 1.0, 1: 2.0})
