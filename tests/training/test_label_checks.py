"""Labels out of range are reported before a model learns from them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn.data import check_labels

C = 5


def pairs(labels, *weights):
    inputs = np.zeros((len(labels), 3), "float32")
    return tf.data.Dataset.from_tensor_slices((inputs, labels, *weights)).batch(2)


def test_valid_labels_are_returned_unchanged():
    labels = np.array([[0], [4], [2]], "uint8")
    assert check_labels(labels, C) is labels
    assert check_labels([0, 4], C) == [0, 4]
    assert check_labels([], C) == []


@pytest.mark.parametrize("weights", [(), (np.arange(3.0),)])
def test_a_valid_dataset_is_unchanged(weights):
    dataset = pairs(np.array([0, 4, 2]), *weights)
    checked = check_labels(dataset, C)
    assert checked.element_spec == dataset.element_spec
    assert checked.cardinality() == dataset.cardinality()
    for one, other in zip(checked, dataset, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("wrong", [-1, 5, 255])
def test_labels_out_of_range_are_refused(wrong):
    labels = np.array([0, 1, 2, wrong, wrong])
    with pytest.raises(
        ValueError,
        match=rf"from 0 to num_classes - 1.*a different `num_classes`.*"
        rf"Received: labels \[{wrong}\], num_classes=5",
    ):
        check_labels(labels, C)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"a different `num_classes`.*\[{wrong}\] \[num_classes=5\]",
    ):
        list(check_labels(pairs(labels), C))


def test_fit_fails_where_its_loss_would_be_nan():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(C)])
    model.compile(
        "sgd",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
    )
    dataset = pairs(np.array([0, 1, 2, 7]))
    assert np.isnan(model.fit(dataset, shuffle=False, verbose=0).history["loss"][0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"labels\] \[7\]"):
        model.fit(check_labels(dataset, C), shuffle=False, verbose=0)


@pytest.mark.parametrize(
    "labels, num_classes, error, message",
    [
        ([0, 1], 0, ValueError, "`num_classes` must be a positive integer"),
        ([0.5], C, TypeError, r"integers, .*dtype=float64, .*shape=\(1,\)"),
        (pairs(np.eye(3, 5)), C, TypeError, r"integers.*shape=\(None, 5\)"),
        (
            tf.data.Dataset.from_tensors(np.arange(3)),
            C,
            TypeError,
            "pairs of inputs and labels.*labels.element_spec=TensorSpec",
        ),
    ],
)
def test_invalid_arguments_are_refused(labels, num_classes, error, message):
    with pytest.raises(error, match=message):
        check_labels(labels, num_classes)
