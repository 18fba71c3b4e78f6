"""Pre-training of vision with language: masks, exchanged texts, and the losses."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from model_cases import build, numpy

from keras_attn.losses import MaskedRegionLoss, SmoothedCrossEntropy
from keras_attn.training import MaskedLMMasking, mask_pairs

V, MASK, B, T, R, F, C = 19, 3, 6, 11, 5, 7, 29
MASKING = MaskedLMMasking(V, MASK, special_token_ids=[0, 1, 2])


def pairs(count=4 * B, batch=B):
    """Batches in which the words of pair i are all 4 + i % 13."""
    rng = np.random.default_rng(0)
    numbers = np.arange(count)
    distributions = rng.uniform(0.1, 1, (count, R, C)).astype("float32")
    distributions /= distributions.sum(-1, keepdims=True)
    inputs: Any = {
        "token_ids": np.repeat(4 + numbers[:, None] % 13, T, 1).astype("int32"),
        "padding_mask": np.arange(T) < 4 + numbers[:, None] % 7,
        "segment_ids": np.zeros((count, T), "int32"),
        "region_features": rng.uniform(1, 2, (count, R, F)).astype("float32"),
        "region_boxes": rng.uniform(size=(count, R, 4)).astype("float32"),
        "region_padding_mask": np.arange(R) < 2 + numbers[:, None] % 4,
        "class_distributions": distributions,
    }
    dataset: Any = tf.data.Dataset.from_tensor_slices(inputs).batch(batch)
    return inputs, dataset


def read(dataset):
    """All batches as one, of inputs, labels and weights."""
    return tf.nest.map_structure(
        lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *dataset
    )


def prepared(count=4 * B, batch=B, **options):
    given, dataset = pairs(count, batch)
    dataset = mask_pairs(dataset, MASKING, **{"seed": 3, "epoch": 0, **options})
    return given, *read(dataset)


def test_regions_are_masked_at_their_rates():
    given, inputs, labels, weights = prepared(4000, 500, mismatch_rate=0.0)
    chosen, real = weights["masked_regions"] > 0, given["region_padding_mask"]
    assert not chosen[~real].any()
    assert chosen[real].mean() == pytest.approx(0.15, abs=0.015)
    is_zero = ~inputs["region_features"].any(-1)
    assert not is_zero[~chosen].any()
    assert is_zero[chosen].mean() == pytest.approx(0.9, abs=0.025)
    np.testing.assert_array_equal(
        inputs["region_features"][~is_zero], given["region_features"][~is_zero]
    )
    np.testing.assert_array_equal(inputs["region_boxes"], given["region_boxes"])
    np.testing.assert_array_equal(
        labels["masked_regions"], given["class_distributions"]
    )
    assert inputs["region_padding_mask"].dtype == "int32"
    assert "class_distributions" not in inputs


def test_words_are_masked_as_in_bert():
    given, inputs, labels, weights = prepared(4000, 500, mismatch_rate=0.0)
    chosen = weights["masked_lm"] > 0
    assert not chosen[~given["padding_mask"]].any()
    assert (labels["masked_lm"] == np.where(chosen, given["token_ids"], 0)).all()
    assert (inputs["token_ids"][chosen] == MASK).mean() == pytest.approx(0.8, abs=0.03)
    np.testing.assert_array_equal(
        inputs["token_ids"][~chosen], given["token_ids"][~chosen]
    )
    assert not labels["alignment"].any() and weights["alignment"].all()


def test_half_of_the_texts_are_of_different_pairs():
    given, inputs, labels, weights = prepared(1300, 13)
    # Each text has one word, the number of its pair: the largest label, if a word of
    # it is predicted, as at least one is.
    source = labels["masked_lm"].max(1)
    is_own = source == given["token_ids"][:, 0]
    np.testing.assert_array_equal(labels["alignment"], ~is_own)
    assert labels["alignment"].mean() == pytest.approx(0.5, abs=0.04)
    counts = np.unique(source[~is_own], return_counts=True)[1]
    # Each of the 13 texts of a batch is drawn equally often.
    assert len(counts) == 13 and counts.min() > 0.6 * counts.mean()
    # The whole text is exchanged, with its padding, and its words are predicted.
    lengths = inputs["padding_mask"].sum(1)
    numbers = (
        np.arange(1300) // 13 * 13 + (source - 4 - np.arange(1300) // 13 * 13) % 13
    )
    np.testing.assert_array_equal(lengths, 4 + numbers % 7)
    assert (weights["masked_lm"].sum(1) > 0).all()


def test_the_losses_may_be_of_aligned_pairs_only():
    _, inputs, labels, weights = prepared(200, 10)
    _, again, same, fewer = prepared(200, 10, masked_losses="aligned")
    for one, other in ((inputs, again), (labels, same)):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    aligned = labels["alignment"] == 0
    for name in ("masked_lm", "masked_regions"):
        expected = weights[name] * aligned[:, None]
        assert 0 < expected.sum() < weights[name].sum()
        np.testing.assert_array_equal(fewer[name], expected)
    assert fewer["alignment"].all()


def test_a_text_of_the_same_image_is_aligned():
    given, _ = pairs()
    images = np.zeros(4 * B, "int32")
    images[3::4] = 1
    numbered: Any = {**given, "index": images}
    dataset = tf.data.Dataset.from_tensor_slices(numbered).batch(B)
    dataset = mask_pairs(dataset, MASKING, seed=3, epoch=0, mismatch_rate=0.9)
    inputs, labels, _ = read(dataset)
    assert "index" not in inputs
    source = labels["masked_lm"].max(1)
    is_own = source == given["token_ids"][:, 0]
    assert not labels["alignment"][is_own].any()
    assert 0 < labels["alignment"].sum() < (~is_own).sum()
    # A batch of one pair has no other text.
    _, _, labels, _ = prepared(5, 1, mismatch_rate=0.9)
    assert not labels["alignment"].any()


def test_batches_follow_the_seed_and_the_epoch():
    def features(**options):
        return prepared(**options)[1]["region_features"]

    one = features()
    np.testing.assert_array_equal(one, features())
    assert (one != features(epoch=1)).any() and (one != features(seed=4)).any()
    fixed = features(same_each_epoch=True, epoch=1)
    np.testing.assert_array_equal(fixed, features(same_each_epoch=True, epoch=2))


def divergence(target, logits):
    """KL(target || softmax(logits)) of one region, class by class."""
    p = np.exp(logits - np.log(np.exp(logits).sum()))
    return sum(t * np.log(t / q) for t, q in zip(target, p, strict=True) if t > 0)


def test_the_loss_of_regions():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(2, 3, 5)).astype("float32")
    target = rng.uniform(size=(2, 3, 5)).astype("float32")
    target[0, 0, :3] = target[1, 2] = 0
    target[:, :, :] /= np.maximum(target.sum(-1, keepdims=True), 1e-9)
    expected = np.array(
        [
            [divergence(*x) for x in zip(*row, strict=True)]
            for row in zip(
                target.astype("float64"), logits.astype("float64"), strict=True
            )
        ]
    )
    each = numpy(MaskedRegionLoss(reduction="none")(target, logits))
    np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-6)
    weights = np.array([[1, 0, 0], [1, 1, 0]])
    loss = float(MaskedRegionLoss()(target, logits, weights))
    assert loss == pytest.approx((expected * weights).sum() / 3, rel=1e-5)
    assert float(MaskedRegionLoss()(target, logits, 0 * weights)) == 0
    # Of equal distributions it is 0.
    assert float(MaskedRegionLoss()(target[:1, 1:], np.log(target[:1, 1:]))) < 1e-6


def test_no_gradient_is_nan_without_a_masked_region():
    logits = tf.Variable(tf.ones((1, 2, 3)))
    for target in (np.zeros((1, 2, 3)), np.eye(3)[None, :2]):
        with tf.GradientTape() as tape:
            loss = MaskedRegionLoss()(target, logits, np.zeros((1, 2)))
        assert float(loss) == 0
        assert not np.asarray(tape.gradient(loss, logits)).any()


@pytest.mark.compiled
def test_a_model_learns_all_three():
    keras.utils.set_random_seed(1)
    model: Any = build("vilbert_pretrainer")
    _, dataset = pairs()
    batches = mask_pairs(dataset, MASKING, seed=1, same_each_epoch=True)
    alignment = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(3e-3),
        {
            "masked_lm": SmoothedCrossEntropy(),
            "masked_regions": MaskedRegionLoss(),
            "alignment": alignment,
        },
        jit_compile=False,
    )
    history = model.fit(batches, epochs=8, shuffle=False, verbose=0).history
    for name in ("masked_lm", "masked_regions"):
        assert history[f"{name}_loss"][-1] < history[f"{name}_loss"][0]
    assert np.isfinite(history["loss"]).all()


def test_errors():
    _, dataset = pairs()
    cases: Any = (
        ("region_rate", 1.0, "`region_rate`"),
        ("mismatch_rate", -0.1, "`mismatch_rate`"),
        ("region_mask_rate", 1.1, "`region_mask_rate` must be a number"),
        ("region_mask_rate", "most", "`region_mask_rate` must be a number"),
        ("masked_losses", "some", "`masked_losses` must be"),
    )
    for name, value, match in cases:
        with pytest.raises(ValueError, match=match):
            mask_pairs(dataset, MASKING, seed=1, **{name: value})
    few = MaskedLMMasking(V, MASK, max_predictions=2)
    with pytest.raises(ValueError, match="must have no `max_predictions`"):
        mask_pairs(dataset, few, seed=1)
    lacking = dataset.map(lambda x: {"token_ids": x["token_ids"]})
    with pytest.raises(ValueError, match="`dataset` must have .* class_distributions"):
        mask_pairs(lacking, MASKING, seed=1)
    with pytest.raises(ValueError, match="`y_true` must have the shape of the logits"):
        MaskedRegionLoss()(np.zeros((1, 2, 3)), np.zeros((1, 2, 4)))
