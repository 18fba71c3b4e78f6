"""Losses of segmentation against their definitions."""

import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn.data import check_labels
from keras_attn.losses import SegmentationCrossEntropy, border_weights

B, H, W, C = 2, 5, 7, 3
RNG = np.random.default_rng(1)


def logits_and_labels():
    logits = RNG.normal(size=(B, H, W, C)).astype("float32")
    labels = RNG.integers(0, C, (B, H, W)).astype("int32")
    labels[:, 1:3] = 255
    return logits, labels


def expected_losses(labels, logits):
    """Of each pixel, 0 where it does not count."""
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    counts = labels != 255
    picked = np.take_along_axis(log_p, np.where(counts, labels, 0)[..., None], -1)
    return np.where(counts, -picked[..., 0], 0)


def test_the_mean_is_over_weighted_pixels_with_a_label():
    logits, labels = logits_and_labels()
    losses = expected_losses(labels, logits)
    counts = labels != 255
    loss = SegmentationCrossEntropy()
    np.testing.assert_allclose(loss(labels, logits), losses.sum() / counts.sum(), 1e-5)
    weights = RNG.uniform(0, 3, labels.shape).astype("float32")
    expected = (weights * losses).sum() / weights[counts].sum()
    np.testing.assert_allclose(loss(labels, logits, weights), expected, 1e-5)
    rows = np.array([1.0, 3.0], "float32")
    total = (counts.sum((1, 2)) * rows).sum()
    expected = (losses.sum((1, 2)) * rows).sum() / total
    np.testing.assert_allclose(loss(labels, logits, rows), expected, 1e-5)
    each = SegmentationCrossEntropy(reduction="none")(labels, logits)
    np.testing.assert_allclose(each, losses, rtol=1e-4, atol=1e-6)


def test_without_a_label_the_loss_and_its_gradient_are_zero():
    logits = tf.constant(logits_and_labels()[0])
    labels = np.full((B, H, W), 255)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = SegmentationCrossEntropy()(labels, logits)
    assert float(loss) == 0
    assert not np.any(np.asarray(tape.gradient(loss, logits)))


def test_another_label_or_none_is_ignored():
    logits, labels = logits_and_labels()
    others = np.where(labels == 255, -1, labels)
    loss = SegmentationCrossEntropy(-1)
    np.testing.assert_allclose(
        loss(others, logits), SegmentationCrossEntropy()(labels, logits)
    )
    labels = np.where(labels == 255, 1, labels)
    both = [SegmentationCrossEntropy(n)(labels, logits) for n in (None, 255)]
    np.testing.assert_allclose(*both, rtol=1e-6)


@pytest.mark.parametrize("jit_compile, dtype", [(False, "uint8"), (True, "int32")])
def test_models_fit_with_it_and_load_it(jit_compile, dtype, tmp_path):
    keras.utils.set_random_seed(1)
    logits, labels = logits_and_labels()
    model = keras.Sequential([keras.Input((H, W, C)), keras.layers.Conv2D(C, 1)])
    model.compile("sgd", loss=SegmentationCrossEntropy(), jit_compile=jit_compile)
    weights = np.where(labels == 1, 5.0, 1.0).astype("float32")
    before = expected_losses(labels, np.asarray(model(logits)))
    expected = (weights * before).sum() / weights[labels != 255].sum()
    history = model.fit(logits, labels.astype(dtype), sample_weight=weights, verbose=0)
    np.testing.assert_allclose(history.history["loss"], [expected], rtol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == model.loss.get_config()


def test_what_is_no_label_or_no_size_is_refused():
    logits, labels = logits_and_labels()
    loss = SegmentationCrossEntropy()
    for wrong in (labels[:, 1:], labels[..., None]):
        with pytest.raises(ValueError, match=r"the size of the logits.*y_true.shape"):
            loss(wrong, logits)
    wrong: Any
    for wrong in (1.5, True, "255"):
        with pytest.raises(ValueError, match=f"`ignore_label` must .*={wrong!r}"):
            SegmentationCrossEntropy(wrong)


def test_labels_beyond_the_classes_are_refused_but_not_ignored_ones():
    _, labels = logits_and_labels()
    assert check_labels(labels, C, ignore_label=255) is labels
    dataset = tf.data.Dataset.from_tensors((labels, labels))
    assert len(list(check_labels(dataset, C, ignore_label=255))) == 1
    with pytest.raises(ValueError, match=r"Received: labels \[255\], num_classes=3"):
        check_labels(labels, C)
    labels[0, 0, 0] = C
    with pytest.raises(ValueError, match=r"Received: labels \[3\], num_classes=3"):
        check_labels(labels, C, ignore_label=255)
    dataset = tf.data.Dataset.from_tensors((labels, labels))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Labels must be integers"):
        list(check_labels(dataset, C, ignore_label=255))


def distances(instances):
    """To the nearest and the second nearest object, by trying all pixels."""
    numbers = [n for n in np.unique(instances) if n]
    result = np.full((2, *instances.shape), np.inf)
    for place in np.ndindex(instances.shape):
        each = sorted(
            min(np.hypot(*np.subtract(place, other)) for other in objects)
            for objects in (np.argwhere(instances == n) for n in numbers)
        )
        result[: len(each[:2]), *place] = each[:2]
    return result


def cells():
    instances = np.zeros((19, 23), "int32")
    instances[2:8, 2:9] = 4
    instances[2:8, 10:15] = 9  # A gap of one pixel.
    instances[12:17, 5:20] = 1
    return instances


@pytest.mark.parametrize("sigma", [1.0, 5.0])
def test_weights_are_those_of_the_paper(sigma):
    instances = cells()
    found = border_weights(instances, border_weight=7.0, sigma=sigma)
    assert found.dtype == np.float32
    foreground = (instances > 0).sum()
    balance = np.where(
        instances > 0, 1 / foreground, 1 / (instances.size - foreground)
    ) * (instances.size / 2)
    border = 7 * np.exp(-(distances(instances).sum(0) ** 2) / (2 * sigma**2))
    expected = balance + np.where(instances == 0, border, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    # Heaviest in the gap.
    assert np.unravel_index(found.argmax(), found.shape)[1] == 9
    np.testing.assert_allclose(balance.mean(), 1)
    plain = border_weights(instances, border_weight=0.0, balance=False)
    np.testing.assert_array_equal(plain, np.ones_like(plain))


def test_a_batch_is_weighted_image_by_image():
    instances = np.stack([cells(), np.zeros_like(cells()), cells() == 4, cells() + 1])
    found = border_weights(instances)
    for one, weights in zip(instances, found, strict=True):
        np.testing.assert_array_equal(border_weights(one), weights)
    # Without objects, with one, and without background there is no border.
    np.testing.assert_array_equal(found[1], np.ones_like(found[1]))
    assert len(np.unique(found[2])) == 2
    np.testing.assert_array_equal(found[3], np.ones_like(found[3]))
    assert border_weights(instances[:0]).shape == (0, 19, 23)


@pytest.mark.parametrize(
    "instances, options, error, message",
    [
        (cells() > 0, {}, TypeError, "must be integers.*dtype=bool"),
        (cells()[0], {}, ValueError, r"\(rows, columns\) or .*shape=\(23,\)"),
        (-cells(), {}, ValueError, "without negative numbers.*minimum -9"),
        (cells(), {"sigma": 0}, ValueError, "`sigma` above 0.*sigma=0"),
        (cells(), {"border_weight": -1}, ValueError, "`border_weight` must .*=-1"),
    ],
)
def test_what_cannot_be_weighted_is_refused(instances, options, error, message):
    with pytest.raises(error, match=message):
        border_weights(instances, **options)


def test_a_missing_scipy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"scipy.*keras-attn\[vision\]"):
        border_weights(cells())
